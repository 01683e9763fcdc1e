#!/usr/bin/env python3
"""Shows that this Python's PyTorch does what tests need: layers, AdamW, bf16 autocast, saving, a DataLoader with a
process, gloo between two processes and DDP. Ends with 0, or with one line that says what does not work.

Usage: torch_smoke_test.py [FOLDER]. With FOLDER, NVIDIA's libraries must come from below it: those of a CUDA toolkit
in the linker's path would hide that some are missing."""

import io
import os
import pathlib
import re
import subprocess
import sys
import tempfile


def train_on_one():
    import torch
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
                                torch.nn.Flatten(), torch.nn.Linear(4 * 64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = torch.randn(64, 1, 8, 8)
    y = (x.mean(dim=(1, 2, 3)) > 0).long()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16, num_workers=1)
    losses = []
    for _ in range(20):
        for images, labels in loader if not losses else [(x, y)]:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert losses[-1] < losses[0] / 2, f"the loss went from {losses[0]:.3f} to {losses[-1]:.3f}"
    torch.linalg.svd(torch.randn(5, 5))
    saved = io.BytesIO()
    torch.save(model.state_dict(), saved)
    saved.seek(0)
    model.load_state_dict(torch.load(saved, weights_only=True))


def train_on_two(rank, meeting):
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    assert total.item() == 3, f"all_reduce of 1 and 2 is {total.item()}"
    torch.manual_seed(rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    model(torch.randn(3, 4)).sum().backward()
    gradients = [torch.zeros_like(model.module.weight.grad) for _ in range(2)]
    dist.all_gather(gradients, model.module.weight.grad)
    assert torch.equal(*gradients), "gradients of two processes differ"
    dist.destroy_process_group()


def check_libraries(folder):
    """Every NVIDIA library that is mapped lies below the folder."""
    mapped = set(re.findall(r"(/\S*/lib(?:cu|nv|nccl)\w*\.so\S*)$", pathlib.Path("/proc/self/maps").read_text(), re.M))
    assert mapped, "no NVIDIA library is loaded"
    elsewhere = sorted(path for path in mapped if not path.startswith(f"{folder}/"))
    assert not elsewhere, f"loaded from elsewhere: {' '.join(elsewhere)}"


def main():
    if sys.argv[1:2] == ["--rank"]:
        train_on_two(int(sys.argv[2]), sys.argv[3])
        return
    train_on_one()
    if sys.argv[1:]:
        check_libraries(os.path.realpath(sys.argv[1]))
    with tempfile.TemporaryDirectory() as folder:
        ranks = [subprocess.Popen([sys.executable, __file__, "--rank", str(rank), f"{folder}/meeting"],
                                  env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"}) for rank in range(2)]
        codes = [rank.wait(timeout=120) for rank in ranks]
    assert codes == [0, 0], f"processes with gloo ended with {codes}"


if __name__ == "__main__":
    main()
