#!/usr/bin/env python3
"""Makes the virtual environment in which tests of Python run, with PyTorch in it, and links it to a path.

Usage: torch_environment.py [--bench] LINK. tools/setup.sh --tests calls it with build/python; with --bench, torchft is
installed, too.

The environment lies outside the clone (~/.cache/recon/python-HASH), so that each clone need not install it again.
Its PyTorch is the caller's where RECON_PYTHON, or else python3, has one of 2.1 or later: it is used as it is, nothing
is added to its own environment. Where there is none, PyPI's is installed, and of the NVIDIA libraries that it is linked
with only the small ones; the large ones, 2 GB, are stood in for by generated libraries whose functions end the process
with their names, which does for a CPU. If tools/torch_smoke_test.py then fails, everything is installed.

May be killed and started again at any time, and by several at once: the last thing written of each part is its
marker, and a lock admits one. Exits with 0 also when something cannot be installed, and says so in one line: the tests
that need it are skipped, by name. Exits with 2 when RECON_PYTHON is set to something that will not do."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from typing import NoReturn

# Changed when environments that are there already do not do any more.
LAYOUT = "1"
# Other implementations of recon's file formats, and what builds and loads its extension module.
PACKAGES = ["numpy==2.4.6", "safetensors==0.8.0", "xxhash==4.1.0", "zstandard==0.25.0", "nanobind==3.1.0",
            "nanobind-backend==1.0.0", "scikit-build-core==1.1.2"]
TORCH = "torch==2.15.0"
TORCH_OLDEST = (2, 1)
# What PyTorch requires and is pure Python.
TORCH_REQUIRES = ["filelock==4.3.1", "fsspec==2026.9.0", "jinja2==3.1.6", "networkx==3.6.1", "sympy==1.14.0",
                  "typing_extensions==4.16.0"]
# What tests of deploy/ need, the schemas of Kubernetes and Ray. Not a part of the environment's name: they are added to
# one that is there.
LATER = ["kubernetes-validate==1.37.0", "ray==2.60.0"]
# What measurements compare with. What it requires comes first: by itself it would bring all of PyTorch's libraries, too.
TORCHFT = "torchft==0.2.0"
TORCHFT_REQUIRES = "opentelemetry-exporter-otlp-proto-http==1.45.2"
# The NVIDIA libraries that are called at import, too: they find that there is no device.
TORCH_LIBRARIES = ["nvidia-cuda-runtime==13.2.86", "nvidia-cuda-cupti==13.2.86", "nvidia-cufile==1.17.1.22"]
# These are loaded when a GPU is used, and not before.
LOADED_LATE = {"libcaffe2_nvrtc.so", "libtorch_cuda_linalg.so"}
NVIDIA = re.compile(r"lib(cu|nv|nccl)\w*\.so\.\d+$")

# The lock. Children hold it, too: what somebody who was killed has started still writes into the environment.
held_files: list[int] = []

TOOLS = pathlib.Path(__file__).resolve().parent


class Failed(Exception):
    """Something could not be installed; the text says what, in one line."""


def say(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr, flush=True)


def refuse(text: str) -> NoReturn:
    say(text)
    raise SystemExit(2)


def run(*command: object, env: dict[str, str] | None = None) -> str:
    """Returns what the command wrote to stdout. Raises Failed with the line of its stderr that says why it failed."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          env={**os.environ, **(env or {})}, pass_fds=held_files)
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR: ")]
        reason = (errors or lines or [f"exit code {done.returncode}"])[-1]
        if "(from versions: none)" in done.stderr:
            reason += " at the package index, or the index cannot be reached"
        raise Failed(reason.removeprefix("ERROR: "))
    return done.stdout


def pip(environment: pathlib.Path, *arguments: object) -> None:
    # Wheels are unpacked beside where they go to: /tmp may be small, and a move within a file system copies nothing.
    scratch = environment / "tmp"
    scratch.mkdir(exist_ok=True)
    run(environment / "bin/python", "-m", "pip", "--disable-pip-version-check", "--no-input", "-q", *arguments,
        env={"TMPDIR": str(scratch)})
    shutil.rmtree(scratch)


def torch_of(python: str) -> tuple[int, ...] | None:
    """The version of the PyTorch that this Python has, or None; nothing is imported."""
    look = "import importlib.metadata as m; print(m.version('torch'))"
    try:
        found = re.match(r"(\d+)\.(\d+)\.(\d+)", run(python, "-c", look))
    except Failed:
        return None
    return tuple(int(number) for number in found.groups()) if found else None


def version_text(version: tuple[int, ...]) -> str:
    return ".".join(str(number) for number in version)


def choose_python() -> tuple[str, tuple[int, ...] | None]:
    """Returns a Python and the version of its PyTorch, None where one has to be installed."""
    named = os.environ.get("RECON_PYTHON")
    python = shutil.which(named or "python3")
    if python is None:
        refuse(f"RECON_PYTHON={named}: there is no such program" if named else "there is no python3 in PATH")
    version = torch_of(python)
    if version and version >= TORCH_OLDEST:
        return python, version
    if named and version:
        refuse(f"RECON_PYTHON={named} has PyTorch {version_text(version)}, which is older than "
               f"{version_text(TORCH_OLDEST)}")
    return python, None


def place_of(python: str, torch: tuple[int, ...] | None) -> pathlib.Path:
    """Another Python or other packages make another environment."""
    build = run(python, "-c", "import sys; print(sys.version, sys.base_prefix)")
    parts = [LAYOUT, build, *PACKAGES, *TORCH_REQUIRES, TORCH, *TORCH_LIBRARIES]
    if torch:
        parts += [os.path.realpath(os.path.dirname(python)), version_text(torch)]
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    return cache / "recon" / f"python-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:12]}"


def site_packages(environment: pathlib.Path) -> pathlib.Path:
    return next(environment.glob("lib/python3*/site-packages"))


def search_path(python: str, *flags: str) -> list[str]:
    """Where this Python looks for modules; with -S, those of its own library."""
    paths: list[str] = json.loads(run(python, *flags, "-c", "import json, sys; print(json.dumps(sys.path))"))
    return paths


def make_base(environment: pathlib.Path, python: str, torch: tuple[int, ...] | None) -> None:
    """Everything but PyTorch. What the caller's PyTorch came with is used, too, in the versions that it has."""
    marker = environment / "installed"
    if marker.exists():
        return
    say(f"installing Python packages for the tests: {' '.join(PACKAGES)}")
    shutil.rmtree(environment, ignore_errors=True)
    run(python, "-m", "venv", environment)
    packages = PACKAGES + TORCH_REQUIRES
    if torch:
        own = search_path(python, "-S")
        folders = [path for path in search_path(python) if path and path not in own]
        (site_packages(environment) / "caller.pth").write_text("\n".join(folders) + "\n")
        packages = [package.split("==")[0] for package in PACKAGES]
    pip(environment, "install", *packages)
    marker.touch()


def undefined_and_defined(library: pathlib.Path) -> tuple[set[str], set[str]]:
    """The names of dynamic symbols that a library needs from others, and those that it has."""
    undefined: set[str] = set()
    defined: set[str] = set()
    for line in run("readelf", "-W", "--dyn-syms", library).splitlines():
        fields = line.split()
        if len(fields) < 8 or not fields[0].rstrip(":").isdigit():
            continue
        if fields[6] != "UND":
            defined.add(fields[7].split("@")[0])
        elif fields[4] == "GLOBAL":
            undefined.add(fields[7].split("@GLIBC")[0])
    return undefined, defined


def needed_by(library: pathlib.Path) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-W", "-d", library))


def make_stand_ins(packages: pathlib.Path) -> tuple[int, int]:
    """Makes the libraries that PyTorch is linked with and that are not there, in their own place, each with every
    function that is missing. Returns the numbers of libraries and functions."""
    ours = sorted((packages / "torch/lib").glob("*.so*"))
    real = sorted(packages.glob("nvidia/*/lib/*.so*"))
    undefined: set[str] = set()
    defined: set[str] = set()
    needed: set[str] = set()
    for library in ours + real:
        wants, has = undefined_and_defined(library)
        defined |= has
        if library.parent.parent.name == "torch" and library.name not in LOADED_LATE:
            undefined |= wants
            needed |= set(needed_by(library))
    folder = packages / "nvidia/cu13/lib"
    missing = sorted(name for name in needed if NVIDIA.match(name) and not (folder / name).exists())
    functions = sorted(name.split("@")[0] for name in undefined if name.split("@")[0] not in defined
                       and re.match(r"(cu|nv|nccl)", name))
    source = folder / "stand_ins.c"
    source.write_text("#include <stdio.h>\n#include <stdlib.h>\n"
                      "#define MISSING(name) void name(void) { fputs(#name \" was called: this PyTorch is for CPUs, "
                      "tools/torch_environment.py made it\\n\", stderr); abort(); }\n"
                      + "".join(f"MISSING({name})\n" for name in functions))
    code = folder / "stand_ins.o"
    run("cc", "-w", "-O1", "-fPIC", "-fno-builtin", "-c", source, "-o", code)
    for name in missing:
        run("cc", "-shared", f"-Wl,-soname,{name}", code, "-o", folder / name)
    code.unlink()
    return len(missing), len(functions)


def download_and_unpack(environment: pathlib.Path, target: pathlib.Path, *requirements: str) -> None:
    # A wheel that is here whole is not downloaded again by whoever goes on after a kill.
    wheels = environment / "wheels"
    pip(environment, "download", "--no-cache-dir", "-d", wheels, *requirements)
    pip(environment, "install", "--no-index", "--find-links", wheels, "--target", target, *requirements)
    shutil.rmtree(wheels)


def smoke_test(environment: pathlib.Path, packages: pathlib.Path | None) -> None:
    """`packages` has all libraries that may be loaded: a CUDA toolkit of this machine must not hide what is missing."""
    run(environment / "bin/python", TOOLS / "torch_smoke_test.py", *([packages] if packages else []),
        env={"PYTHONPATH": str(packages)} if packages else {})


def install_torch(environment: pathlib.Path) -> str:
    """Returns what was installed. It is unpacked beside its place and moved there whole."""
    place = environment / "torch"
    fresh = environment / "torch.new"
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.rmtree(place, ignore_errors=True)
    say(f"installing {TORCH} for CPUs")
    try:
        download_and_unpack(environment, fresh, "--no-deps", TORCH, *TORCH_LIBRARIES)
        libraries, functions = make_stand_ins(fresh)
        smoke_test(environment, fresh)
        what = f"{TORCH} with {libraries} libraries that stand in for NVIDIA's ({functions} functions)"
    except Failed as failure:
        if not (fresh / "torch").is_dir():
            raise
        say(f"{TORCH} does not work without all that it requires, so that is installed, too: 3 GB ({failure})")
        shutil.rmtree(fresh)
        download_and_unpack(environment, fresh, TORCH)
        smoke_test(environment, fresh)
        what = f"{TORCH} with all that it requires"
    fresh.rename(place)
    (site_packages(environment) / "torch.pth").write_text(f"{place}\n")
    return what


def add_torch(environment: pathlib.Path, python: str, torch: tuple[int, ...] | None) -> None:
    marker = environment / "torch-installed"
    if marker.exists():
        return
    started = time.monotonic()
    if torch:
        try:
            smoke_test(environment, None)
        except Failed as failure:
            raise Failed(f"that of {python} does not work, RECON_PYTHON may name another: {failure}") from failure
        what = f"torch=={version_text(torch)} of {python}"
    else:
        what = install_torch(environment)
    say(f"the tests have {what}, after {time.monotonic() - started:.0f} s")
    marker.write_text(what + "\n")


def add_later(environment: pathlib.Path) -> None:
    marker = environment / "later-installed"
    wanted = "\n".join(LATER)
    if marker.exists() and marker.read_text() == wanted:
        return
    say(f"installing Python packages for the tests: {' '.join(LATER)}")
    pip(environment, "install", *LATER)
    marker.write_text(wanted)


def add_torchft(environment: pathlib.Path) -> None:
    marker = environment / "torchft-installed"
    if marker.exists() and marker.read_text() == TORCHFT:
        return
    say(f"installing a Python package for measurements: {TORCHFT}")
    pip(environment, "install", TORCHFT_REQUIRES)
    pip(environment, "install", "--no-deps", TORCHFT)
    run(environment / "bin/python", "-c", "import torchft.local_sgd")
    marker.write_text(TORCHFT)


def link(path: pathlib.Path, environment: pathlib.Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.symlink_to(environment)
    fresh.replace(path)


def main() -> int:
    bench = sys.argv[1:2] == ["--bench"]
    arguments = sys.argv[1 + bench:]
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__)
        return 0 if arguments in (["-h"], ["--help"]) else 2
    python, torch = choose_python()
    environment = place_of(python, torch)
    environment.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{environment}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that installs into {environment}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        held_files.append(lock.fileno())
        part = "packages of PyPI"
        try:
            make_base(environment, python, torch)
            part = "PyTorch"
            add_torch(environment, python, torch)
            part = "Ray or the schemas of Kubernetes"
            add_later(environment)
            if bench:
                part = "torchft"
                add_torchft(environment)
        except Failed as failure:
            say(f"{part} cannot be had; what needs it will say that it was skipped ({failure})")
    link(pathlib.Path(arguments[0]), environment)
    return 0


if __name__ == "__main__":
    sys.exit(main())
