#!/usr/bin/env python3
"""Weights from elsewhere: files that the reference library writes, in its own order, start jobs and come back bit by bit.
Exits 77 (skipped) without the packages of tools/setup.sh."""

import argparse
import io
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import torch_reader  # noqa: E402
from formats_test import Reconctl, entry, file_of, np, st  # noqa: E402


class Job:
    """A server that begins with imported weights, and workers."""

    def __init__(self, bin_directory, data, initial, *flags):
        self.bin, self.data, self.initial, self.flags = bin_directory, data, initial, flags
        self.server = None

    def __enter__(self):
        (self.data / "ADDRESS").unlink(missing_ok=True)
        self.server = subprocess.Popen([self.bin / "recon-server", "--data", self.data, "--listen", "127.0.0.1:0",
                                        "--from-snapshot", self.initial, "--snapshot-keep", "1000", *self.flags],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.wait(lambda: (self.data / "ADDRESS").exists() and (self.data / "ADDRESS").read_text())
        self.address = (self.data / "ADDRESS").read_text().strip()
        return self

    def __exit__(self, *_):
        self.server.kill()
        self.server.communicate()

    def wait(self, condition):
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline and self.server.poll() is None
            time.sleep(0.02)

    def worker(self, *flags):
        return subprocess.Popen([self.bin / "recon-worker", "--server", self.address, "--device", "cpu", *map(str, flags)],
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def generations(self):
        shown = subprocess.run([self.bin / "reconctl", "snapshot", "list", self.data / "snapshots", "--json"],
                               capture_output=True, check=True)
        return [snapshot["generation"] for snapshot in json.loads(shown.stdout)]

    def drain(self):
        subprocess.run([self.bin / "reconctl", "drain", "--server", self.address], check=True, capture_output=True)
        errors = self.server.communicate(timeout=60)[1]
        assert self.server.returncode == 0, errors


def same(path, expected):
    """A file has these tensors and no others, bit by bit."""
    ours = st.load_file(path)
    assert sorted(ours) == sorted(expected), set(ours) ^ set(expected)
    for name, tensor in expected.items():
        assert ours[name].dtype == tensor.dtype and ours[name].shape == tensor.shape, name
        assert ours[name].tobytes() == tensor.tobytes(), name


def in_parts(directory, tensors, parts):
    """As Hugging Face folders have them."""
    directory.mkdir()
    names = sorted(tensors)
    weight_map = {}
    for i in range(parts):
        file = f"model-{i + 1:05}-of-{parts:05}.safetensors"
        st.save_file({name: tensors[name] for name in names[i::parts]}, directory / file, metadata={"format": "pt"})
        weight_map.update({name: file for name in names[i::parts]})
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values()), "more": {"any": [1, None]}},
             "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "config.json").write_text("{}")


def resnet18(random):
    """torchvision's tensors, and in the order of its modules which of them are trained."""
    tensors, trained = {}, []

    def add(name, *shape):
        tensors[name] = random.standard_normal(shape, dtype=np.float32)
        trained.append((name, shape))

    def norm(name, width):
        add(f"{name}.weight", width)
        add(f"{name}.bias", width)
        tensors[f"{name}.running_mean"] = random.standard_normal(width, dtype=np.float32)
        tensors[f"{name}.running_var"] = random.standard_normal(width, dtype=np.float32) ** 2
        tensors[f"{name}.num_batches_tracked"] = np.array(random.integers(1 << 40), dtype=np.int64)

    add("conv1.weight", 64, 3, 7, 7)
    norm("bn1", 64)
    before = 64
    for layer, width in enumerate((64, 128, 256, 512), 1):
        for block in range(2):
            name = f"layer{layer}.{block}"
            add(f"{name}.conv1.weight", width, before, 3, 3)
            norm(f"{name}.bn1", width)
            add(f"{name}.conv2.weight", width, width, 3, 3)
            norm(f"{name}.bn2", width)
            if before != width:
                add(f"{name}.downsample.0.weight", width, before, 1, 1)
                norm(f"{name}.downsample.1", width)
            before = width
    add("fc.weight", 1000, 512)
    add("fc.bias", 1000)
    return tensors, trained


def gpt2(random, width=96, layers=12, words=5000, context=128):
    """OpenAI's names and layers, narrower; the head's weights are the embedding's."""
    tensors, trained = {}, []

    def add(name, *shape):
        tensors[f"transformer.{name}"] = random.standard_normal(shape, dtype=np.float32)
        trained.append((name, shape))

    add("wte.weight", words, width)
    add("wpe.weight", context, width)
    for layer in range(layers):
        for norm in ("ln_1", "ln_2"):
            add(f"h.{layer}.{norm}.weight", width)
            add(f"h.{layer}.{norm}.bias", width)
        for part, rows, columns in (("attn.c_attn", width, 3 * width), ("attn.c_proj", width, width),
                                    ("mlp.c_fc", width, 4 * width), ("mlp.c_proj", 4 * width, width)):
            add(f"h.{layer}.{part}.weight", rows, columns)
            add(f"h.{layer}.{part}.bias", columns)
        tensors[f"transformer.h.{layer}.attn.bias"] = np.tril(np.ones((1, 1, context, context), dtype=bool))
        tensors[f"transformer.h.{layer}.attn.masked_bias"] = np.array(-1e4, dtype=np.float32)
    add("ln_f.weight", width)
    add("ln_f.bias", width)
    tensors["transformer.empty"] = np.zeros((0, 7), dtype=np.float16)
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"].copy()
    return tensors, trained


def write_shapes(path, trained):
    path.write_text("".join(f"{name} {' '.join(map(str, shape))}\n" for name, shape in trained))


def start_and_export(ctl, bin_directory, work, name, initial, shapes, expected):
    """Nothing is trained, over a restart of the server: two workers are waited for, and there is one."""
    data = work / f"job-{name}"
    for _ in range(2):
        with Job(bin_directory, data, initial, "--workers-min", "2") as job:
            worker = job.worker("--data", "clusters:600,60", "--model", f"synthetic:{shapes}", "--tensor-group",
                                "*.1*.weight=some")
            job.wait(job.generations)
            job.drain()
            worker.kill()
            worker.communicate()
            ctl.ok("snapshot", "verify", data / "snapshots")
            ctl.ok("snapshot", "export", data / "snapshots", "--output", work / f"{name}.out")
            same(work / f"{name}.out", expected)


def check_models(ctl, bin_directory, work):
    random = np.random.default_rng(11)
    tensors, trained = resnet18(random)
    shapes = work / "resnet18.shapes"
    write_shapes(shapes, trained)
    st.save_file(tensors, work / "resnet18.safetensors")
    in_parts(work / "resnet18", tensors, 3)
    for source, name in ((work / "resnet18.safetensors", "one"), (work / "resnet18", "folder")):
        said = ctl.ok("snapshot", "import", source, "--carry", "*.running_*", "--output", work / f"resnet18-{name}")
        assert b"carried along, not trained: 60 tensors" in said, said
        start_and_export(ctl, bin_directory, work, f"resnet18-{name}", work / f"resnet18-{name}", shapes, tensors)
    tensors, trained = gpt2(random)
    expected = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    write_shapes(work / "gpt2.shapes", trained)
    st.save_file(tensors, work / "gpt2.safetensors")
    in_parts(work / "gpt2", tensors, 4)
    parts = sorted((work / "gpt2").glob("*.safetensors"))
    rules = ("--rename", "transformer.*=*", "--alias", "lm_head.weight=wte.weight")
    for source, name in (((work / "gpt2.safetensors",), "one"), (parts, "parts"),
                         ((work / "gpt2/model.safetensors.index.json",), "index")):
        ctl.ok("snapshot", "import", *source, *rules, "--model", f"synthetic:{work / 'gpt2.shapes'}", "--output",
               work / f"gpt2-{name}")
        start_and_export(ctl, bin_directory, work, f"gpt2-{name}", work / f"gpt2-{name}", work / "gpt2.shapes", expected)
    # What an export has: all comes along by itself; as several files, too, and for PyTorch.
    data = work / "job-gpt2-one/snapshots"
    ctl.ok("snapshot", "export", data, "--output", work / "gpt2-out", "--file-bytes", 1_000_000, "--state")
    ctl.ok("snapshot", "import", work / "gpt2-out", "--output", work / "gpt2-again")
    diff = json.loads(ctl.ok("snapshot", "diff", data, 0, 0, "--other", work / "gpt2-again", "--json"))
    assert len(diff["tensors"]) == len(trained) and all(t["pages_changed"] == 0 for t in diff["tensors"])
    ctl.ok("snapshot", "export", work / "gpt2-again", "--output", work / "gpt2-again.safetensors")
    same(work / "gpt2-again.safetensors", expected)
    ctl.ok("snapshot", "export", work / "gpt2-again", "--output", work / "gpt2.pt", "--format", "torch")
    loaded = torch_reader.load(work / "gpt2.pt")
    assert sorted(loaded) == sorted(expected)
    for name, tensor in expected.items():
        assert loaded[name].dtype == tensor.dtype and loaded[name].shape == tensor.shape, name
        assert loaded[name].tobytes() == tensor.tobytes(), name
    shown = np.load(io.BytesIO(ctl.ok("snapshot", "cat", work / "gpt2-again", "h.3.attn.bias")))
    assert shown.dtype == bool and shown.tobytes() == expected["h.3.attn.bias"].tobytes()


def mlp(random):
    return {"layer0.bias": random.standard_normal(32, dtype=np.float32),
            "layer0.weight": random.standard_normal((32, 64), dtype=np.float32),
            "layer1.bias": random.standard_normal(4, dtype=np.float32),
            "layer1.weight": random.standard_normal((4, 32), dtype=np.float32)}


DATA = ("--data", "clusters:2000,200,64,4")


def check_training(ctl, bin_directory, work):
    """Alphabetical, `layer0.bias` first; imported as the worker's model and without a word of it; trained, after which what is
    not trained is what it was."""
    tensors = mlp(np.random.default_rng(3))
    steps = np.array([7, 1 << 60], dtype=np.int64)
    st.save_file({**tensors, "steps": steps}, work / "mlp.safetensors")
    data = (work / "mlp.safetensors").read_bytes()
    header = json.loads(data[8:8 + struct.unpack_from("<Q", data)[0]])
    assert header["layer0.bias"]["data_offsets"] < header["layer0.weight"]["data_offsets"]
    for model in (("--model", "mlp:64-32-4"), ("--model", "a name"), ()):
        initial = work / f"mlp-{len(model)}{model[-1] if model else ''}"
        ctl.ok("snapshot", "import", work / "mlp.safetensors", "--output", initial, *model)
        data = work / f"job-{initial.name}"
        with Job(bin_directory, data, initial, "--snapshot-interval", "200ms", "--data-epochs", "3", "--exit-when-done") as job:
            worker = job.worker(*DATA, "--model", "mlp:64-32-4")
            errors = worker.communicate(timeout=60)[1]
            assert worker.returncode == 0, errors
            assert job.server.wait(timeout=60) == 0
        ctl.ok("snapshot", "export", data / "snapshots", "--output", work / "trained.safetensors")
        ours = st.load_file(work / "trained.safetensors")
        assert ours["steps"].tobytes() == steps.tobytes() and ours["steps"].dtype == np.int64
        assert sorted(ours) == sorted([*tensors, "steps"])
        assert all(ours[name].tobytes() != tensor.tobytes() for name, tensor in tensors.items())
        # The log goes on from a snapshot, and what is not trained with it.
        sequence = json.loads(ctl.ok("snapshot", "list", data / "snapshots", "--json"))[-1]["sequence"]
        past = work / f"past-{initial.name}"
        ctl.ok("snapshot", "restore", data / "snapshots", "--log", data / "log", "--to-sequence", sequence, "--output", past)
        ctl.ok("snapshot", "export", past, "--output", work / "past.safetensors")
        same(work / "past.safetensors", ours)
        ctl.ok("snapshot", "export", data / "snapshots", 1, "--output", work / "first.safetensors")
        same(work / "first.safetensors", {**tensors, "steps": steps})
        diff = json.loads(ctl.ok("snapshot", "diff", initial, 1, 1, "--other", data / "snapshots", "--json"))["tensors"]
        assert sorted(t["tensor"] for t in diff) == sorted(tensors)
        assert all(t["pages_changed"] == 0 and t["max_change"] == 0 for t in diff)
        diff = json.loads(ctl.ok("snapshot", "diff", initial, 1, 0, "--other", data / "snapshots", "--json"))["tensors"]
        assert all(t["pages_changed"] == t["pages"] and t["max_change"] > 0 for t in diff)


def check_restart(ctl, bin_directory, work):
    """A server that died before it had a snapshot begins with the imported weights once more: of its job it knows the model."""
    tensors = mlp(np.random.default_rng(5))
    st.save_file(tensors, work / "again.safetensors")
    ctl.ok("snapshot", "import", work / "again.safetensors", "--output", work / "again")
    data = work / "job-again"
    for start in range(2):
        with Job(bin_directory, data, work / "again", "--workers-min", "2") as job:
            worker = job.worker(*DATA, "--model", "mlp:64-32-4") if start == 0 else None
            job.wait(job.generations)
            job.drain()
            if worker is not None:
                worker.kill()
                worker.communicate()
        ctl.ok("snapshot", "export", data / "snapshots", "--output", work / "again.out")
        same(work / "again.out", tensors)
        for manifest in (data / "snapshots/manifests").iterdir():
            manifest.unlink()


def check_differences(ctl, bin_directory, work):
    """All that does not fit is said at once: by an import, by the server to a worker, by diff."""
    tensors = mlp(np.random.default_rng(4))
    wrong = {"layer0.bias": np.zeros(33, np.float32), "layer0.weight": np.zeros((32, 64), np.int32),
             "layer1.weight": tensors["layer1.weight"], "head.weight": np.zeros((2, 2), np.float32)}
    st.save_file(wrong, work / "wrong.safetensors")
    expected = (b"another shape: layer0.bias is [33], expected [32]", b"another type: layer0.weight is I32",
                b"missing: layer1.bias [4]", b"left over: head.weight F32 [2,2]")
    done = ctl.run("snapshot", "import", work / "wrong.safetensors", "--model", "mlp:64-32-4", "--output", work / "never")
    assert done.returncode == 2 and all(text in done.stderr for text in expected), done
    assert b"4 tensors" in done.stderr and not (work / "never").exists()
    # The server says the same to a worker, and goes on waiting for one that fits.
    ctl.ok("snapshot", "import", work / "wrong.safetensors", "--output", work / "wrong")
    with Job(bin_directory, work / "job-wrong", work / "wrong", "--workers-min", "2") as job:
        worker = job.worker(*DATA, "--model", "mlp:64-32-4")
        errors = worker.communicate(timeout=60)[1]
        assert worker.returncode == 2 and all(text in errors for text in expected), errors
        write_shapes(work / "right.shapes", [(n, wrong[n].shape) for n in ("head.weight", "layer1.weight", "layer0.bias")])
        worker = job.worker(*DATA, "--model", f"synthetic:{work / 'right.shapes'}")
        job.wait(job.generations)
        job.drain()
        worker.kill()
        worker.communicate()
    done = ctl.run("snapshot", "diff", work / "wrong", 0, 0, "--other", work / "again")
    assert done.returncode == 2 and b"missing: head.weight [2,2]" in done.stderr, done
    assert b"another shape: layer0.bias is [32], expected [33]" in done.stderr, done
    ctl.ok("snapshot", "export", work / "job-wrong/snapshots", "--output", work / "wrong.out")
    same(work / "wrong.out", wrong)


def small_float(bits, exponent_bits, mantissa_bits, infinities):
    exponent, mantissa = bits >> mantissa_bits & (1 << exponent_bits) - 1, bits & (1 << mantissa_bits) - 1
    sign = -1.0 if bits >> exponent_bits + mantissa_bits else 1.0
    bias = (1 << exponent_bits - 1) - 1
    if exponent == (1 << exponent_bits) - 1 and (infinities or mantissa == (1 << mantissa_bits) - 1):
        return sign * np.inf if infinities and mantissa == 0 else np.nan
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return sign * (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)


def check_types(ctl, work):
    halves = np.arange(1 << 16, dtype=np.uint16)
    doubles = np.array([1.0, 1 / 3, 1e-50, 1e300, -1e39, np.inf, np.nan, 3.4028235677973366e38, 3.4028235677973362e38])
    eights = np.arange(256, dtype=np.uint8)
    parts = {"F16": halves, "BF16": halves, "F64": doubles, "F8_E4M3": eights, "F8_E5M2": eights}
    header, data = {}, b""
    for dtype, values in parts.items():
        header[dtype] = entry(len(data), len(data) + values.nbytes, values.shape, dtype)
        data += values.tobytes()
    (work / "types.safetensors").write_bytes(file_of(header, data))
    done = ctl.run("snapshot", "import", work / "types.safetensors", "--output", work / "types")
    assert done.returncode == 0 and b"6 of 9 values were rounded, 3 of them to infinity" in done.stderr, done
    assert b"converted from F8_E4M3 to F32: 1 tensor, without loss" in done.stdout, done
    ctl.ok("snapshot", "export", work / "types", "--output", work / "types.out")
    ours = st.load_file(work / "types.out")
    with np.errstate(over="ignore"):
        expected = {"F16": halves.view(np.float16).astype(np.float32), "BF16": (halves.astype(np.uint32) << 16).view(np.float32),
                    "F64": doubles.astype(np.float32),
                    "F8_E4M3": np.array([small_float(b, 4, 3, False) for b in range(256)], np.float32),
                    "F8_E5M2": np.array([small_float(b, 5, 2, True) for b in range(256)], np.float32)}
    for name, values in expected.items():
        np.testing.assert_array_equal(ours[name], values, err_msg=name)
        assert (np.signbit(ours[name]) == np.signbit(values))[~np.isnan(values)].all(), name


def check_rules(ctl, work):
    one = np.ones((2, 2), np.float32)
    st.save_file({"a.x.w": one, "b.x.w": 2 * one, "c": one}, work / "rules.safetensors")
    number = iter(range(100))

    def run(*flags):
        return ctl.run("snapshot", "import", work / "rules.safetensors", *flags, "--output", work / f"rules-{next(number)}")

    done = run("--rename", "*.x.*=*.*", "--rename", "c=d.e", "--skip", "b.*")
    assert done.returncode == 0, done
    ctl.ok("snapshot", "export", work / "rules-0", "--output", work / "rules.out")
    same(work / "rules.out", {"a.w": one, "d.e": one})
    for flags, text in ((("--rename", "?.x.w=w"), b"--rename ?.x.w=w: no tensor"), (("--skip", "z*"), b"--skip z*: no tensor"),
                        (("--rename", "*.x.w=w"), b"a.x.w and b.x.w are both named w"), (("--rename", "c"), b"expected OLD=NEW"),
                        (("--rename", "c=*"), b"1 stars in the new name, 0"), (("--carry", "zz"), b"--carry zz: no tensor"),
                        (("--alias", "c=nobody"), b"missing: nobody, for which c stands"), (("--alias", "c"), b"NAME=OTHER"),
                        (("--alias", "b.x.w=c"), b"other values: b.x.w does not equal c"), (("--skip", "*"), b"nothing can be trained"),
                        (("--model", "mlp:64"), b"expected 2 to 64 sizes"), (("--model", "synthetic:nowhere"), b"nowhere")):
        done = run(*flags)
        assert done.returncode == 2 and text in done.stderr, (flags, done)
    # One tensor of the file for two of the model.
    write_shapes(work / "tied.shapes", [("c", (2, 2)), ("head", (2, 2))])
    ctl.ok("snapshot", "import", work / "rules.safetensors", "--skip", "*.w", "--alias", "head=c", "--model",
           f"synthetic:{work / 'tied.shapes'}", "--output", work / "tied")
    ctl.ok("snapshot", "export", work / "tied", "--output", work / "tied.out")
    same(work / "tied.out", {"c": one, "head": one})
    # Names of models, as the worker takes them.
    for model in ("resnet50", "synthetic:resnet50"):
        done = run("--model", model)
        assert done.returncode == 2 and b"model synthetic:resnet50 differ" in done.stderr, done
        assert b"missing: layer4.2.bn3.bias [2048]" in done.stderr, done


def check_left_over(ctl, work):
    """The flags that help are named, and the tensor that one which is left over equals."""
    one = np.arange(4, dtype=np.float32).reshape(2, 2)
    st.save_file({"wte": one, "head": one, "other": one + 1}, work / "tied.safetensors")
    write_shapes(work / "wte.shapes", [("wte", (2, 2)), ("bias", (2,))])
    done = ctl.run("snapshot", "import", work / "tied.safetensors", "--model", f"synthetic:{work / 'wte.shapes'}", "--output",
                   work / "left-over")
    assert done.returncode == 2, done
    for text in (b"left over: head F32 [2,2]", b"head equals wte: --alias head=wte", b"--alias NAME=OTHER", b"--skip NAME",
                 b"--carry NAME", b"missing: bias [2]", b"--rename OLD=NEW"):
        assert text in done.stderr, (text, done.stderr)
    assert b"other equals" not in done.stderr
    write_shapes(work / "wte.shapes", [("wte", (2, 2))])
    done = ctl.run("snapshot", "import", work / "tied.safetensors", "--model", f"synthetic:{work / 'wte.shapes'}", "--alias",
                   "head=wte", "--skip", "other", "--output", work / "alias")
    assert done.returncode == 0 and b"WARNING" not in done.stderr, done


def check_not_finite(ctl, work):
    """Values that are not finite come along, with a warning that counts them by tensor."""
    trained = np.array([np.nan, 1, np.inf, -np.inf, np.nan], np.float16)
    carried = np.array([np.inf, 2], np.float32)
    st.save_file({"w": trained, "norm.running_var": carried, "good": np.ones(3, np.float32)}, work / "nan.safetensors")
    done = ctl.run("snapshot", "import", work / "nan.safetensors", "--carry", "*.running_var", "--output", work / "nan")
    assert done.returncode == 0, done
    for text in (b"WARNING", b"w has 2 NaN and 2 infinite of 5 values", b"norm.running_var has 0 NaN and 1 infinite of 2 values"):
        assert text in done.stderr, (text, done.stderr)
    assert b"good" not in done.stderr


def check_hostile_files(ctl, work):
    def refused(path, code, text, *more):
        begin = time.monotonic()
        done = ctl.run("snapshot", "import", path, *more, "--output", work / "never")
        assert done.returncode == code and text in done.stderr, (path, done.returncode, done.stderr[:2000])
        assert time.monotonic() - begin < 20 and not (work / "never").exists()
        assert len(done.stderr) < 10_000

    bad = work / "bad.safetensors"
    good = file_of({"a": entry(0, 8)}, bytes(8))
    for header, text in ((b'{"a":' + b"[" * 5_000_000, b"expected dtype"), (b'{"a":' * 1_000_000, b"expected dtype"),
                         (b'{"a":{"shape":' + b"[" * 1_000_000, b"nested too deeply"),
                         (b'{"__metadata__":{"a":' + b"[" * 100_000, b"is not a string")):
        bad.write_bytes(file_of(header, b""))
        refused(bad, 4, text)
    bad.write_bytes(file_of({f"tensor {i}": entry(0, 0, (0,)) for i in range(300_000)}, b""))
    refused(bad, 4, b"more than 200000 tensors")
    bad.write_bytes(file_of({"a": entry(0, 0, [0] * 100)}, b""))
    refused(bad, 4, b"more than 64 dimensions")
    bad.write_bytes(file_of({"n" * 1_000_000: entry(0, 9)}, bytes(9)))
    refused(bad, 4, b"(1000000 bytes)")
    bad.write_bytes(file_of({"__metadata__": {"recon.model": '{"name":"x","tensors":[' + "0," * 8_000_000 + "0]}"}}, b""))
    refused(bad, 4, b"recon.model is not a model")
    # Far more than there is, in a file that takes no room.
    with open(bad, "wb") as file:
        values = 1 << 35
        file.write(file_of({"a": entry(0, 4 * values, (values,))}, b""))
        file.truncate(file.tell() + 4 * values)
    refused(bad, 1, b"this process may use")
    bad.write_bytes(good)
    folder = work / "hostile"
    folder.mkdir()
    (folder / "a.safetensors").write_bytes(good)
    index = folder / "x.safetensors.index.json"
    for text, code, word in (({"weight_map": {"a": "../bad.safetensors"}}, 4, b"expected the name of a file beside the index"),
                             ({"weight_map": {"a": str(bad)}}, 4, b"expected the name of a file beside the index"),
                             ({"weight_map": {"a": "b.safetensors"}}, 5, b"b.safetensors"),
                             ({"weight_map": {"a": "a.safetensors", "b": "a.safetensors"}}, 4, b"b is not in"),
                             ({"weight_map": {}}, 2, b"nothing can be trained"), ({"weight_map": {"a": 5}}, 4, b"not in a file"),
                             ({"weight_map": []}, 4, b"weight_map is not an object"), ({}, 4, b"no weight_map"),
                             ([], 4, b"not a JSON object"), (5, 4, b"not a JSON object")):
        index.write_text(json.dumps(text))
        refused(folder, code, word)
    index.write_text('{"weight_map":{"a":"a.safetensors"},"weight_map":{"a":"b.safetensors"}}')
    refused(index, 4, b"is there twice")
    index.unlink()
    (folder / "b.safetensors").write_bytes(good)
    refused(folder, 4, b"a is in")
    refused(folder / "a.safetensors", 2, b"is given twice", folder / "a.safetensors")
    (folder / "empty").mkdir()
    refused(folder / "empty", 5, b"no *.safetensors")
    refused(folder / "absent.safetensors", 5, b"absent.safetensors")


def check_damage(ctl, bin_directory, work):
    """What is carried is checked as everything else is."""
    st.save_file({"a": np.ones(9, np.float32), "n": np.arange(5)}, work / "small.safetensors")
    ctl.ok("snapshot", "import", work / "small.safetensors", "--output", work / "small")
    carried = next(p for p in (work / "small/packs").iterdir() if b'"dtype":"I64"' in p.read_bytes())
    data = bytearray(carried.read_bytes())
    data[-1] ^= 1
    carried.write_bytes(data)
    for verb in (("verify", work / "small"), ("export", work / "small", "--output", work / "never.safetensors")):
        done = ctl.run("snapshot", *verb)
        assert done.returncode == 4 and b"that are not trained have hash" in done.stderr, done
    done = subprocess.run([bin_directory / "recon-server", "--data", work / "job-damage", "--listen", "127.0.0.1:0",
                           "--from-snapshot", work / "small"], capture_output=True, timeout=60, check=False)
    assert done.returncode == 1 and b"that are not trained have hash" in done.stderr, done


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="where the programs are")
    options = parser.parse_args()
    ctl = Reconctl(options.bin)
    with tempfile.TemporaryDirectory(prefix="recon-weights-") as work:
        work = pathlib.Path(work)
        check_types(ctl, work)
        check_rules(ctl, work)
        check_left_over(ctl, work)
        check_not_finite(ctl, work)
        check_hostile_files(ctl, work)
        check_damage(ctl, options.bin, work)
        check_restart(ctl, options.bin, work)
        check_differences(ctl, options.bin, work)
        check_training(ctl, options.bin, work)
        check_models(ctl, options.bin, work)
    print("weights: all come back")


if __name__ == "__main__":
    main()
