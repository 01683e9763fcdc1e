"""Labels of where this process is, for sets of those that are near each other; and sets that a job's settings name."""

from __future__ import annotations

import os
import pathlib
import re
import socket
import sys

SYSTEM = pathlib.Path("/sys")  # Where Linux tells of its hardware.

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def host_label() -> str:
    """RECON_HOST, or this machine's name."""
    return os.environ.get("RECON_HOST") or socket.gethostname()


def rack_label() -> str:
    """RECON_RACK; ValueError where it is not set."""
    label = os.environ.get("RECON_RACK", "")
    if not label:
        raise ValueError("RECON_RACK does not say in which rack this process is")
    return label


def numa_label(gpu: str | None = None) -> str:
    """The host, and the NUMA node of a GPU: of the one at the PCI address ``gpu`` ("0000:65:00.0"), or of PyTorch's
    current one. Where there is none, the node whose processors this process may use; ValueError where they are several
    nodes'."""
    gpu = gpu or _current_gpu()
    if gpu:
        # -1 where there is but one node.
        node = max(0, int((_pci_device(gpu) / "numa_node").read_text()))
        return f"{host_label()}/node {node}"
    mine = os.sched_getaffinity(0)
    lists = sorted((SYSTEM / "devices/system/node").glob("node[0-9]*/cpulist"))
    nodes = [path.parent.name.removeprefix("node") for path in lists if mine & set(_numbers(path.read_text()))]
    if len(nodes) > 1:
        raise ValueError(f"this process may use processors of the NUMA nodes {', '.join(nodes)}: bind it to one of them "
                         "(numactl --cpunodebind), or say which GPU it uses")
    return f"{host_label()}/node {nodes[0] if nodes else 0}"


def switch_label(gpu: str | None = None) -> str:
    """The host, and the PCIe root port of a GPU, which those behind one switch share; ``gpu`` as for `numa_label`.
    ValueError where there is no GPU."""
    gpu = gpu or _current_gpu()
    if not gpu:
        raise ValueError("there is no GPU that PyTorch uses: say which one, as in switch_label('0000:65:00.0')")
    ports = [part for part in _pci_device(gpu).resolve().parts if _PCI_ADDRESS.fullmatch(part)]
    return f"{host_label()}/port {ports[0]}"


def _pci_device(address: str) -> pathlib.Path:
    path = SYSTEM / "bus/pci/devices" / address.lower()
    if not _PCI_ADDRESS.fullmatch(address.lower()) or not path.exists():
        raise ValueError(f"no PCI device has the address '{address}', as lspci -D shows them")
    return path


def _current_gpu() -> str | None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    of = torch.cuda.get_device_properties(torch.cuda.current_device())
    return f"{of.pci_domain_id:04x}:{of.pci_bus_id:02x}:{of.pci_device_id:02x}.0"


def _numbers(text: str) -> list[int]:
    """Of "0-3,8": 0, 1, 2, 3, 8. ValueError for anything else."""
    numbers: list[int] = []
    for part in text.strip().split(",") if text.strip() else []:
        found = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip())
        if not found or int(found[2] or found[1]) < int(found[1]):
            raise ValueError(f"'{text.strip()}', expected numbers and ranges, as in 0-3,8")
        numbers.extend(range(int(found[1]), int(found[2] or found[1]) + 1))
    return numbers


def sets_of_settings(text: str) -> dict[str, list[int]]:
    """Of "encoder=0-3 ends=0,7": each set's ranks. ValueError, with what is wrong."""
    sets: dict[str, list[int]] = {}
    for word in text.split():
        name, equals, ranks = word.partition("=")
        try:
            numbers = _numbers(ranks)
        except ValueError as error:
            raise ValueError(f"RECON_SETS: set '{name}': {error}") from error
        if not name or not equals or not numbers:
            raise ValueError(f"RECON_SETS: '{word}', expected NAME=RANKS, as in encoder=0-3,8")
        if name in sets or len(set(numbers)) < len(numbers):
            raise ValueError(f"RECON_SETS: '{word}' names a set, or a rank of it, a second time")
        sets[name] = numbers
    return sets
