#!/usr/bin/env python3
"""What deploy/ says is so: Kubernetes' manifests keep to its schemas and to each other, their commands run, units are ones
that systemd takes, and every flag, variable and metric that is named anywhere exists.

Usage: manifests_test.py --bin DIR [unittest's arguments]. Exits with 77 where kubernetes-validate is not installed."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
BIN = pathlib.Path()
WAIT_SECONDS = 60
TOKEN = "0123456789abcdef" * 4
# The oldest with all that the manifests use, and the newest that there are schemas of.
VERSIONS = ["1.31", "1.37"]
# Flags of other programs that deploy/ names.
OTHERS = {"--array", "--mem", "--gres", "--qos", "--signal", "--requeue", "--batch", "--nodes", "--ntasks", "--output",
          "--open-mode", "--job-name", "--mount", "--preset", "--target", "--build", "--install", "--prefix",
          "--no-install-recommends", "--replicas", "--now", "--tests", "--help", "--revoke", "--from-literal"}


def help_of(*command: str) -> str:
    return subprocess.run([BIN / command[0], *command[1:], "--help"], capture_output=True, text=True, check=True).stdout


def flags_of(*command: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z0-9-]*", help_of(*command)))


def variables_of(*command: str) -> set[str]:
    return set(re.findall(r"\(?(RECON_[A-Z0-9_]+)\)", help_of(*command)))


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(KUBERNETES.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            yield path.name, document


def by_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {document["metadata"]["name"]: document for _, document in documents() if document["kind"] == kind}


def workloads() -> list[dict[str, Any]]:
    return [*by_kind("StatefulSet").values(), *by_kind("Deployment").values()]


def container_of(workload: dict[str, Any]) -> dict[str, Any]:
    container, = workload["spec"]["template"]["spec"]["containers"]
    return container


def variables_in(container: dict[str, Any]) -> dict[str, str]:
    """What the config maps of this folder, and the job's token, give a container."""
    maps = by_kind("ConfigMap")
    variables: dict[str, str] = {}
    for source in container["envFrom"]:
        if "configMapRef" in source:
            variables |= maps[source["configMapRef"]["name"]]["data"]
        elif source["secretRef"]["name"] == "recon-token":  # As deploy/README.md has it made.
            variables["RECON_TOKEN"] = TOKEN
    return variables


def selects(selector: dict[str, str], workload: dict[str, Any]) -> bool:
    return selector.items() <= workload["spec"]["template"]["metadata"]["labels"].items()


class Kubernetes(unittest.TestCase):
    def test_manifests_keep_to_the_schemas(self) -> None:
        for version in VERSIONS:
            for name, document in documents():
                if document["kind"] == "Kustomization":
                    continue  # It is kubectl's own, and no schema is published.
                with self.subTest(file=name, kind=document["kind"], version=version):
                    kubernetes_validate.validate(document, version, strict=True)

    def test_a_manifest_with_a_wrong_field_is_noticed(self) -> None:
        document = by_kind("StatefulSet")["recon-head"]
        container_of(document)["readinessProbe"]["grpc"]["prot"] = 7070
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(document, VERSIONS[0], strict=True)

    def test_manifests_refer_to_what_is_there(self) -> None:
        services = by_kind("Service")
        for workload in workloads():
            labels = workload["spec"]["template"]["metadata"]["labels"]
            self.assertLessEqual(workload["spec"]["selector"]["matchLabels"].items(), labels.items())
            if workload["kind"] == "StatefulSet":
                service = services[workload["spec"]["serviceName"]]
                self.assertTrue(selects(service["spec"]["selector"], workload))
            container = container_of(workload)
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            self.assertEqual(str(ports["metrics"]), workload["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"])
            for probe in [container.get(kind, {}) for kind in ("startupProbe", "readinessProbe", "livenessProbe")]:
                if "grpc" in probe:
                    self.assertEqual(probe["grpc"]["port"], ports["grpc"])
                if "tcpSocket" in probe:
                    self.assertIn(probe["tcpSocket"]["port"], ports)
        budgets = [*by_kind("PodDisruptionBudget").values(), *by_kind("NetworkPolicy").values()]
        for one in budgets:
            selector = (one["spec"].get("selector") or one["spec"]["podSelector"])["matchLabels"]
            self.assertTrue(any(selects(selector, workload) for workload in workloads()), one["metadata"]["name"])
        target = by_kind("HorizontalPodAutoscaler")["recon-worker"]["spec"]["scaleTargetRef"]
        self.assertIn(target["name"], by_kind(target["kind"]))
        self.assertNotIn("replicas", by_kind("Deployment")[target["name"]]["spec"])
        for name in yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]:
            self.assertTrue((KUBERNETES / name).is_file(), name)

    def test_what_pods_may_do_is_little(self) -> None:
        for workload in workloads():
            pod = workload["spec"]["template"]["spec"]
            context = container_of(workload)["securityContext"]
            self.assertTrue(pod["securityContext"]["runAsNonRoot"])
            self.assertEqual(pod["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
            self.assertEqual((context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"], context["capabilities"]),
                             (False, True, {"drop": ["ALL"]}))
            self.assertFalse(pod["automountServiceAccountToken"])

    def test_commands_have_flags_and_variables_that_exist(self) -> None:
        for workload in workloads():
            container = container_of(workload)
            program = container["args"][0]
            flags = {argument.split("=")[0] for argument in container["args"][1:]}
            self.assertLessEqual(flags, flags_of(program), workload["metadata"]["name"])
            named = {variable["name"] for variable in container.get("env", []) if variable["name"] != "POD_NAME"}
            self.assertLessEqual(set(variables_in(container)) | named, variables_of(program), workload["metadata"]["name"])

    @unittest.skipIf(shutil.which("kubectl") is None, "there is no kubectl")
    def test_kubectl_renders_the_kustomization(self) -> None:
        text = subprocess.run(["kubectl", "kustomize", KUBERNETES], capture_output=True, text=True, check=True).stdout
        kinds = [document["kind"] for document in yaml.safe_load_all(text)]
        self.assertEqual({kind: kinds.count(kind) for kind in ("StatefulSet", "Deployment", "Namespace")},
                         {"StatefulSet": 1, "Deployment": 1, "Namespace": 1})


class Commands(unittest.TestCase):
    """The containers' commands, with their variables, as processes of this machine."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="recon-manifests-", ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.addCleanup(self.end)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def start(self, workload: dict[str, Any], replaced: dict[str, str], **variables: str) -> subprocess.Popen[bytes]:
        container = container_of(workload)
        arguments = []
        for argument in container["args"]:
            for old, new in replaced.items():
                argument = argument.replace(old, new)
            arguments.append(argument)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("RECON_")}
        with open(self.root / "log", "ab") as log:
            process = subprocess.Popen([BIN / arguments[0], *arguments[1:]], env={**clean, **variables_in(container), **variables},
                                       stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def until(self, pattern: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not re.search(pattern, (self.root / "log").read_text()):
            self.assertLess(time.monotonic(), deadline, f"no {pattern!r} in\n{(self.root / 'log').read_text()}")
            time.sleep(0.05)

    def test_a_head_with_another_server_trains_with_a_worker(self) -> None:
        ports = free_ports(5)
        here = {"/var/lib/recon": str(self.root)}
        snapshots = str(self.root / "snapshots")
        self.start(by_kind("StatefulSet")["recon-head"], {**here, ":7070": f":{ports[0]}", ":9464": f":{ports[1]}"},
                   RECON_SERVERS="2", RECON_SNAPSHOT_DIR=snapshots)
        self.until("listening on")
        shard = {"recon-head:7070": f"127.0.0.1:{ports[0]}", "$(POD_NAME).recon-shard": "127.0.0.1", ":7070": f":{ports[2]}",
                 ":9464": f":{ports[3]}"}
        self.start(by_kind("StatefulSet")["recon-shard"], {**here, **shard}, RECON_SNAPSHOT_DIR=snapshots)
        self.start(by_kind("Deployment")["recon-worker"], {":9464": f":{ports[4]}"}, RECON_NAME="pod",
                   RECON_SERVER=f"127.0.0.1:{ports[0]}")
        self.until("first push acknowledged")
        # A pod with another secret is none of the job's.
        wrong = self.root / "wrong"
        wrong.write_text("f" * 64)
        wrong.chmod(0o600)
        stranger = self.start(by_kind("Deployment")["recon-worker"], {":9464": ":0"}, RECON_NAME="stranger",
                              RECON_TOKEN_FILE=str(wrong), RECON_SERVER=f"127.0.0.1:{ports[0]}")
        self.assertNotEqual(stranger.wait(WAIT_SECONDS), 0)
        self.until("give the job's token")

    def test_a_head_and_a_worker_train_and_leave_within_their_grace(self) -> None:
        ports = free_ports(3)
        here = {"/var/lib/recon": str(self.root), ":7070": f":{ports[0]}", ":9464": f":{ports[1]}"}
        head = self.start(by_kind("StatefulSet")["recon-head"], here)
        self.until("listening on")
        self.start(by_kind("Deployment")["recon-worker"], {":9464": f":{ports[2]}"}, RECON_NAME="pod",
                   RECON_SERVER=f"127.0.0.1:{ports[0]}")
        self.until("first push acknowledged")
        for workload, process in zip([by_kind("Deployment")["recon-worker"], by_kind("StatefulSet")["recon-head"]],
                                     [self.processes[1], head]):
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]), 0)
        self.until("worker pod left")
        self.until("drained")


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


class Names(unittest.TestCase):
    """Flags, metrics and files that texts of deploy/ name."""

    def files(self) -> list[pathlib.Path]:
        return [path for path in sorted(DEPLOY.rglob("*")) if path.is_file()]

    def test_every_flag_exists(self) -> None:
        known = flags_of("recon-server") | flags_of("recon-worker") | flags_of("reconctl", "status") | OTHERS
        launcher = (ROOT / "worker/python/recon/run.py").read_text()
        known |= set(re.findall(r'add_argument\("(--[a-z-]+)"', launcher))
        for path in self.files():
            for number, line in enumerate(path.read_text().splitlines(), 1):
                unknown = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", line)) - known
                self.assertFalse(unknown, f"{path.relative_to(ROOT)}:{number}")

    def test_every_variable_exists(self) -> None:
        known = variables_of("recon-server") | variables_of("recon-worker") | variables_of("reconctl", "status")
        known |= {"RECON_BIN", "RECON_HOST", "RECON_TEST_DEBOOTSTRAP"}  # Of packages, of recon.sbatch, of a test.
        for path in self.files():
            unknown = set(re.findall(r"\bRECON_[A-Z0-9_]*[A-Z0-9]", path.read_text())) - known - {"RECON"}
            self.assertFalse(unknown, path.relative_to(ROOT))

    def test_every_metric_exists(self) -> None:
        sources = "".join(path.read_text() for folder in ("server", "worker", "common") for path in (ROOT / folder).rglob("*.cc"))
        known = set(re.findall(r'"(recon_(?:server|worker)_[a-z_]+)"', sources))
        for path in self.files():
            named = set(re.findall(r"\brecon_(?:server|worker)_[a-z_]+", path.read_text()))
            named = {re.sub(r"_(sum|count|bucket)$", "", name) for name in named}
            self.assertLessEqual(named, known, path.relative_to(ROOT))

    def test_a_container_is_built_from_what_is_there(self) -> None:
        text = (DEPLOY / "container/Containerfile").read_text()
        for source in re.findall(r"^COPY (?!\. )(\S+)", text, re.MULTILINE):
            self.assertTrue((ROOT / source).exists(), source)
        presets = json.loads((ROOT / "CMakePresets.json").read_text())
        self.assertLessEqual(set(re.findall(r"--preset (\w+)", text)), {one["name"] for one in presets["configurePresets"]})


@unittest.skipIf(shutil.which("systemd-analyze") is None, "there is no systemd-analyze")
class Units(unittest.TestCase):
    def test_systemd_takes_the_units(self) -> None:
        with tempfile.TemporaryDirectory(prefix="recon-units-") as folder:
            for unit in sorted((DEPLOY / "systemd").glob("*.service")):
                copy = pathlib.Path(folder, unit.name.replace("@.", "@0."))
                copy.write_text(unit.read_text().replace("/usr/local/bin", str(BIN)))
                done = subprocess.run(["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stderr), (0, ""), unit.name)

    def test_units_survive_their_limits_and_share_memory(self) -> None:
        settings = {}
        for name in ("recon-server.service", "recon-worker@.service"):
            lines = [line for line in (DEPLOY / "systemd" / name).read_text().splitlines() if re.match(r"[A-Z]\w+=", line)]
            settings[name] = dict(line.split("=", 1) for line in lines)
            self.assertEqual(settings[name]["StartLimitIntervalSec"], "0")
            self.assertGreaterEqual(int(settings[name]["LimitNOFILE"]), 1 << 20)
        server, worker = settings.values()
        # Shared memory is between processes of one user, in one place for temporary files.
        self.assertEqual((server["User"], server.get("PrivateTmp")), (worker["User"], worker.get("PrivateTmp")))
        self.assertEqual(server["SuccessExitStatus"], "3")


def main() -> int:
    if "--bin" not in sys.argv:
        print(__doc__)
        return 2
    at = sys.argv.index("--bin")
    global BIN, kubernetes_validate, yaml
    BIN = pathlib.Path(sys.argv[at + 1]).resolve()
    del sys.argv[at:at + 2]
    try:
        import kubernetes_validate
        import yaml
    except ModuleNotFoundError:
        print("SKIP: kubernetes-validate is not installed in this Python: tools/setup.sh --tests installs it")
        return 77
    unittest.main(verbosity=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
