"""One rank of torch_sharded_test.py: FSDP2, a checkpoint of its shards, and SyncBatchNorm over recon.

    torch_sharded_ranks.py RANK FOLDER shards|batch_norm
"""

import pathlib
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_model_state_dict, get_state_dict,
                                                     set_model_state_dict, set_state_dict)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import recon.torch.distributed  # noqa: F401: makes the backend known.

SIZE = 2


def model_of(seed: int) -> nn.Module:
    """In double precision: how float32 rounds, and what Adam makes of that, is the processor's."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 33), nn.Tanh(), nn.Linear(33, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def sharded(seed: int, mesh: dist.DeviceMesh) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = model_of(seed)
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list, rank: int | None) -> None:
    """With the rank's batches, or with all as one."""
    for x, y in batches:
        x, y = (x.flatten(0, 1), y.flatten(0, 1)) if rank is None else (x[rank], y[rank])
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


def close(what: str, got: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.allclose(got, expected, atol=1e-9), f"{what}: {(got - expected).abs().max()}"


def same(what: str, model: nn.Module, whole: nn.Module) -> None:
    for (name, shard), expected in zip(model.named_parameters(), whole.parameters()):
        close(f"{what} {name}", shard.full_tensor().detach(), expected.detach())


def check_shards(rank: int, folder: pathlib.Path) -> None:
    mesh = init_device_mesh("cpu", (SIZE,))
    data = torch.Generator().manual_seed(7)
    batches = [tuple(torch.randn(SIZE, 4, size, generator=data, dtype=torch.float64) for size in (8, 3)) for _ in range(6)]
    model, optimizer = sharded(1, mesh)
    whole = model_of(1)
    in_one = torch.optim.Adam(whole.parameters(), lr=0.01)
    steps(model, optimizer, batches[:3], rank)
    steps(whole, in_one, batches[:3], None)
    same("FSDP2", model, whole)
    parameters, state = get_state_dict(model, optimizer)
    checkpoint.save({"model": parameters, "optimizer": state}, checkpoint_id=folder)
    # Another model goes on where the checkpoint is.
    model, optimizer = sharded(2, mesh)
    parameters, state = get_state_dict(model, optimizer)
    checkpoint.load({"model": parameters, "optimizer": state}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=parameters, optim_state_dict=state)
    same("the checkpoint", model, whole)
    steps(model, optimizer, batches[3:], rank)
    steps(whole, in_one, batches[3:], None)
    same("FSDP2 after the checkpoint", model, whole)
    total = nn.utils.clip_grad_norm_(model.parameters(), 1e9).full_tensor()
    close("the norm of gradients", total, nn.utils.clip_grad_norm_(whole.parameters(), 1e9))


def check_whole_state(rank: int, folder: pathlib.Path) -> None:
    """A state that rank 0 alone has whole, a checkpoint that is written meanwhile, and gradients of 16 bits."""
    mesh = init_device_mesh("cpu", (SIZE,))
    model, optimizer = sharded(3, mesh)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    assert bool(whole) == (rank == 0), whole
    other, _ = sharded(4, mesh)
    set_model_state_dict(other, whole, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    same("the whole state", other, model_of(3))
    checkpoint.async_save({"model": get_model_state_dict(other)}, checkpoint_id=folder).result()
    again = get_model_state_dict(sharded(5, mesh)[0])
    checkpoint.load({"model": again}, checkpoint_id=folder)
    for (name, shard), expected in zip(again.items(), model_of(3).state_dict().values()):
        close(f"what was written meanwhile, {name}", shard.full_tensor(), expected)

    narrow = nn.Linear(4, 6, bias=False)
    nn.init.ones_(narrow.weight)
    fully_shard(narrow, mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16), reshard_after_forward=False)
    narrow(torch.full((1, 4), float(1 + rank))).sum().backward()
    close("gradients of 16 bits", narrow.weight.grad.full_tensor(), torch.full((6, 4), 1.5))


def check_batch_norm(rank: int) -> None:
    torch.manual_seed(3)
    device = torch.device("cuda", 0)
    batches = [torch.randn(3 + r, 4, 5, device=device) for r in range(SIZE)]
    whole = nn.BatchNorm1d(4).to(device)
    ours = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(4)).to(device)
    joined, mine = torch.cat(batches).requires_grad_(), batches[rank].clone().requires_grad_()
    expected, result = whole(joined), ours(mine)
    (expected ** 3).sum().backward()
    (result ** 3).sum().backward()
    here = slice(0, 3) if rank == 0 else slice(3, None)
    for what, got, wanted in (("values", result, expected[here]), ("gradients", mine.grad, joined.grad[here]),
                              ("variance", ours.running_var, whole.running_var)):
        assert torch.allclose(got, wanted, atol=1e-5), f"{what}: {(got - wanted).abs().max()}"


def main() -> None:
    rank, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("recon", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=SIZE,
                            timeout=timedelta(seconds=120))
    if sys.argv[3] == "shards":
        check_shards(rank, folder / "shards")
        check_whole_state(rank, folder / "meanwhile")
    elif torch.cuda.is_available():
        check_batch_norm(rank)
    else:
        print("SKIP: torch has kernels for SyncBatchNorm on GPUs only", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
