"""What a launcher has to know of the machine and of a script, without importing PyTorch."""

from __future__ import annotations

import ast
import glob
import os
import pathlib
import shutil


def devices() -> list[str]:
    """What CUDA_VISIBLE_DEVICES may name: what the caller's names, or else one number for each GPU of the machine."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [device.strip() for device in visible.split(",") if device.strip() not in ("", "-1")]
    return [str(number) for number in range(len(glob.glob("/dev/nvidia[0-9]*")))]


def cores() -> int:
    """Cores that this process may use: by its affinity, and by the quota of its control group."""
    count = len(os.sched_getaffinity(0))
    try:
        quota, period = pathlib.Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            count = min(count, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return count


def imports_of(script: str) -> list[str]:
    """Modules that the script's top-level import lines name, but for those that lie beside it."""
    path = pathlib.Path(script)
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return []
    names: list[str] = []
    for statement in body:
        if isinstance(statement, ast.Import):
            names += [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.level == 0 and statement.module:
            names.append(statement.module)
    beside = path.resolve().parent
    return [name for name in dict.fromkeys(names) if name != "__future__"
            and not any((beside / f"{name.split('.')[0]}{end}").exists() for end in (".py", ""))]


def find_program(name: str) -> str | None:
    """recon-server or reconctl: of RECON_BIN, of this package's own, or of PATH."""
    folders = [os.environ.get("RECON_BIN"), str(pathlib.Path(__file__).resolve().parent.parent / "bin")]
    for folder in folders:
        if folder and os.access(os.path.join(folder, name), os.X_OK):
            return os.path.join(folder, name)
    return shutil.which(name)
