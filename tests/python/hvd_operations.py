"""What each rank of hvd_ranks.py checks of recon.hvd's operations and layers, against the same in one process."""

import numpy as np
import torch
from torch import nn

import recon
import recon.hvd as hvd


def equal(what, got, expected):
    if not isinstance(expected, torch.Tensor):  # Python's values have no type of their own.
        expected = torch.as_tensor(expected, dtype=got.dtype)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape), f"{what}: {got} instead of {expected}"
    assert torch.allclose(got, expected), f"{what}: {got} instead of {expected}"


def raises(error, text, call):
    try:
        call()
    except error as caught:
        assert text in str(caught), f"'{caught}' lacks '{text}'"
        return
    raise AssertionError(f"no {error.__name__}")


def reductions(rank, size):
    mine = torch.arange(6, dtype=torch.float32).reshape(2, 3) + rank
    every = torch.stack([torch.arange(6, dtype=torch.float32).reshape(2, 3) + r for r in range(size)])
    equal("average", hvd.allreduce(mine, name="first"), every.mean(0))
    equal("sum", hvd.allreduce(mine, op=hvd.Sum), every.sum(0))
    equal("average=False", hvd.allreduce(mine, average=False), every.sum(0))
    equal("min", hvd.allreduce(mine, op=hvd.Min), every.min(0).values)
    equal("max", hvd.allreduce(mine, op=hvd.Max), every.max(0).values)
    equal("product", hvd.allreduce(mine, op=hvd.Product), every.prod(0))
    equal("scaled", hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0), 2 * every.sum(0))
    big = 100 * mine
    assert (hvd.allreduce(big, compression=hvd.Compression.int8) - 100 * every.mean(0)).abs().max() <= 2 * big.max() / 127 + 2
    raises(recon.Refused, "int8 is for sum and mean",
           lambda: hvd.grouped_allreduce([mine], op=hvd.Max, compression=hvd.Compression.int8))
    equal("fp16", hvd.allreduce(mine, compression=hvd.Compression.fp16), every.mean(0))
    equal("integers", hvd.allreduce(torch.tensor([rank, 2]), op=hvd.Sum), [sum(range(size)), 2 * size])
    equal("a single value", hvd.allreduce(torch.tensor(float(rank))), (size - 1) / 2)
    equal("adasum of equals", hvd.allreduce(torch.ones(5), op=hvd.Adasum), torch.ones(5))
    handle = hvd.allreduce_async(mine, op=hvd.Sum)
    again = mine.clone()
    in_place = hvd.allreduce_async_(again, op=hvd.Sum)
    equal("async", hvd.synchronize(handle), every.sum(0))
    assert hvd.synchronize(in_place) is again and hvd.poll(in_place)
    equal("in place", again, every.sum(0))
    grouped = hvd.grouped_allreduce([mine, mine.double(), torch.ones(3)], op=hvd.Sum)
    for got, expected in zip(grouped, (every.sum(0), every.sum(0).double(), torch.full((3,), float(size)))):
        equal("grouped", got, expected)
    strided = torch.zeros(3, 2).t()
    strided.copy_(mine)
    equal("not contiguous", hvd.allreduce_(strided, op=hvd.Max), every.max(0).values)


def movements(rank, size):
    rows = torch.full((rank + 1, 2), rank, dtype=torch.int16)
    whole = torch.cat([torch.full((r + 1, 2), r, dtype=torch.int16) for r in range(size)])
    equal("allgather", hvd.allgather(rows, name="uneven"), whole)
    equal("allgather of nothing", hvd.allgather(rows[:rank % 2]), torch.cat(
        [torch.full((r % 2, 2), r, dtype=torch.int16) for r in range(size)]))
    equal("allgather of single values", hvd.allgather(torch.tensor(rank)), list(range(size)))
    equal("broadcast", hvd.broadcast(torch.full((3,), float(rank)), 1), [1.0] * 3)
    changed = torch.tensor(rank)
    hvd.broadcast_(changed, 2)
    assert changed.item() == 2
    table = torch.arange(size * 2 + 1, dtype=torch.float32).reshape(-1, 1) * (rank + 1)
    parts = np.array_split(table.numpy() * sum(range(1, size + 1)) / (rank + 1), size)
    equal("reducescatter", hvd.reducescatter(table, op=hvd.Sum), parts[rank])
    equal("mean of it", hvd.reducescatter(table), parts[rank] / size)
    sent = torch.cat([torch.full((to + 1,), 10 * rank + to) for to in range(size)])
    got, came = hvd.alltoall(sent, splits=torch.arange(1, size + 1))
    equal("alltoall", got, torch.cat([torch.full((rank + 1,), 10 * r + rank) for r in range(size)]))
    equal("its splits", came, [rank + 1] * size)
    equal("alltoall of equal parts", hvd.alltoall(torch.arange(size) + 10 * rank), [10 * r + rank for r in range(size)])
    assert hvd.allgather_object({"rank": rank, "text": "x" * rank})[2] == {"rank": 2, "text": "xx"}
    assert hvd.broadcast_object(("from", rank), root_rank=1) == ("from", 1)
    hvd.barrier()


def gradients(rank, size):
    x = torch.full((2,), float(rank), requires_grad=True)
    hvd.allreduce(x, op=hvd.Sum).sum().backward()
    equal("gradient of allreduce", x.grad, [size] * 2)
    x.grad = None
    (hvd.allgather(x) * torch.arange(2.0 * size)).sum().backward()
    equal("gradient of allgather", x.grad, [size * 2.0 * rank, size * (2.0 * rank + 1)])
    x.grad = None
    hvd.broadcast(x, 0).sum().backward()
    equal("gradient of broadcast", x.grad, [float(size) if rank == 0 else 0.0] * 2)
    grouped_gradients(rank, size)


def grouped_gradients(rank, size):
    """As those of each by itself, integers among them."""
    def made():
        torch.manual_seed(rank)
        return [torch.randn(size, 2, requires_grad=True), torch.arange(size),
                torch.randn(size, dtype=torch.float64, requires_grad=True)]
    together = {"allreduce": lambda them: hvd.grouped_allreduce(them, op=hvd.Sum, name="g", prescale_factor=2.0),
                "allgather": lambda them: hvd.grouped_allgather(them, name="g"),
                "reducescatter": lambda them: hvd.grouped_reducescatter(them, op=hvd.Sum, name="g")}
    each = {"allreduce": lambda them: [hvd.allreduce(one, op=hvd.Sum, prescale_factor=2.0) for one in them],
            "allgather": lambda them: [hvd.allgather(one) for one in them],
            "reducescatter": lambda them: [hvd.reducescatter(one, op=hvd.Sum) for one in them]}
    for name in together:
        inputs, others = made(), made()
        for these, results in ((inputs, together[name](inputs)), (others, each[name](others))):
            assert [one.requires_grad for one in results] == [True, False, True], name
            sum((one * (torch.arange(one.numel()).view(one.shape) + rank + 1)).sum() for one in results).backward()
        for index in (0, 2):
            equal(f"gradient of grouped {name}", inputs[index].grad, others[index].grad)
    handles = [hvd.grouped_allgather_async(inputs), hvd.grouped_reducescatter_async(inputs, op=hvd.Sum)]
    equal("later", hvd.synchronize(handles[0])[1], torch.arange(size).repeat(size))
    equal("later", hvd.synchronize(handles[1])[1], [rank * size])
    raises(NotImplementedError, "no gradient of allreduce max",
           lambda: hvd.grouped_allreduce(inputs, op=hvd.Max)[0].sum().backward())


def later(rank, size):
    """alltoall_async goes on beside other calls, and waits in any order."""
    rows = torch.arange(float(size * size)).reshape(-1, 1) + 100 * rank
    equal_parts = hvd.alltoall_async(rows, name="equal")
    uneven = hvd.alltoall_async(rows[:size * (size + 1) // 2], splits=range(1, size + 1), name="uneven")
    none = hvd.alltoall_async(rows[:0])
    equal("between", hvd.allreduce(torch.ones(1), op=hvd.Sum), [float(size)])
    result, came = uneven.wait()
    first = rank * (rank + 1) // 2
    equal("uneven", result, torch.cat([rows[first:first + rank + 1] - 100 * rank + 100 * r for r in range(size)]))
    equal("came", came, torch.full((size,), rank + 1, dtype=torch.int32))
    equal("equal", hvd.synchronize(equal_parts),
          torch.cat([rows[rank * size:(rank + 1) * size] - 100 * rank + 100 * r for r in range(size)]))
    assert none.wait().shape == (0, 1) and hvd.poll(none)


def batch_norm(rank, size):
    """Values and gradients are those of BatchNorm over the joined batch."""
    for shape, dtype, options in (((4,), torch.float64, {}), ((3, 5, 2), torch.float64, {"momentum": None}),
                                  ((3,), torch.float32, {"affine": False, "track_running_stats": False})):
        torch.manual_seed(3)
        sizes = [2 + r for r in range(size)]
        batches = [1e3 + torch.randn(count, *shape, dtype=dtype) for count in sizes]
        towards = [torch.randn(count, *shape, dtype=dtype) for count in sizes]
        kind = {2: nn.BatchNorm1d, 4: nn.BatchNorm2d}[1 + len(shape)]
        whole, ours = kind(shape[0], **options).to(dtype), hvd.SyncBatchNorm(shape[0], **options).to(dtype)
        ours.load_state_dict(whole.state_dict())
        for one in (whole, ours):
            if one.affine:
                nn.init.uniform_(one.weight, generator=torch.Generator().manual_seed(4))
        for _ in range(2):
            joined = torch.cat(batches).requires_grad_()
            mine = batches[rank].clone().requires_grad_()
            expected = whole(joined)
            (expected * torch.cat(towards)).sum().backward()
            result = ours(mine)
            (result * towards[rank]).sum().backward()
            first = sum(sizes[:rank])
            here = slice(first, first + sizes[rank])
            tolerance = 1e-9 if dtype == torch.float64 else 2e-3  # Of values about 1,000 float32 has that much.
            for what, got, wanted in (("values", result, expected[here]), ("gradients", mine.grad, joined.grad[here])):
                assert torch.allclose(got, wanted, atol=tolerance), f"{what} of {shape}: {(got - wanted).abs().max()}"
        for name, value in whole.named_buffers():
            assert torch.allclose(dict(ours.named_buffers())[name], value, rtol=1e-5), name
        for name, parameter in whole.named_parameters():
            total = hvd.allreduce(dict(ours.named_parameters())[name].grad, op=hvd.Sum)
            assert torch.allclose(total, parameter.grad, atol=tolerance), name
        # Without the job's statistics it takes those of the batch that it is given.
        assert torch.allclose(ours.eval()(batches[rank]), whole.eval()(batches[rank]), atol=tolerance)
    empty = hvd.SyncBatchNorm(2)
    values = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    equal("beside ranks without values", empty(values if rank == 0 else values[:0]),
          [[-1.0, -1.0], [1.0, 1.0]] if rank == 0 else torch.empty(0, 2))
    raises(ValueError, "more than 1 value", lambda: hvd.SyncBatchNorm(1)(torch.ones(1 if rank == 0 else 0, 1)))


def batch_norm_without_who_has_joined(rank, size):
    """The last rank joins before the others' step, between their two sums, and between forward and backward."""
    torch.manual_seed(5)
    batches = [10.0 * r + torch.randn(3 + r, 2, dtype=torch.float64) for r in range(size)]
    towards = [torch.randn(3 + r, 2, dtype=torch.float64) for r in range(size)]
    mine, here = batches[rank], slice(sum(3 + r for r in range(rank)), sum(3 + r for r in range(rank + 1)))
    for joins in ("before", "within", "after"):
        ours, input = hvd.SyncBatchNorm(2).double(), mine.clone().requires_grad_()
        if rank == size - 1:
            if joins == "within":
                hvd.allreduce(torch.tensor([5.0, 500.0, 5000.0], dtype=torch.float64), op=hvd.Sum)
            elif joins == "after":
                ours(input)
        else:
            result = ours(input)
            (result * towards[rank]).sum().backward()
            counted = torch.cat(batches if joins == "after" else batches[:-1])
            whole = nn.BatchNorm1d(2).double()
            expected = whole(counted).detach()
            equal(f"values, {joins}", result, expected[here])
            for name, value in whole.named_buffers():
                equal(f"{name}, {joins}", ours.get_buffer(name), value)
            # The gradient has means over those who are left.
            g, normal = torch.cat(towards[:-1]), expected[:sum(map(len, batches[:-1]))]
            wanted = (g - g.mean(0) - normal * (g * normal).mean(0)) / (counted.var(0, correction=0) + ours.eps).sqrt()
            equal(f"gradients, {joins}", input.grad, wanted[here])
        hvd.join()
