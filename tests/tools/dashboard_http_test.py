#!/usr/bin/env python3
"""What clients may ask of the dashboard, and what they cannot do to it: dashboard_http_test.py --bin FOLDER."""

from __future__ import annotations

import argparse
import http.client
import pathlib
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BIN = ROOT / "build/release/bin"
CONNECTIONS = 64
IDLE_SECONDS = 10


class Served:
    """A dashboard of a made-up job, in a process of its own."""

    def __init__(self, *arguments: object):
        self.process = subprocess.Popen([BIN / "dashboard_server", *map(str, arguments)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        self.url = self.process.stdout.readline().strip()
        self.port = int(self.url.rstrip("/").rsplit(":", 1)[1])

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()

    def descriptors(self) -> int:
        return len(list(pathlib.Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def tell(self, command: str) -> None:
        assert self.process.stdin
        print(command, file=self.process.stdin, flush=True)

    def memory(self) -> int:
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return 1024 * int(line.split()[1])
        raise RuntimeError("no memory")

    def ask(self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes | None = None,
            context: ssl.SSLContext | None = None, seconds: float = 30) -> http.client.HTTPResponse:
        connection: http.client.HTTPConnection
        if context:
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=seconds, context=context)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            response.text = response.read().decode()  # type: ignore[attr-defined]
            return response
        finally:
            connection.close()

    def open(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)


class RealServer(Served):
    """A server with TLS and a dashboard, by the certificates of a folder."""

    def __init__(self, folder: pathlib.Path, flags: list[object]):
        self.data = tempfile.TemporaryDirectory(prefix="recon-dashboard-")
        files = [folder / name for name in ("server.pem", "server.key", "ca.pem")]
        self.process = subprocess.Popen([str(word) for word in (
            BIN / "recon-server", "--data", self.data.name, "--listen", "127.0.0.1:0", "--dashboard", "127.0.0.1:0", "--log-level", "error",
            "--tls-cert", files[0], "--tls-key", files[1], "--tls-ca", files[2], *flags)])
        url = pathlib.Path(self.data.name) / "DASHBOARD"
        while not url.exists() or not url.read_text().endswith("\n"):
            if self.process.poll() is not None:
                raise RuntimeError("the server has ended")
            time.sleep(0.05)  # Between looks.
        self.port = int(url.read_text().strip().rstrip("/").rsplit(":", 1)[1])

    def __enter__(self) -> RealServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self.data.cleanup()


class Requests(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.served = Served(3)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.served.close()

    def status(self, *arguments: object, **named: object) -> int:
        return self.served.ask(*arguments, **named).status  # type: ignore[arg-type]

    def test_every_answer_has_the_headers_that_protect_it(self) -> None:
        for path in ("/", "/page.js", "/api/live", "/nothing", "/healthz"):
            response = self.served.ask("GET", path)
            policy = response.getheader("Content-Security-Policy") or ""
            self.assertIn("default-src 'none'", policy, path)
            self.assertNotIn("unsafe", policy)
            self.assertEqual(response.getheader("X-Content-Type-Options"), "nosniff")
            self.assertEqual(response.getheader("Cache-Control"), "no-store")
            self.assertIsNone(response.getheader("Access-Control-Allow-Origin"))

    def test_the_page_has_no_script_or_style_of_its_own_text(self) -> None:
        page = self.served.ask("GET", "/").text  # type: ignore[attr-defined]
        self.assertNotIn("style=", page)
        self.assertNotIn("onclick", page)
        self.assertEqual(page.count("<script "), page.count("</script>"))
        self.assertNotIn("<script>", page)
        self.assertNotIn("https://", page)

    def test_only_some_methods_are_taken(self) -> None:
        for method in ("PUT", "DELETE", "OPTIONS", "TRACE", "BREW"):
            self.assertEqual(self.status(method, "/api/status"), 405, method)
        self.assertEqual(self.status("HEAD", "/"), 200)

    def test_a_foreign_name_is_refused(self) -> None:
        for host, expected in (("evil.example", 421), ("evil.example:80", 421), ("", 421), ("127.0.0.1.evil.example", 421),
                               ("localhost:1", 200), ("[::1]:5", 200), ("10.0.0.7", 200)):
            self.assertEqual(self.status("GET", "/api/status", {"Host": host}), expected, host)

    def test_a_foreign_page_cannot_post(self) -> None:
        path = "/api/snapshots/verify?generation=1"
        own = f"http://127.0.0.1:{self.served.port}"
        self.assertEqual(self.status("POST", path), 403)
        self.assertEqual(self.status("POST", path, {"X-Recon": "1", "Origin": "http://evil.example"}), 403)
        self.assertEqual(self.status("POST", path, {"X-Recon": "1", "Origin": "null"}), 403)
        # There are no snapshots in this job.
        self.assertEqual(self.status("POST", path, {"X-Recon": "1", "Origin": own}), 503)
        self.assertEqual(self.status("POST", "/api/snapshots/verify?generation=x", {"X-Recon": "1"}), 400)
        self.assertEqual(self.status("POST", "/api/status", {"X-Recon": "1"}), 404)

    def test_what_is_large_is_refused(self) -> None:
        self.assertEqual(self.status("POST", "/api/status", {"X-Recon": "1"}, b"x" * 100_000), 413)
        self.assertIn(self.status("GET", "/" + "x" * 100_000), (414, 431))
        self.assertIn(self.status("GET", "/", {"X-Long": "x" * 100_000}), (400, 413, 431))

    def test_nonsense_is_answered_or_cut(self) -> None:
        for bytes_sent in (b"\0" * 1000 + b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00" * 50,
                           b"GET /api/history?since=99999999999999999999 HTTP/1.1\r\nHost: localhost\r\n\r\n",
                           b"GET /api/history?since=-1&worker=%00%ff HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            with self.served.open() as connection:
                connection.sendall(bytes_sent)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
        self.assertEqual(self.status("GET", "/healthz"), 200)

    def test_history_comes_in_pieces(self) -> None:
        import json

        def points(query: str) -> dict:
            deadline = time.monotonic() + 60
            while True:
                history = json.loads(self.served.ask("GET", "/api/history" + query).text)  # type: ignore[attr-defined]
                if history["job"]["end_ms"] or time.monotonic() > deadline:
                    self.assertTrue(history["job"]["end_ms"], query)
                    return history
                time.sleep(0.1)  # Between looks.
        last = points("")["job"]["end_ms"][-1]
        piece = points(f"?since={last}&worker=w1")
        self.assertTrue(all(end > last for end in piece["job"]["end_ms"]))
        self.assertEqual(piece["worker"]["name"], "w1")


class Flags(unittest.TestCase):
    def test_a_wrong_address_is_one_line_that_names_the_flag(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken, tempfile.TemporaryDirectory() as data:
            for address, code in (("0.0.0.0:9", 2), ("nonsense", 2), ("99999", 2), ("127.0.0.1:", 2),
                                  (str(taken.getsockname()[1]), 1)):
                done = subprocess.run([BIN / "recon-server", "--data", data, "--listen", "127.0.0.1:0", "--dashboard", address,
                                       "--log-level", "error"], capture_output=True, text=True, timeout=60)
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
                self.assertIn("--dashboard", done.stderr)


class Rude(unittest.TestCase):
    def test_clients_that_never_read_or_never_ask_are_cut(self) -> None:
        served = Served(500)
        self.addCleanup(served.close)
        served.ask("GET", "/api/live")
        before = served.memory()
        rude = []
        for i in range(2 * CONNECTIONS):
            connection = served.open()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            if i % 2:
                connection.sendall(b"GET /api/status HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50)
            rude.append(connection)
        began = time.monotonic()
        # Somebody who comes now need not wait until the first of them are cut for their silence.
        self.assertEqual(served.ask("GET", "/healthz").status, 200)
        self.assertLess(time.monotonic() - began, IDLE_SECONDS - 1)
        self.assertLess(served.memory() - before, 64 << 20)
        for connection in rude:
            connection.close()


def eventually(server: Served | RealServer, condition: Callable[[], bool]) -> None:
    """Returns when the condition holds; AssertionError after a minute, or when the server ends."""
    deadline = time.monotonic() + 60
    while not condition():
        assert server.process.poll() is None, "the server has ended"
        assert time.monotonic() < deadline, "waited for a minute"
        time.sleep(0.05)  # Between looks.


class Encrypted(unittest.TestCase):
    def test_a_client_without_a_certificate_sees_nothing(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([ROOT / "tools/make_certs.sh", folder, "127.0.0.1"], check=True, capture_output=True)
            files = {path.name: path for path in pathlib.Path(folder).iterdir()}
            server = Served(3, files["server.pem"], files["server.key"], files["ca.pem"])
            self.addCleanup(server.close)
            context = ssl.create_default_context(cafile=str(files["ca.pem"]))
            self.assertEqual(server.ask("GET", "/healthz", context=context).status, 200)
            for path in ("/", "/api/status", "/page.js"):
                self.assertEqual(server.ask("GET", path, context=context).status, 403, path)
            context.load_cert_chain(files["worker.pem"], files["worker.key"])
            self.assertEqual(server.ask("GET", "/api/status", context=context).status, 200)
            # Of another CA, with the same names.
            other = pathlib.Path(folder) / "other"
            subprocess.run([ROOT / "tools/make_certs.sh", other, "127.0.0.1"], check=True, capture_output=True)
            stranger = ssl.create_default_context(cafile=str(files["ca.pem"]))
            stranger.load_cert_chain(other / "worker.pem", other / "worker.key")
            try:
                self.assertEqual(server.ask("GET", "/api/status", context=stranger).status, 403)
            except (ssl.SSLError, ConnectionError, http.client.RemoteDisconnected):
                pass  # Refused while they shook hands.

    def test_certificates_without_a_role_and_revoked_ones_see_no_job(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            make_certs = str(ROOT / "tools/make_certs.sh")
            subprocess.run([make_certs, folder, "127.0.0.1"], check=True, capture_output=True)
            subprocess.run([make_certs, "--revoke", folder / "worker.pem", folder], check=True, capture_output=True)

            def contexts() -> dict[str, ssl.SSLContext]:
                made = {}
                for holder in ("worker", "operator"):
                    made[holder] = ssl.create_default_context(cafile=str(folder / "ca.pem"))
                    made[holder].load_cert_chain(folder / f"{holder}.pem", folder / f"{holder}.key")
                return made
            for flags, why in ((["--allow", "operator=ou:operator"], "has the role none"),
                               (["--tls-crl", folder / "crl.pem"], "none that it has revoked")):
                with RealServer(folder, flags) as server:
                    holders = contexts()
                    eventually(server, lambda: server.ask("GET", "/readyz", context=holders["operator"]).status == 200)
                    self.assertEqual(server.ask("GET", "/api/status", context=holders["operator"]).status, 200)
                    for method, path in (("GET", "/api/status"), ("GET", "/api/history"),
                                         ("POST", "/api/snapshots/verify?generation=1")):
                        refused = server.ask(method, path, {"X-Recon": "1"}, context=holders["worker"])
                        self.assertEqual(refused.status, 403, f"{flags} {path}")
                        self.assertIn(why, refused.text)  # type: ignore[attr-defined]

    def test_new_certificates_and_revoked_ones_count_while_it_runs(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            def certs(*arguments: object) -> None:
                subprocess.run([ROOT / "tools/make_certs.sh", *arguments], check=True, capture_output=True)

            certs(folder, "127.0.0.1")
            files = {name: pathlib.Path(folder) / name
                     for name in ("server.pem", "server.key", "ca.pem", "worker.pem", "worker.key", "operator.pem",
                                  "operator.key", "crl.pem")}
            certs("--revoke", files["operator.pem"], folder)
            server = Served(3, files["server.pem"], files["server.key"], files["ca.pem"], files["crl.pem"])
            self.addCleanup(server.close)

            def context(who: str) -> ssl.SSLContext:
                made = ssl.create_default_context(cafile=str(files["ca.pem"]))
                made.load_cert_chain(files[f"{who}.pem"], files[f"{who}.key"])
                return made

            def status(who: str) -> int:
                return server.ask("GET", "/api/status", context=context(who)).status

            def shown() -> bytes:
                with context("worker").wrap_socket(server.open(), server_hostname="127.0.0.1") as connection:
                    return connection.getpeercert(binary_form=True) or b""

            self.assertEqual((status("worker"), status("operator")), (200, 403))
            certs("--revoke", files["worker.pem"], folder)
            eventually(server, lambda: status("worker") == 403)
            # All certificates anew, of the same CA: the list does not name them.
            first = shown()
            certs(folder, "127.0.0.1")

            def anew() -> bool:
                try:
                    return shown() != first and status("worker") == 200
                except (OSError, http.client.HTTPException):
                    return False  # It ended the connection to begin with the new ones.

            eventually(server, anew)

    def test_files_that_only_openssl_takes_and_a_lack_of_descriptors_do_not_end_it(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            make_certs = str(ROOT / "tools/make_certs.sh")
            subprocess.run([make_certs, folder, "127.0.0.1"], check=True, capture_output=True)
            server = Served(3, folder / "server.pem", folder / "server.key", folder / "ca.pem")
            self.addCleanup(server.close)
            context = ssl.create_default_context(cafile=str(folder / "ca.pem"))

            def shown() -> bytes | None:
                try:
                    with context.wrap_socket(server.open(), server_hostname="127.0.0.1") as connection:
                        return connection.getpeercert(binary_form=True)
                except OSError:
                    return None

            def cut() -> Callable[[], bool]:
                held = context.wrap_socket(server.open(), server_hostname="127.0.0.1")
                self.addCleanup(held.close)
                held.settimeout(0.05)

                def ended() -> bool:
                    try:
                        return held.recv(1) == b""
                    except TimeoutError:
                        return False
                    except OSError:
                        return True
                return ended

            first = shown()
            self.assertTrue(first)
            held = server.descriptors()
            # GnuTLS has no such curve.
            odd = folder / "odd"
            odd.mkdir()
            (odd / "extensions").write_text("subjectAltName=IP:127.0.0.1")
            for words in (("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:secp256k1", "-out", odd / "server.key"),
                          ("req", "-new", "-key", odd / "server.key", "-subj", "/CN=odd", "-out", odd / "server.csr"),
                          ("x509", "-req", "-in", odd / "server.csr", "-CA", folder / "ca.pem", "-CAkey", folder / "ca.key",
                           "-set_serial", "7", "-days", "2", "-extfile", odd / "extensions", "-out", odd / "server.pem")):
                subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)
            ended = cut()
            for file in ("server.key", "server.pem"):
                (odd / file).rename(folder / file)
            eventually(server, ended)  # It has tried them.
            eventually(server, lambda: shown() == first)
            # Good ones, while none can be started: it may have tried the others twice, and nobody is let in then.
            ended = cut()
            server.tell("starve")
            subprocess.run([make_certs, folder, "127.0.0.1"], check=True, capture_output=True)
            eventually(server, ended)
            assert server.process.stdout
            self.assertEqual(server.process.stdout.readline(), "starved\n")
            server.tell("feed")
            eventually(server, lambda: shown() not in (None, first))
            self.assertEqual(server.ask("GET", "/healthz", context=context).status, 200)
            eventually(server, lambda: server.descriptors() <= held)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, default=BIN)
    known, rest = parser.parse_known_args()
    BIN = known.bin.resolve()
    unittest.main(argv=[sys.argv[0], "-v", *rest])
