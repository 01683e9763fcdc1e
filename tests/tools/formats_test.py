#!/usr/bin/env python3
"""Files that recon writes, read by others: safetensors by the reference library (and the reverse), snapshots and push
logs by a second implementation (format_reader.py). Exits 77 (skipped) without the packages of tools/setup.sh."""

import argparse
import io
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import time

try:
    import numpy as np
    import safetensors
    import safetensors.numpy as st
    import xxhash  # noqa: F401
    import zstandard  # noqa: F401
except ImportError as error:
    print(f"SKIP: {error}: run tools/setup.sh")
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import format_reader  # noqa: E402
import torch_reader  # noqa: E402

HAS_TORCH = subprocess.run(["/usr/bin/python3", "-c", "import torch, numpy"], capture_output=True, check=False).returncode == 0


class Reconctl:
    def __init__(self, bin_directory):
        self.program = bin_directory / "reconctl"

    def run(self, *arguments):
        return subprocess.run([self.program, *map(str, arguments)], capture_output=True, timeout=60)

    def ok(self, *arguments):
        done = self.run(*arguments)
        assert done.returncode == 0, (arguments, done.stderr.decode())
        return done.stdout


def check_torch(path, expected):
    """The file by our own reader and, where the machine has PyTorch, by that."""
    read = torch_reader.load(path)
    assert list(read) == sorted(expected)
    for name, tensor in expected.items():
        assert read[name].tobytes() == tensor.tobytes() and read[name].shape == tensor.shape, name
    offsets = torch_reader.offsets(path)
    assert len(offsets) == len(expected) and all(offset % 64 == 0 for offset in offsets.values()), offsets
    if not HAS_TORCH:
        return
    script = ("import sys, torch, numpy\nfor name, tensor in torch.load(sys.argv[1]).items():\n"
              "    numpy.save(f'{sys.argv[2]}-{list(name.encode())}.npy'.replace(' ', ''), tensor.contiguous().numpy())")
    subprocess.run(["/usr/bin/python3", "-c", script, path, path], check=True, timeout=120)
    for name, tensor in expected.items():
        loaded = np.load(f"{path}-{list(name.encode())}.npy".replace(" ", ""))
        assert loaded.dtype == np.float32 and loaded.tobytes() == tensor.tobytes() and loaded.shape == tensor.shape, name


def check_round_trip(ctl, work):
    random = np.random.default_rng(7)
    tensors = {
        "embedding.weight": random.standard_normal((1100, 700), dtype=np.float32),  # More than a shard.
        "ünicode \"name\"": random.standard_normal((3, 1, 5), dtype=np.float32),
        "bias": np.array([np.nan, np.inf, -0.0, 1e-45, 3.4e38], dtype=np.float32),
        "half": random.standard_normal((257,)).astype(np.float16),
    }
    st.save_file(tensors, work / "reference.safetensors", metadata={"from": "the reference library"})
    ctl.ok("snapshot", "import", work / "reference.safetensors", "--model", "m", "--output", work / "imported")
    ctl.ok("snapshot", "verify", work / "imported")
    ctl.ok("snapshot", "export", work / "imported", "--output", work / "ours.safetensors")
    ours = st.load_file(work / "ours.safetensors")
    assert sorted(ours) == sorted(tensors)
    for name, tensor in tensors.items():
        assert ours[name].dtype == np.float32 and ours[name].shape == tensor.shape
        assert ours[name].tobytes() == tensor.astype(np.float32).tobytes(), name
        shown = np.load(io.BytesIO(ctl.ok("snapshot", "cat", work / "imported", name)))
        assert shown.tobytes() == ours[name].tobytes() and shown.shape == tensor.shape, name
    # Where a lease cannot be had: a warning, and none of it in what was asked for.
    mark = work / "imported/retired/RETIRED-0000000000000001"
    mark.parent.mkdir()
    mark.touch()
    shown = ctl.run("snapshot", "cat", work / "imported", "bias")
    assert shown.returncode == 0 and b"is being removed" in shown.stderr, shown
    assert np.load(io.BytesIO(shown.stdout)).tobytes() == tensors["bias"].tobytes()
    mark.unlink()
    # In several files, with an index.
    ctl.ok("snapshot", "export", work / "imported", "--output", work / "sharded", "--file-bytes", 10_000)
    index = json.loads((work / "sharded/model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in ours.values())
    assert len(set(index["weight_map"].values())) > 1
    for name, file in index["weight_map"].items():
        assert st.load_file(work / "sharded" / file)[name].tobytes() == ours[name].tobytes()
    # For torch.load(), as one file and as several.
    ctl.ok("snapshot", "export", work / "imported", "--format", "torch", "--output", work / "ours.pt")
    check_torch(work / "ours.pt", ours)
    ctl.ok("snapshot", "export", work / "imported", "--format", "torch", "--output", work / "torch", "--file-bytes", 10_000)
    weight_map = json.loads((work / "torch/pytorch_model.bin.index.json").read_text())["weight_map"]
    assert weight_map.keys() == ours.keys() and len(set(weight_map.values())) > 1
    for file in set(weight_map.values()):
        check_torch(work / "torch" / file, {name: ours[name] for name in ours if weight_map[name] == file})
    # Without --format the ending of the name says it; a name that says something else than the flag is refused.
    for name in ("by-ending.pt", "by-ending.pth", "by-ending.bin", "by-ending.ckpt"):
        ctl.ok("snapshot", "export", work / "imported", "--output", work / name)
        check_torch(work / name, ours)
    ctl.ok("snapshot", "export", work / "imported", "--output", work / "without-ending")
    assert sorted(st.load_file(work / "without-ending")) == sorted(ours)
    for name, format_name in (("other.pt", "safetensors"), ("other.safetensors", "torch")):
        done = ctl.run("snapshot", "export", work / "imported", "--output", work / name, "--format", format_name)
        assert done.returncode == 2 and name.encode() in done.stderr and b"--format" in done.stderr, done
        assert not (work / name).exists()
    # Again: the model comes along, so that the state is the same.
    ctl.ok("snapshot", "import", work / "ours.safetensors", "--output", work / "again")
    diff = json.loads(ctl.ok("snapshot", "diff", work / "imported", 0, 0, "--other", work / "again", "--json"))
    assert diff["equal"] and all(t["pages_changed"] == 0 and t["max_change"] == 0 for t in diff["tensors"])
    refused = ctl.run("snapshot", "import", work / "ours.safetensors", "--output", work / "again")
    assert refused.returncode == 1 and b"is not empty" in refused.stderr


def file_of(header, data, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(begin, end, shape=(2,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def check_refusals(ctl, work):
    eight = bytes(8)
    broken = {
        "hole": file_of({"a": entry(0, 8), "b": entry(16, 24)}, bytes(24)),
        "hole at the front": file_of({"a": entry(8, 16)}, bytes(16)),
        "overlap": file_of({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12)),
        "the same bytes twice": file_of({"a": entry(0, 8), "b": entry(0, 8)}, eight),
        "trailing bytes": file_of({"a": entry(0, 8)}, bytes(9)),
        "data cut off": file_of({"a": entry(0, 8)}, bytes(7)),
        "duplicate name": file_of(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
                                  b'"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', eight),
        "absurd header": file_of({"a": entry(0, 8)}, eight, length=2**63),
        "header beyond the file": file_of({"a": entry(0, 8)}, eight, length=10_000),
        "header of 100 MB and one": file_of({"a": entry(0, 8)}, eight, length=100_000_001),
        "not JSON": file_of(b"{nonsense", eight),
        "not an object": file_of(b"[1, 2]", eight),
        "size not of the shape": file_of({"a": entry(0, 8, (3,))}, eight),
        "end before begin": file_of({"a": entry(8, 0)}, eight),
        "shape that overflows": file_of({"a": entry(0, 8, (2**40, 2**40))}, eight),
        "negative": file_of(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}}', eight),
        "unknown type": file_of({"a": entry(0, 8, (2,), "F33")}, eight),
        "metadata that is no string": file_of({"__metadata__": {"x": 1}, "a": entry(0, 8)}, eight),
        "too short": b"1234",
        "empty": b"",
    }
    for what, data in broken.items():
        path = work / "broken.safetensors"
        path.write_bytes(data)
        done = ctl.run("snapshot", "import", path, "--model", "m", "--output", work / "never")
        assert done.returncode == 4, (what, done.returncode, done.stderr)
        assert b"safetensors: " in done.stderr and not (work / "never").exists(), (what, done.stderr)
        # The reference library agrees, but for a repeated name, of which it takes one.
        if what != "duplicate name":
            try:
                safetensors.deserialize(data)
            except Exception:  # noqa: BLE001
                continue
            raise AssertionError(f"the reference library reads: {what}")
    good = file_of({"a": entry(0, 8)}, eight)
    (work / "broken.safetensors").write_bytes(good)
    ctl.ok("snapshot", "import", work / "broken.safetensors", "--model", "m", "--output", work / "whole")
    wrong = work / "wrong.safetensors"
    st.save_file({"a": np.arange(4)}, wrong)
    done = ctl.run("snapshot", "import", wrong, "--model", "m", "--output", work / "never")
    assert done.returncode == 2 and b"nothing can be trained" in done.stderr and b"a I64 [4]" in done.stderr


def run_job(bin_directory, work, sync):
    data = work / f"job-{sync}"
    server = subprocess.Popen([bin_directory / "recon-server", "--data", data, "--listen", "127.0.0.1:0", "--sync", sync,
                               "--data-epochs", "1000", "--optimizer", "momentum", "--learning-rate", "0.001",
                               "--snapshot-interval", "1h", "--batch", "20", "--split-samples", "200"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while not (data / "ADDRESS").exists() or not (data / "ADDRESS").read_text():
            assert time.monotonic() < deadline and server.poll() is None
            time.sleep(0.02)
        address = (data / "ADDRESS").read_text().strip()
        worker = subprocess.Popen([bin_directory / "recon-worker", "--server", address, "--name", "w", "--device", "cpu",
                                   "--data", "clusters:4000,500,16,4", "--model", "mlp:16-24-4"],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline, pushes = time.monotonic() + 60, 0
        while pushes < 500:
            assert time.monotonic() < deadline and worker.poll() is None, pushes
            shown = subprocess.run([bin_directory / "reconctl", "status", "--server", address, "--json"],
                                   capture_output=True, check=False)
            pushes = int(json.loads(shown.stdout).get("pushes", 0)) if shown.returncode == 0 else 0
        worker.kill()
        worker.wait()
    finally:
        server.kill()
        server.wait()
    return data


def check_formats(ctl, bin_directory, work, sync):
    data = run_job(bin_directory, work, sync)
    first = format_reader.Snapshot(data / "snapshots", 1)
    shown = json.loads(ctl.ok("snapshot", "show", data / "snapshots", 1, "--json"))
    assert first.root.hex() == shown["state_root"] and first.sequence == shown["sequence"]
    records = list(format_reader.log_records(data / "log", first.log_from))
    assert len(records) > 50, len(records)
    assert [r[0] for r in records] == list(range(first.log_from, first.log_from + len(records)))
    # The worker's number is given out after the first snapshot or before: a record of its own, or part of it.
    assert {kind for _, kind, _ in records} - {3} == ({1, 2} if sync == "bsp" else {1})
    state = format_reader.control_state(first, records)
    assert state["workers"] == {"w": 1}, state
    # Frames are the server's own format: magic first.
    assert len({payload[:4] for _, kind, payload in records if kind == 1}) == 1
    stats = json.loads(ctl.ok("snapshot", "stats", data / "snapshots", "--json"))
    assert stats["raw_bytes"] == sum(plane["raw_bytes"] for plane in stats["planes"]) == sum(map(len, first.chunks.values()))
    assert abs(sum(t["stored_bytes"] for t in stats["tensors"]) - stats["stored_bytes"]) < 1
    # The state after any logged push.
    assert state["splits"]
    last, roots = records[-1][0], set()
    for sequence in (first.sequence, first.sequence + 1, first.sequence + len(records) // 2, last):
        out = work / f"restored-{sync}-{sequence}"
        ctl.ok("snapshot", "restore", data / "snapshots", "--log", data / "log", "--to-sequence", sequence, "--output", out)
        restored = format_reader.Snapshot(out, 1)
        expected = format_reader.control_state(first, [r for r in records if r[0] <= sequence])
        assert format_reader.control_state(restored, []) == expected
        assert sum(p["splits"] for p in json.loads(ctl.ok("snapshot", "show", out, 1, "--json"))["passes"]) == len(
            expected["splits"])
        assert restored.sequence == sequence
        roots.add(restored.root)
    assert first.root in roots and len(roots) >= 3
    done = ctl.run("snapshot", "restore", data / "snapshots", "--log", data / "log", "--to-sequence", last + 1, "--output",
                   work / "never")
    assert done.returncode == 5 and f"the log goes to sequence {last}".encode() in done.stderr
    assert not (work / "never").exists()


def check_retention(ctl, work):
    """pin and prune; and what they refuse."""
    st.save_file({"a": np.ones(100, np.float32)}, work / "one.safetensors")
    kept = work / "kept"
    ctl.ok("snapshot", "import", work / "one.safetensors", "--model", "m", "--output", kept)
    ctl.ok("snapshot", "pin", kept, 1)
    assert (kept / "pins/PIN-0000000000000001").read_bytes() == b""
    pruned = json.loads(ctl.ok("snapshot", "prune", kept, "--keep-last", 2, "--dry-run", "--json"))
    assert pruned == {"removed": [], "dry_run": True}
    ctl.ok("snapshot", "prune", kept, "--keep-last", 2)
    ctl.ok("snapshot", "pin", kept, 1, "--remove")
    assert not list((kept / "pins").iterdir())
    for arguments, code, word in ((("prune", kept, "--keep-last", 1), 2, b"--keep-last"), (("prune", kept), 2, b"--keep-last"),
                                  (("pin", kept, 7), 5, b"MANIFEST-0000000000000007"), (("pin", kept, 0), 2, b"generation"),
                                  (("prune", work / "nowhere", "--keep-last", 2), 5, b"nowhere"),
                                  (("stats", kept, 9), 5, b"MANIFEST-0000000000000009")):
        done = ctl.run("snapshot", *arguments)
        assert done.returncode == code and word in done.stderr, (arguments, done)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="where the programs are")
    options = parser.parse_args()
    ctl = Reconctl(options.bin)
    with tempfile.TemporaryDirectory(prefix="recon-formats-") as work:
        work = pathlib.Path(work)
        check_round_trip(ctl, work)
        check_refusals(ctl, work)
        check_retention(ctl, work)
        for sync in ("asp", "bsp"):
            check_formats(ctl, options.bin, work, sync)
    print("formats: all agree" + ("" if HAS_TORCH else " (there is no PyTorch here to load what is exported for it)"))


if __name__ == "__main__":
    main()
