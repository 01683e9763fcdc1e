"""What goes between ranks as bytes: values come back as they were, and bytes of strangers run nothing."""

import ast
import collections
import io
import pathlib
import pickle
import random
import re
import sys
import tempfile
import unittest

import numpy as np

try:
    import torch
except ImportError:
    print("SKIP: no PyTorch")
    sys.exit(77)

import recon
from recon import _objects
from hostile import Payload

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "worker" / "python" / "recon"


class Own:
    """A class of a script's own."""


def same(one: object, other: object) -> bool:
    """Of one type, and equal, whatever is inside."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return (one.dtype == other.dtype and one.shape == other.shape and one.requires_grad == other.requires_grad
                and torch.equal(one.detach().reshape(-1).contiguous().view(torch.uint8) if one.dim() else one,
                                other.detach().reshape(-1).contiguous().view(torch.uint8) if one.dim() else other))
    if isinstance(one, (np.ndarray, np.generic)):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple, collections.deque)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other))
    return one == other or one != one and other != other


def back(value: object) -> object:
    return _objects.decode(_objects.encode(value))


class Values(unittest.TestCase):
    def check(self, value: object) -> None:
        with self.subTest(type=type(value).__name__):
            self.assertTrue(same(back(value), value), f"{value!r} became {back(value)!r}")

    def test_plain_values_come_back_as_they_were(self) -> None:
        for value in (None, True, False, 0, -(1 << 80), 1.5, -0.0, float("inf"), float("nan"), 1e-320, 2 - 3j, "", "a\0é\U0001f600",
                      "\ud800", b"", b"\0\xff", bytearray(b"abc"), [], [1, [2, None]], (), (1, ("x",)), {1, 2}, frozenset((1, "a")),
                      {}, {"a": 1, 2: "b", (1, None): [3], None: 4, b"k": 5, 1.5: 6}, range(3, 20, 4), collections.Counter("abca"),
                      collections.OrderedDict(b=1, a=2), collections.defaultdict(list, {"x": [1]}), collections.defaultdict(None),
                      collections.deque([1, [2]], 5)):
            self.check(value)
        self.assertEqual(str(back(-0.0)), "-0.0")
        self.assertIs(back(collections.defaultdict(list)).default_factory, list)
        self.assertEqual(back(collections.deque([1], 5)).maxlen, 5)

    def test_tensors_and_arrays_come_back_with_every_bit(self) -> None:
        torch.manual_seed(0)
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.uint8,
                      torch.int16, torch.bool, torch.float8_e4m3fn):
            self.check((torch.randn(3, 4) * 3).to(dtype))
            self.check(torch.zeros((), dtype=dtype))
            self.check(torch.zeros((2, 0), dtype=dtype))
        self.check(torch.randn(4, 5).t())
        self.check(torch.randn(3, dtype=torch.complex64).conj().resolve_conj())
        self.check(torch.randn(3, requires_grad=True))
        self.check(torch.nn.Parameter(torch.randn(2), requires_grad=False))
        for value in (torch.Size([2, 3]), torch.bfloat16, torch.device("cuda:1")):
            self.check(value)
        for value in (np.arange(6, dtype=">i4").reshape(2, 3), np.array(["ab", "c"]), np.array([b"x"]), np.float64(1.5), np.bool_(True),
                      np.datetime64("2020-01-01"), np.zeros((0, 3), np.float16), np.array(1.5), np.asfortranarray(np.eye(3))):
            self.check(value)
        back(np.arange(3))[0] = 7  # It is the receiver's own.

    def test_states_of_modules_optimizers_and_schedulers_come_back_as_they_were(self) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.MultiheadAttention(4, 2))
        state = back(model.state_dict())
        self.assertTrue(same(state, model.state_dict()))
        self.assertEqual(state._metadata, model.state_dict()._metadata)
        for kind, options in ((torch.optim.SGD, {"momentum": 0.9}), (torch.optim.AdamW, {"amsgrad": True}), (torch.optim.Adagrad, {}),
                              (torch.optim.RMSprop, {}), (torch.optim.LBFGS, {}), (torch.optim.Adam, {"lr": torch.tensor(0.01)})):
            optimizer = kind(model[:2].parameters(), **{"lr": 0.1, **options})
            optimizer.zero_grad()

            def loss() -> torch.Tensor:
                return model[:2](torch.ones(2, 3)).sum()
            loss().backward()
            optimizer.step(loss if kind is torch.optim.LBFGS else None)
            self.check(optimizer.state_dict())
        rates = torch.optim.lr_scheduler
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for scheduler in (rates.StepLR(optimizer, 2), rates.MultiStepLR(optimizer, [2, 2, 5]), rates.ReduceLROnPlateau(optimizer),
                          rates.OneCycleLR(optimizer, 1.0, 10), rates.CosineAnnealingLR(optimizer, 5), rates.CyclicLR(optimizer, 0.1, 1.0),
                          rates.LambdaLR(optimizer, lambda epoch: 0.5), rates.SequentialLR(
                              optimizer, [rates.ConstantLR(optimizer), rates.StepLR(optimizer, 2)], [3])):
            self.check(scheduler.state_dict())
        for other in (torch.amp.GradScaler("cpu").state_dict(), random.getstate(), np.random.get_state(), torch.get_rng_state()):
            self.check(other)

    def test_what_cannot_travel_is_named_with_its_place_and_the_way_out(self) -> None:
        def function() -> None:
            pass
        for value, place, kind in ((Own(), "the value", "Own"), ({"a": [1, Own()]}, "the value['a'][1]", "Own"),
                                   ([function], "the value[0]", "function"), (Own, "the value", "type"),
                                   ({Own(): 1}, "a key of the value", "Own"), ({"m": torch.nn.Linear(1, 1)}, "['m']", "Linear"),
                                   (collections.defaultdict(lambda: 0), "the value", "defaultdict"),
                                   (np.array([Own()]), "the value", "object"), (torch.eye(2).to_sparse(), "the value", "sparse")):
            with self.subTest(kind=kind, place=place), self.assertRaises(TypeError) as raised:
                _objects.encode(value)
            self.assertIn(place, str(raised.exception))
            self.assertIn(kind, str(raised.exception))
            self.assertRegex(str(raised.exception), r"pickle=True|send a dense one")
        loop: list = []
        loop.append(loop)
        with self.assertRaisesRegex(ValueError, "contains itself"):
            _objects.encode(loop)

    def test_values_of_a_scripts_own_classes_travel_where_both_ends_take_pickles(self) -> None:
        data = _objects.encode({"own": random.Random(3)}, pickles=True)
        self.assertEqual(_objects.decode(data, pickles=True)["own"].random(), random.Random(3).random())
        with self.assertRaisesRegex(recon.Refused, r"rank 1 has sent a pickle.*RECON_ALLOW_PICKLE"):
            _objects.decode(data, sender="rank 1")
        # What needs no pickle is none.
        self.assertEqual(_objects.decode(_objects.encode([1], pickles=True)), [1])


class Strangers(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.marker = pathlib.Path(directory.name) / "ran"

    def test_pickles_of_all_kinds_run_nothing(self) -> None:
        payload = Payload(self.marker)
        stream = io.BytesIO()
        torch.save(payload, stream)
        saved = stream.getvalue()
        pickles = [pickle.dumps(payload, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
        for data in (*pickles, saved, *(_objects._PICKLE + one for one in (*pickles, saved)), *(_objects._PLAIN + one for one in pickles)):
            with self.assertRaises((ValueError, recon.Refused)):
                _objects.decode(data)
        self.assertFalse(self.marker.exists())
        # The payload is none that could not have run.
        pickle.loads(pickles[0])
        self.assertTrue(self.marker.exists())

    def test_bytes_that_are_damaged_or_made_up_raise_one_error_and_nothing_else(self) -> None:
        seed = random.SystemRandom().randrange(1 << 31)
        print(f"seed {seed}", flush=True)
        chance = random.Random(seed)
        whole = _objects.encode({"a": [torch.ones(3), np.arange(4)], "b": (1, {"c": b"xyz"}), "d": torch.float16})
        cases = [whole[:cut] for cut in range(len(whole))] + [whole + b"x", b""]
        for _ in range(3000):
            flipped = bytearray(whole)
            for _ in range(chance.randint(1, 8)):
                flipped[chance.randrange(len(flipped))] = chance.randrange(256)
            cases.append(bytes(flipped))
        trees = ('["Tensor","float32",[1000000000000],false,0,4]', '["Tensor","save",[0],false,0,0]', '["dtype","load"]', '["device","x"]',
                 '["ndarray","|O",[1],0,8]', '["ndarray","<i4",[-1],0,4]', '["bytes",0,99]', '["bytes",-4,2]', '["bytes",true,true]',
                 '["set",[["list",[]]]]', '["dict",[[["list",[]],1]]]', '["dict",[1]]', '["list",7]', '["nothing"]', "[]", '{"a":1}',
                 '["defaultdict",[],"eval"]', '["deque",[],-1]', '["range",0,1,0]', '["complex",1]', '["list"' * 3000, "[" * 100000,
                 '["list",[' * 200 + "]]" * 200, '["Size",["x"]]', '["OrderedDict",[]]', "9" * 5000, '["__class__"]', '[["list"],[]]',
                 '["Tensor","float32",[' + "1152921504606846976," * 8 + '0],false,0,0]')
        for tree in trees:
            cases.append(_objects._PLAIN + _objects._HEAD.pack(len(tree), 0) + tree.encode())
        for data in cases:
            try:
                _objects.decode(data)  # A flipped bit may make another value.
            except ValueError as error:
                self.assertIn("no value of this package", str(error))
            except recon.Refused:
                pass
        for tree in trees:
            with self.subTest(tree=tree[:60]), self.assertRaises(ValueError):
                _objects.decode(_objects._PLAIN + _objects._HEAD.pack(len(tree), 0) + tree.encode())


def dangers(text: str) -> list[str]:
    """What a module does that could run what it reads."""
    found = []
    for node in ast.walk(ast.parse(text)):
        names = [name.name for name in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        found += [name for name in names if re.search(r"pickle|marshal|shelve|dill|joblib", name)]
        if isinstance(node, ast.Attribute) and re.search(r"_object(_list)?$", node.attr) and ast.unparse(node.value) == "dist":
            found.append(ast.unparse(node))
        if not isinstance(node, ast.Call):
            continue
        called, options = ast.unparse(node.func), {one.arg: ast.unparse(one.value) for one in node.keywords}
        if called in ("eval", "exec", "__import__") and not isinstance(node.args[0], ast.Constant):
            found.append(called)
        if called == "torch.load" and options.get("weights_only") != "True" or options.get("allow_pickle") == "True":
            found.append(called)
    return found


class Package(unittest.TestCase):
    def test_one_file_knows_pickles_and_no_other_runs_what_it_reads(self) -> None:
        files = {path.relative_to(PACKAGE): path for path in PACKAGE.rglob("*.py")}
        self.assertIn(pathlib.Path("_objects.py"), files)
        for name, path in files.items():
            if name != pathlib.Path("_objects.py"):
                self.assertEqual(dangers(path.read_text()), [], name)
        for line in ("import io, pickle", "from pickle import loads", "torch.load(f, weights_only=False)", "torch.load(f)", "exec(source)",
                     "dist.broadcast_object_list(said)", "from ray import cloudpickle", "numpy.load(f, allow_pickle=True)"):
            self.assertEqual(len(dangers(line)), 1, line)


if __name__ == "__main__":
    unittest.main(verbosity=2)
