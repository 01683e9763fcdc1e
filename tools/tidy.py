#!/usr/bin/env python3
"""Checks what a compiler does not: include directions between layers, dead files, switched-off tests,
formatting, lengths of files and functions, sizes of classes, clocks and sleeps. Prints one line a finding;
exits 1 if there is any."""

import pathlib
import re
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
import cpp_outline  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = {".h", ".cc", ".cu", ".cuh"}
COUNTED = {".py", ".proto"}  # Besides, files of which only the lines are counted.

# What each folder may include, besides itself, proto/ and libraries. The longest prefix of a file counts.
ALLOWED = {
    "common/base": [],
    "common/cli": ["common/base"],
    "common/json": ["common/base"],
    "common/metrics": ["common/base"],
    "common/tensor": ["common/base"],
    "common/trace": ["common/base"],
    "common/codec": ["common/base", "common/tensor", "common/trace"],
    "common/collective": ["common/base", "common/codec"],
    "common/optim": ["common/base", "common/tensor", "common/codec"],
    "common/storage": ["common/base"],
    "common/snapshot": ["common/base", "common/tensor", "common/storage"],
    "common/transport": ["common/base"],
    "common/shm": ["common/base", "common/transport"],
    "common/ucx": ["common/base", "common/transport"],
    "common/rpc": ["common/base", "common/tensor", "common/codec", "common/trace", "common/transport"],
    "common/web": ["common/base", "common/metrics", "common/rpc"],
    "server/store": ["common/base", "common/tensor", "common/codec", "common/optim", "server/sync"],
    "server/sync": ["common/base"],
    "server/scheduler": ["common/base"],
    "server/membership": ["common/base"],
    "server/tuning": ["common/base", "common/codec"],
    "server/history": ["common/base", "common/storage"],
    "server/durability": ["common/base", "common/tensor", "common/codec", "common/optim", "common/storage", "common/snapshot", "common/trace", "server/store", "server/sync"],
    "server/trace": ["common/base", "common/trace"],
    "server/collective": ["common/base", "common/collective"],
    # From the bottom to the top; each room may use those above it in this list.
    "server/data_plane": ["common", "server/durability", "server/store", "server/sync"],
    "server/cluster": ["common", "server/data_plane", "server/durability"],
    "server/recovery": ["common", "server/cluster", "server/data_plane", "server/durability", "server/store"],
    "server/control": ["common", "server/cluster", "server/data_plane", "server/durability", "server/membership",
                       "server/recovery", "server/scheduler", "server/sync", "server/tuning"],
    "server/access": ["common/base"],
    "server/rpc": ["common", "server/access", "server/cluster", "server/collective", "server/control", "server/recovery",
                   "server/trace"],
    "server/dashboard": ["common", "server/history"],
    "server/process": ["common", "server"],
    "server": ["common/base", "common/rpc", "server/process"],
    "worker/data": ["common/base"],
    "worker/machine": ["common/base"],
    "worker/encode": ["common/base", "common/tensor", "common/codec"],
    "worker/model": ["common/base", "common/tensor", "common/codec", "worker/data", "worker/encode", "worker/cuda"],
    "worker/cuda": ["common/base", "common/tensor", "common/codec", "worker/encode", "worker/model", "worker/data"],
    "worker/comm": ["common", "worker/encode"],
    "worker/collective": ["common"],
    "worker/training": ["common", "worker/comm", "worker/data", "worker/encode", "worker/machine"],
    "worker/process": ["common", "worker"],
    "worker/python": ["common", "worker"],
    "worker": ["common/base", "common/rpc", "worker/process"],
    "tools": ["common", "tools"],
    "tools/cmake": ["tools"],
    # Replays a server's log without a server, and knows the models that workers have.
    "tools/reconctl": ["common", "tools", "server", "worker/model"],
    # Measures the encoders of a GPU where they are, and pushes as a worker does.
    "tools/bench": ["common", "server", "tools", "worker/comm", "worker/cuda", "worker/model", "worker/training"],
    "tests": ["common", "server", "worker", "tools", "tests"],
}
# Pure code: no threads, clock, I/O or gRPC.
PURE = ["server/collective", "server/store", "server/sync", "server/scheduler", "server/membership", "server/tuning"]
IMPURE_INCLUDES = ["<thread>", "<mutex>", "<atomic>", "<fstream>", "<unistd.h>", "common/base/mutex.h", "absl/time/clock.h",
                   "common/base/clock.h", "common/base/sleep.h", "grpc", "rocksdb"]
GRPC_ONLY = ["common/rpc", "server/rpc", "worker/collective", "worker/comm", "tests", "tools"]
# The largest that may be. Files: lines, of Python and proto, too. Functions: lines, outside tests. Classes: those in
# headers below server/.
LARGEST = {"file lines": 500, "function lines": 70, "public methods": 25, "members": 30, "clock": 0}
# Only common/base reads clocks and sleeps: code that decides is given the time, and who waits, waits for a condition.
CLOCK = re.compile(r"\babsl::(?:Now|SleepFor)\b|\bstd::this_thread::sleep_(?:for|until)\b")
OFF = re.compile(r"\[\.\]|\[!hide\]|\[!mayfail\]|DISABLED_|#if 0\b")


def files():
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                            capture_output=True, text=True, check=True).stdout.split()
    return [pathlib.Path(name) for name in listed if (ROOT / name).exists()]


def layer_of(path):
    name = path.as_posix()
    matches = [layer for layer in ALLOWED if name.startswith(layer + "/")]
    return max(matches, key=len) if matches else None


def includes(text):
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#include\s+(["<][^">]+[">])', line)
        if match:
            yield number, match.group(1)


def check_includes(path, text, report):
    layer = layer_of(path)
    if layer is None:
        return
    for number, include in includes(text):
        where = f"{path}:{number}"
        name = include.strip('"<>')
        if include.startswith('"') and name.split("/")[0] in ("common", "server", "worker", "tools", "tests"):
            allowed = [layer, *ALLOWED[layer]]
            if not any(name.startswith(prefix + "/") for prefix in allowed):
                report(f"{where}: {layer} must not include {name}")
        if layer in PURE and any(word in include for word in IMPURE_INCLUDES):
            report(f"{where}: {layer} is pure and must not include {name}")
        if name.startswith("grpc") and not any(path.as_posix().startswith(prefix + "/") for prefix in GRPC_ONLY):
            report(f"{where}: gRPC stays in {', '.join(GRPC_ONLY)}")
    # Highway includes *-inl.h once a target.
    if path.suffix == ".h" and "#pragma once" not in text and not path.name.endswith("-inl.h"):
        report(f"{path}:1: no #pragma once")


def check_dead(paths, texts, report):
    cmake = "".join(text for path, text in texts.items() if path.name == "CMakeLists.txt")
    everything = {path: text for path, text in texts.items() if path.suffix in SOURCE}
    for path in paths:
        if path.suffix in (".cc", ".cu") and path.name not in cmake and path.parent.name != "cmake":
            report(f"{path}: is built by no CMakeLists.txt")
        if path.suffix == ".h" and not any(f'"{path.as_posix()}"' in text for other, text in everything.items()
                                           if other != path):
            report(f"{path}: is included by nothing")


def check_switched_off(path, text, report):
    if path.parts[0] != "tests" or path.suffix not in SOURCE:
        return
    for number, line in enumerate(text.splitlines(), 1):
        if OFF.search(line):
            report(f"{path}:{number}: a switched-off test")
    for match in re.finditer(r"\bTEST_CASE\((.*?)\)\s*\{", text, re.DOTALL):
        if not re.search(r'"\[\w+', match.group(1)):
            report(f"{path}:{text.count(chr(10), 0, match.start()) + 1}: a test without a tag")


def measure(path, text):
    """Yields (rule, what it is about, number, line) for each thing in a file that has a largest size."""
    name = path.as_posix()
    yield "file lines", name, text.count("\n"), 1
    if path.suffix not in SOURCE:
        return
    functions, classes = cpp_outline.outline(text)
    for function in functions if path.parts[0] != "tests" else []:
        yield "function lines", f"{name} {function.name}", function.lines, function.line
    for one in classes if path.parts[0] == "server" and path.suffix == ".h" else []:
        yield "public methods", f"{name} {one.name}", one.public_methods, one.line
        yield "members", f"{name} {one.name}", one.members, one.line
    if not name.startswith("common/base/"):
        yield "clock", name, len(CLOCK.findall(cpp_outline.code_of(text))), 1


def too_large(texts):
    """{(rule, what): (number, line)} of what is larger than it may be; of functions of one name, the largest."""
    found = {}
    for path, text in texts.items():
        for rule, what, number, line in measure(path, text) if path.suffix in SOURCE | COUNTED else []:
            if number > max(LARGEST[rule], found.get((rule, what), (0, 0))[0]):
                found[rule, what] = (number, line)
    return found


def check_sizes(texts, report):
    for (rule, what), (number, line) in too_large(texts).items():
        file, _, name = what.partition(" ")
        if rule == "clock":
            report(f"{file}: {number} calls of absl::Now, SleepFor or sleep_for: use common/base's clock.h and sleep.h")
        else:
            report(f"{file}:{line}: {name + ' has ' if name else ''}{number} {rule}, at most {LARGEST[rule]} are allowed")


def check_format(paths, report):
    formatter = shutil.which("clang-format")
    if formatter is None:
        return
    sources = [str(path) for path in paths if path.suffix in SOURCE]
    done = subprocess.run([formatter, "--dry-run", "--Werror", "-ferror-limit=1", *sources], cwd=ROOT,
                          capture_output=True, text=True)
    for line in done.stderr.splitlines():
        if "error:" in line:
            report(line.split("error:")[0] + "is not formatted: run clang-format -i")


def main():
    findings = []
    paths = files()
    texts = {path: (ROOT / path).read_text(errors="replace") for path in paths
             if path.suffix in SOURCE | COUNTED or path.name == "CMakeLists.txt"}
    for path, text in texts.items():
        if path.suffix in SOURCE:
            check_includes(path, text, findings.append)
            check_switched_off(path, text, findings.append)
    check_dead(paths, texts, findings.append)
    check_sizes(texts, findings.append)
    check_format(paths, findings.append)
    for finding in sorted(set(findings)):
        print(finding)
    print(f"tidy: {len(texts)} files, {len(set(findings))} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
