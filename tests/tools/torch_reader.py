"""Reads files of torch.save() without PyTorch: a zip with a pickle, and each tensor's bytes in a member of its own. What
the pickle may name is what PyTorch's own weights_only loading allows."""

import collections
import pickle
import struct
import zipfile

import numpy


class StateDict(pickle.Unpickler):
    def __init__(self, archive, root):
        super().__init__(archive.open(f"{root}/data.pkl"))
        self.archive, self.root = archive, root

    def find_class(self, module, name):
        allowed = {("collections", "OrderedDict"): collections.OrderedDict, ("torch", "FloatStorage"): "<f4",
                   ("torch", "HalfStorage"): "<f2", ("torch", "LongStorage"): "<i8", ("torch", "BoolStorage"): "?",
                   ("torch._utils", "_rebuild_tensor_v2"): self.tensor}
        return allowed[module, name]

    def persistent_load(self, pid):
        kind, dtype, key, location, count = pid
        assert kind == "storage" and location == "cpu"
        storage = numpy.frombuffer(self.archive.read(f"{self.root}/data/{key}"), dtype)
        assert len(storage) == count
        return storage

    @staticmethod
    def tensor(storage, offset, shape, stride, requires_grad, hooks):
        assert not requires_grad and not hooks
        return numpy.lib.stride_tricks.as_strided(storage[offset:], shape, [storage.itemsize * step for step in stride])


def offsets(path):
    """Where each tensor's bytes begin in the file, by the number of its storage: what mapping it gives."""
    with open(path, "rb") as file, zipfile.ZipFile(path) as archive:
        found = {}
        for info in archive.infolist():
            if "/data/" not in info.filename:
                continue
            file.seek(info.header_offset + 26)
            name_bytes, extra_bytes = struct.unpack("<HH", file.read(4))
            found[info.filename.rsplit("/", 1)[1]] = info.header_offset + 30 + name_bytes + extra_bytes
        return found


def load(path):
    """A state dict, name -> array."""
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        root = archive.namelist()[0].split("/")[0]
        assert archive.read(f"{root}/version").strip() == b"3"
        assert all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist() if "/data/" in info.filename)
        return StateDict(archive, root).load()
