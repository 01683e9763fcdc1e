#!/usr/bin/env python3
"""The Debian package that CPack makes of a build: what is in it and what it depends on. With RECON_TEST_DEBOOTSTRAP=1 (as
root, with debootstrap, some minutes and Debian's archive) it is installed into a bare Debian 12, where a job runs while its
worker and its server are killed.

Usage: package_test.py --bin DIR [unittest's arguments]; DIR is in the build. Exits with 77 without dpkg-deb or cpack."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from demo import samples_completed_once  # noqa: E402

BUILD = pathlib.Path()
WAIT_SECONDS = 90
SAMPLES = 60000
EPOCHS = 2


def run(*command: object, **options: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)  # type: ignore
    if done.returncode != 0:
        raise AssertionError(f"{command} ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def eventually(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {WAIT_SECONDS} s for {what}")
        time.sleep(0.1)


class Packed(unittest.TestCase):
    """A build's packages, made once for a class."""

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory(prefix="recon-packages-", ignore_cleanup_errors=True)
        cls.addClassCleanup(folder.cleanup)
        cls.root = pathlib.Path(folder.name)
        run("cpack", "--config", BUILD / "CPackConfig.cmake", "-B", cls.root / "packages")
        cls.packages = {path.name.split("_")[0]: path for path in (cls.root / "packages").glob("*.deb")}


class Packages(Packed):
    def field(self, package: str, name: str) -> str:
        return run("dpkg-deb", "--field", self.packages[package], name).strip()

    def files(self, package: str) -> set[str]:
        lines = run("dpkg-deb", "--contents", self.packages[package]).splitlines()
        return {line.split()[5][1:] for line in lines if not line.startswith("d")}

    def test_the_package_has_the_programs_and_their_units(self) -> None:
        files = self.files("recon")
        wanted = {"/usr/bin/recon-server", "/usr/bin/recon-worker", "/usr/bin/reconctl", "/usr/lib/librecon_messages.so",
                  "/usr/lib/systemd/system/recon-server.service", "/usr/lib/systemd/system/recon-worker@.service",
                  "/usr/lib/sysusers.d/recon.conf"}
        self.assertLessEqual(wanted, files)
        self.assertTrue(all(name.startswith("/usr/") for name in files), files)
        run("dpkg-deb", "--extract", self.packages["recon"], self.root / "extracted")
        units = self.root / "extracted/usr/lib/systemd/system"
        for unit in units.iterdir():
            self.assertRegex(unit.read_text(), r"(?m)^ExecStart=/usr/bin/recon-")
            self.assertNotIn("/usr/local", unit.read_text())
        version = self.field("recon", "Version")
        for program in ("recon-server", "recon-worker", "reconctl"):
            self.assertIn(version, run(self.root / "extracted/usr/bin" / program, "--version"))

    def test_what_the_programs_are_linked_with_is_depended_on(self) -> None:
        depends = self.field("recon", "Depends")
        for library in ("libgrpc++1.51", "librocksdb7.8", "libprotobuf32", "libc6", "libopenblas0"):
            self.assertRegex(depends, rf"(^|, ){re.escape(library)}\b")
        self.assertNotIn("cuda", depends)

    def test_the_module_for_gpus_is_apart(self) -> None:
        built = (BUILD / "bin/librecon_cuda.so").exists()
        self.assertEqual("recon-worker-cuda" in self.packages, built)
        self.assertFalse(any("cuda" in name for name in self.files("recon")))
        if built:
            self.assertEqual(self.files("recon-worker-cuda"), {"/usr/bin/librecon_cuda.so"})
            self.assertIn(f"recon (= {self.field('recon', 'Version')})", self.field("recon-worker-cuda", "Depends"))


@unittest.skipUnless(os.environ.get("RECON_TEST_DEBOOTSTRAP"), "RECON_TEST_DEBOOTSTRAP is not set")
class BareDebian(Packed):
    """A Debian 12 without anything: what the package does not bring or name is not there."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.bare = cls.root / "bare"
        started = time.monotonic()
        run("debootstrap", "--variant=minbase", "bookworm", cls.bare, "http://deb.debian.org/debian")
        shutil.copy("/etc/resolv.conf", cls.bare / "etc/resolv.conf")
        for setting in pathlib.Path("/etc/apt/apt.conf.d").glob("*"):  # A proxy, perhaps.
            if "Acquire" in setting.read_text():
                shutil.copy(setting, cls.bare / "etc/apt/apt.conf.d")
        made = time.monotonic()
        shutil.copy(cls.packages["recon"], cls.bare / "recon.deb")
        cls.inside("apt-get", "update")
        cls.install("/recon.deb")
        print(f"the bare root took {made - started:.0f} s, the package with what it needs {time.monotonic() - made:.0f} s")

    @classmethod
    def inside(cls, *command: str) -> str:
        return run("chroot", cls.bare, *command)

    @classmethod
    def install(cls, *packages: str) -> None:
        cls.inside("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "--reinstall",
                   "--no-install-recommends", *packages)

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        with open(self.root / "log", "ab") as log:
            process = subprocess.Popen(["chroot", self.bare, *command], stdout=log, stderr=log)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def server(self, *flags: str) -> subprocess.Popen[bytes]:
        address = self.bare / "data/ADDRESS"
        address.unlink(missing_ok=True)
        process = self.start("recon-server", "--data", "/data", "--listen", self.address, "--data-epochs", str(EPOCHS), *flags)
        eventually(lambda: address.exists() and address.read_text().endswith("\n"), "the server")
        self.address = address.read_text().strip()
        return process

    def worker(self) -> subprocess.Popen[bytes]:
        return self.start("recon-worker", "--server", self.address, "--name", "one", "--data", f"clusters:{SAMPLES},1000,64,4",
                          "--model", "mlp:64-32-4", "--step-ms", "2")

    def pushes(self) -> int:
        return (self.root / "log").read_text().count("first push acknowledged")

    def test_a_job_runs_there(self) -> None:
        self.address = "127.0.0.1:0"
        server, worker = self.server(), self.worker()
        eventually(lambda: self.pushes() >= 1, "a worker that trains")
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        worker = self.worker()
        eventually(lambda: self.pushes() >= 3, "its replacement")  # The server says it of itself, too.
        server.send_signal(signal.SIGKILL)
        server.wait()
        server = self.server()
        self.assertEqual(worker.wait(WAIT_SECONDS), 0, (self.root / "log").read_text())
        completions = json.loads(self.inside("reconctl", "completions", "--json", "--server", self.address))["completions"]
        self.assertTrue(samples_completed_once(completions, EPOCHS, SAMPLES))
        self.inside("reconctl", "drain", "--server", self.address)
        self.assertEqual(server.wait(WAIT_SECONDS), 0)
        self.assertIn("ok", self.inside("reconctl", "snapshot", "verify", "/data/snapshots"))

    def boot(self) -> Callable[..., str]:
        """Boots the root as a container without a network; returns what runs a command in it."""
        output = open(self.root / "console", "wb")
        self.addCleanup(output.close)
        self.container = subprocess.Popen(["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network",
                                           "--directory", self.bare, "--boot"], stdin=subprocess.DEVNULL, stdout=output,
                                          stderr=output)
        self.addCleanup(self.container.wait)
        self.addCleanup(self.container.terminate)
        children = pathlib.Path(f"/proc/{self.container.pid}/task/{self.container.pid}/children")
        eventually(lambda: self.container.poll() is None and children.read_text().split(), "the container's first process")
        first = children.read_text().split()[0]
        return lambda *command: run("nsenter", "-t", first, "-m", "-u", "-i", "-n", "-p", *command)

    @unittest.skipIf(shutil.which("systemd-nspawn") is None, "there is no systemd-nspawn (systemd-container)")
    def test_services_of_systemd_outlive_kills_and_leave_in_order(self) -> None:
        self.install("systemd", "systemd-sysv", "dbus", "/recon.deb")  # The user is made now.
        (self.bare / "etc/recon/server.toml").write_text("data-epochs = 100000\n")
        (self.bare / "etc/recon/worker.toml").write_text('data = "clusters:60000,1000,64,4"\nmodel = "mlp:64-32-4"\n')
        without_gpu = self.bare / "etc/systemd/system/recon-worker@.service.d/cpu.conf"
        without_gpu.parent.mkdir()
        without_gpu.write_text("[Service]\nExecStart=\nExecStart=/usr/bin/recon-worker --config /etc/recon/worker.toml "
                               "--name %H-%i --device cpu\n")
        (self.bare / "var/log/journal").mkdir(exist_ok=True)
        self.inside("systemctl", "enable", "recon-server", "recon-worker@0")
        inside = self.boot()

        def log() -> str:
            return run("journalctl", "--directory", self.bare / "var/log/journal", "-o", "cat")

        eventually(lambda: log().count("first push acknowledged") >= 2, "server and worker that train")
        self.assertIn("frames go through shared memory", log())
        for service in ("recon-server", "recon-worker@0"):
            inside("systemctl", "kill", "-s", "KILL", service)
        eventually(lambda: log().count("first push acknowledged") >= 4, "both to train again")
        self.assertIn("job resumed", log())
        inside("systemctl", "poweroff")
        self.assertEqual(self.container.wait(WAIT_SECONDS), 0)
        end = log()
        self.assertIn("snapshot", end)
        self.assertLess(end.rindex("left (stopped)"), end.rindex("draining: SIGTERM"))
        self.assertIn("drained", end[end.rindex("draining: SIGTERM"):])


def main() -> int:
    if "--bin" not in sys.argv:
        print(__doc__)
        return 2
    at = sys.argv.index("--bin")
    global BUILD
    BUILD = pathlib.Path(sys.argv[at + 1]).resolve().parent
    del sys.argv[at:at + 2]
    missing = [program for program in ("dpkg-deb", "dpkg-shlibdeps", "cpack") if shutil.which(program) is None]
    if missing:
        print(f"SKIP: {', '.join(missing)} is not installed")
        return 77
    unittest.main(verbosity=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
