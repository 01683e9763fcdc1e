"""One rank of hvd_test.py: hvd_ranks.py CASE"""

import copy
import gc
import io
import os
import pathlib
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

import recon
import recon.hvd as hvd
from hvd_operations import (batch_norm, batch_norm_without_who_has_joined, equal, gradients, later, movements, raises,
                            reductions)

torch.set_num_threads(1)


def process_sets(rank, size):
    # In another order on each rank, and of overlapping ranks.
    ends, first = hvd.ProcessSet([0, size - 1]), hvd.ProcessSet([0, 1])
    for one in (ends, first) if rank == 1 else (first, ends):
        hvd.add_process_set(one)
    assert ends.included() == (rank in (0, size - 1)) and ends.size() == 2
    if ends.included():
        equal("in a set", hvd.allreduce(torch.tensor([float(rank)]), op=hvd.Sum, process_set=ends), [size - 1.0])
        equal("from its last", hvd.broadcast(torch.tensor(rank), size - 1, process_set=ends), size - 1)
        assert ends.rank() == (0 if rank == 0 else 1)
    else:
        raises(ValueError, "is not in the process set", lambda: hvd.allreduce(torch.ones(1), process_set=ends))
    # Two ranks begin the same two sets in another order, and use them in one.
    both, everybody = hvd.ProcessSet([0, 1]), hvd.ProcessSet(range(size))
    hvd.remove_process_set(first)
    for one in (everybody, both) if rank == 0 else (both, everybody):
        hvd.add_process_set(one)
    assert hvd.global_process_set.need().timeout == everybody.need().timeout == 600.0  # That of init().
    if both.included():
        equal("both", hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=both), [2.0])
    equal("everybody", hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=everybody), [float(size)])
    raises(ValueError, "already", lambda: hvd.add_process_set([0, size - 1]))
    raises(ValueError, "expected some of 0 to", lambda: hvd.add_process_set([0, size]))
    assert hvd.remove_process_set(ends) and not hvd.remove_process_set(ends)
    hvd.add_process_set([0, size - 1])
    equal("all", hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=hvd.global_process_set), [float(size)])
    # Of a model that is copied or saved.
    for there in (hvd.global_process_set, everybody, hvd.ProcessSet([0, 2])):
        layer, file = hvd.SyncBatchNorm(2, process_set=there), io.BytesIO()
        assert copy.deepcopy(layer).process_set is there
        torch.save(layer, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False).process_set
        assert loaded.ranks == there.ranks and (loaded is there) == (there.process_set_id is not None), loaded


def wrong_use(rank, size):
    raises(ValueError, "splits", lambda: hvd.alltoall(torch.ones(size + 1)))
    raises(ValueError, "rank 9 is not in the process set", lambda: hvd.broadcast(torch.ones(1), 9))
    raises(recon.Refused, "a mean of int64", lambda: hvd.allreduce(torch.tensor([1])))
    raises(recon.Refused, f"rank {size - 1} calls all_reduce", lambda: hvd.allreduce(torch.ones(2 + rank // (size - 1))))
    model = nn.Linear(2, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    raises(ValueError, "already", lambda: hvd.DistributedOptimizer(optimizer))
    raises(ValueError, "lacks 1 of", lambda: hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), named_parameters=[("weight", model.weight)]))
    model(torch.ones(1, 2)).sum().backward()
    raises(AssertionError, "under way", optimizer.zero_grad)
    optimizer.step()
    # To meet anew helps after a loss, and does not where a limit is reached.
    group = types.SimpleNamespace(name="full", size=size, lost=[], alive=True)
    full = hvd.ProcessSet(range(size))
    full.hold(group)

    def fail(error):
        with full.call():
            raise error

    raises(recon.ReconError, "calls under way", lambda: fail(recon.ReconError("too many calls under way")))
    raises(hvd.HorovodInternalError, "gone", lambda: fail(recon.JobLost("gone")))
    group.alive = False
    raises(hvd.HorovodInternalError, "left", lambda: fail(recon.ReconError("this process has left it")))


def names(rank, size):
    """Calls that match by their names, in another order on each rank."""
    places = range(8) if rank == 0 else reversed(range(8))
    handles = {place: hvd.allreduce_async(torch.full((3,), float(place)), name=f"v{place}", op=hvd.Sum) for place in places}
    for place, handle in handles.items():
        equal("by name", hvd.synchronize(handle), torch.full((3,), float(place * size)))
    # Of those without a name one operation's are in one order, whatever the others'.
    if rank == 0:
        sums = hvd.allreduce_async(torch.ones(2), op=hvd.Sum)
        gathered = hvd.allgather(torch.tensor([rank]))
    else:
        gathered = hvd.allgather(torch.tensor([rank]))
        sums = hvd.allreduce_async(torch.ones(2), op=hvd.Sum)
    equal("a sum", sums.wait(), torch.full((2,), float(size)))
    equal("gathered", gathered, torch.arange(size))

    def calls_of(thread):
        for number in range(5):
            values = torch.full((100 * (thread + 1),), float(thread * number))
            equal("of a thread", hvd.allreduce(values, name=f"t{thread}", op=hvd.Max), values)
            equal("of a thread", hvd.broadcast(values + rank, 0, name=f"t{thread}"), values)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(calls_of, range(4) if rank == 0 else reversed(range(4))))

    # Two types under one name, and one name for two calls.
    wide, narrow = hvd.grouped_allreduce([torch.ones(1), torch.ones(1, dtype=torch.float64)], name="g", op=hvd.Sum)
    equal("wide and narrow", torch.cat([wide.double(), narrow]), [float(size)] * 2)
    if rank == 0:
        first = hvd.allreduce_async(torch.ones(2), name="twice", op=hvd.Sum)
        raises(recon.Refused, "'twice': a call of set", lambda: hvd.allreduce(torch.ones(2), name="twice"))
        hvd.barrier()
    else:
        hvd.barrier()  # With the others' calls the first one would be over, and the second one a new one.
        first = hvd.allreduce_async(torch.ones(2), name="twice", op=hvd.Sum)
    equal("the first one", first.wait(), [float(size)] * 2)
    # Ranks that mean different things by one name are told both.
    def ask():
        return hvd.broadcast(torch.ones(2), 0, name="x") if rank == 0 else hvd.allreduce(torch.ones(2), name="x")
    for text in ("rank 0 calls broadcast 'x' uint8 of float32[2]", "calls all_reduce 'x' mean float32[2]"):
        raises(recon.Refused, text, ask)
    raises(recon.Refused, f"rank {size - 1} calls all_gather 'x' int64 of rows of float32[*, 2]",
           lambda: hvd.allgather(torch.ones(1, 1 + rank // (size - 1)), name="x"))


def names_of_optimizers(rank, size):
    # A call between backward() and step(), where a rank has not used the parameter that goes out first.
    first, second = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([first, second], lr=1.0), groups=2)
    (first if rank == size - 1 else first + second).sum().backward()
    equal("meanwhile", hvd.allreduce(torch.tensor([float(rank)]), op=hvd.Sum), [sum(range(size))])
    optimizer.step()
    equal("gradients", torch.cat([first.detach(), second.detach()]), [0.0, 1.0 - (size - 1) / size])
    # Two of equal parameters under way at once: with names made and used in another order on each rank.
    for named in (False, True):
        values, kept = {which: nn.Parameter(torch.zeros(4)) for which in "ab"}, {}
        for which in ("ab" if rank == 0 or not named else "ba"):
            value = values[which]  # Names are those of a whole model, of which each optimizer has a part.
            kept[which] = value, hvd.DistributedOptimizer(torch.optim.SGD([value], lr=1.0), values.items() if named else None)
        for which in ("ab" if rank == 0 else "ba"):
            (kept[which][0] * ({"a": 1.0, "b": 10.0}[which] + rank)).sum().backward()
        for which in ("ba" if rank == 0 else "ab"):
            kept[which][1].step()
            expected = -({"a": 1.0, "b": 10.0}[which] + (size - 1) / 2)
            equal(f"optimizer {which}", kept[which][0].detach(), [expected] * 4)
    # One after another of the same parameters has the name of the one before.
    for op in (hvd.Average, hvd.Adasum):
        made = [hvd.DistributedOptimizer(torch.optim.SGD([value], lr=1.0), [("v", value)], op=op) for _ in range(3)]
        assert len({one._name for one in made}) == 1, made


class Branched(nn.Module):
    """Of which a rank uses one branch."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(8, 16)
        self.out = nn.Linear(16, 3)

    def forward(self, x, second):
        return self.out(torch.tanh((self.second if second else self.first)(x)))


def trained(rank, make, passes=1, **options):
    """Parameters after 5 steps with this rank's data, from those that rank 0 begins with."""
    torch.manual_seed(1 + rank)
    model = Branched().double()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(make(model.parameters()), named_parameters=model.named_parameters(),
                                         backward_passes_per_step=passes, **options)
    data = torch.Generator().manual_seed(7)
    for _ in range(5):
        optimizer.zero_grad()
        for _ in range(passes):
            x = torch.randn(hvd.size(), 4, 8, generator=data, dtype=torch.float64)
            y = torch.randint(3, (hvd.size(), 4), generator=data)
            nn.functional.cross_entropy(model(x[rank], rank % 2 == 1), y[rank]).backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def optimizers(rank, size):
    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    for make in (sgd, torch.optim.Adam):
        expected = reference(size, make)
        for options in ({}, {"num_groups": 2}, {"gradient_predivide_factor": 2.0}):
            difference = (trained(rank, make, **options) - expected).abs().max()
            assert difference < 1e-9, f"{make} {options}: {difference}"
    difference = (trained(rank, sgd, passes=2) - reference(size, sgd, passes=2)).abs().max()
    assert difference < 1e-9, f"two passes a step: {difference}"
    together = hvd.allgather(trained(rank, sgd, op=hvd.Adasum).reshape(1, -1))
    assert torch.equal(together[0], together[-1]), "adasum leaves ranks apart"


def reference(size, make, passes=1):
    """The same of all ranks' data in one process."""
    torch.manual_seed(1)
    model = Branched().double()
    optimizer = make(model.parameters())
    data = torch.Generator().manual_seed(7)
    for _ in range(5):
        optimizer.zero_grad()
        for _ in range(passes):
            x = torch.randn(size, 4, 8, generator=data, dtype=torch.float64)
            y = torch.randint(3, (size, 4), generator=data)
            for rank in range(size):
                (nn.functional.cross_entropy(model(x[rank], rank % 2 == 1), y[rank]) / size).backward()
        for p in model.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def optimizer_after_optimizer(rank, size):
    """Of a model that is wrapped again, and of one whose optimizer is gone."""
    calls = []
    started = hvd._optimizer.reduce_async
    hvd._optimizer.reduce_async = lambda *call: calls.append(call) or started(*call)
    try:
        model = nn.Linear(2, 1)
        first = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        again = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), groups=2)
        model(torch.ones(1, 2)).sum().backward()
        again.step()
        assert len(calls) == 2, calls
        del again
        gc.collect()
        model(torch.ones(1, 2)).sum().backward()
        assert len(calls) == 2, calls
        first.step()
        assert len(calls) == 3, calls
    finally:
        hvd._optimizer.reduce_async = started
    # The one before steps while gradients of the one after it are under way.
    value = nn.Parameter(torch.zeros(2))
    before, after = (hvd.DistributedOptimizer(torch.optim.SGD([value], lr=1.0)) for _ in range(2))
    (value * float(rank)).sum().backward()
    before.step()
    after.step()
    equal("both steps", value.detach(), [1.0 - size] * 2)
    # Gradients of which nothing has gone out may be thrown away; others not.
    unused, used = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([used, unused], lr=1.0), groups=2)
    for _ in range(2):
        optimizer.zero_grad()
        (2.0 * used).sum().backward()
    optimizer.step()
    equal("after zero_grad", used.detach(), [-1.0])
    unused.sum().backward()
    raises(ValueError, "under way", lambda: optimizer.set_backward_passes_per_step(2))
    optimizer.step()
    raises(ValueError, "Adasum goes without", lambda: hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), op=hvd.Adasum, groups=2))
    raises(ValueError, "no compression", lambda: hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), compression="fp16"))


def largest_values(rank, size):
    """Gradients of which the largest travel: nothing is lost, but late."""
    def made(fraction, dtype=torch.float32, **options):
        values = [nn.Parameter(torch.zeros(3, 8, dtype=dtype)), nn.Parameter(torch.zeros(6, dtype=dtype))]
        return values, hvd.DistributedOptimizer(torch.optim.SGD(values, lr=1.0), compression=hvd.Compression.topk(fraction),
                                                **options)

    def gradients_of(which):
        return [torch.randn(shape, generator=torch.Generator().manual_seed(10 * which + i), dtype=torch.float64)
                for i, shape in enumerate(((3, 8), (6,)))]

    def step(values, optimizer):
        optimizer.zero_grad()
        sum((value * part.to(value.dtype)).sum() for value, part in zip(values, gradients_of(rank))).backward()
        optimizer.step()
        return torch.cat([value.detach().reshape(-1) for value in values])

    means = torch.cat([sum(parts).reshape(-1) for parts in zip(*(gradients_of(r) for r in range(size)))]) / size
    equal("all values", step(*made(1.0)), -means.float())
    equal("a sum of 16 bits", step(*made(1.0, torch.bfloat16, op=hvd.Sum)).float().round(), -(means * size).float().round())
    values, optimizer = made(0.2, torch.float64)
    for number in range(1, 31):
        sent = step(values, optimizer)
        changed = int((sent != 0).sum())
        if number == 1:
            assert 6 <= changed <= 6 * size, changed  # Of 30 each rank has sent 6.
        # What has arrived, and what all have kept: the first bucket has the last parameter first.
        kept = hvd.allreduce(next(iter(optimizer._sparse._kept.values())))
        equal("all that there was", sent - torch.cat([kept[6:], kept[:6]]), -number * means)
    assert (sent / number + means).abs().max() < 0.35, (sent / number + means).abs().max()
    optimizer.abandon()
    assert not optimizer._sparse._kept
    value = nn.Parameter(torch.zeros(4))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([value], lr=1.0), compression=hvd.Compression.topk(0.25))
    (value * torch.tensor([1.0, float("nan") if rank == 1 else 2.0, 3.0, 9.0])).sum().backward()
    optimizer.step()
    assert torch.isnan(value[1]) and value[3] == -9.0 * (size - 1) / size, value
    for fraction in (0.0, 1.5):
        raises(ValueError, "expected more than 0", lambda: hvd.Compression.topk(fraction))
    raises(ValueError, "goes with op=Average and op=Sum", lambda: made(0.5, op=hvd.Adasum))
    raises(ValueError, ".topk() of a DistributedOptimizer",
           lambda: hvd.allreduce(torch.ones(2), compression=hvd.Compression.topk(0.5)))


def optimizer_state(rank, size):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (rank + 1))
    if rank == 0:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.1 and len(optimizer.state) == 2
    steps = hvd.allgather(optimizer.state[model.weight]["exp_avg"].reshape(1, -1))
    assert torch.equal(steps[0], steps[-1])


def sampling(rank, size):
    sampler = hvd.elastic.ElasticSampler(range(20))
    every = hvd.allgather_object(list(sampler))
    assert all(len(part) == 7 for part in every) and set().union(*every) == set(range(20)), every
    sampler.record_batch(1, 2)
    sampler.merge(hvd.allgather_object(sampler.state_dict()))
    had = {index for part in every for index in part[2:4]}
    left = hvd.allgather_object(list(sampler))
    assert len(had) == 2 * size and set().union(*left) == set(range(20)) - had, left
    sampler.set_epoch(1)
    assert hvd.allgather_object(list(sampler)) != every and len(sampler) == 7


def joins(rank, size):
    """Ranks have data for 2, 3 and 4 batches: means are over those who have some."""
    for number in range(2 + rank):
        there = [r for r in range(size) if number < 2 + r]
        equal(f"batch {number}", hvd.allreduce(torch.tensor(float(rank))), sum(there) / len(there))
    last = hvd.join()
    assert last == size - 1, last
    equal("all again", hvd.allreduce(torch.tensor(1.0), op=hvd.Sum), float(size))


def operations():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    assert (hvd.local_rank(), hvd.local_size()) == ((rank, 2) if rank < 2 else (0, 1))
    assert (hvd.cross_rank(), hvd.cross_size()) == {0: (0, 2), 1: (0, 1), 2: (1, 2)}[rank]
    assert hvd.is_initialized() and not hvd.is_homogeneous()
    for case in (reductions, movements, later, gradients, batch_norm, process_sets, wrong_use, names, names_of_optimizers,
                 optimizers, optimizer_after_optimizer, largest_values, optimizer_state, sampling, joins,
                 batch_norm_without_who_has_joined):
        case(rank, size)
        print(case.__name__, "ok", flush=True)
    hvd.shutdown()
    assert not hvd.is_initialized()
    raises(ValueError, "call init() first", hvd.rank)


FIRST_CALLS = {
    "allreduce": lambda: hvd.allreduce(torch.ones(2)),
    "allgather": lambda: hvd.allgather(torch.ones(2)),
    "objects": lambda: hvd.allgather_object("x"),
    "adasum": lambda: hvd.allreduce(torch.ones(3), op=hvd.Adasum),
    "root": lambda: hvd.broadcast(torch.ones(1), 1),
}


def topk(value):
    return hvd.DistributedOptimizer(torch.optim.SGD([value], lr=1.0), compression=hvd.Compression.topk(0.5))


def loses_one():
    value = nn.Parameter(torch.zeros(2))
    before = topk(value)
    hvd.init()
    rank = hvd.rank()
    # In another order on each rank. Without one of the ranks they are equal.
    two, three = hvd.ProcessSet([0, 1]), hvd.ProcessSet([0, 1, 2])
    for one in (two, three) if rank == 0 else (three, two):
        hvd.add_process_set(one)
    hvd.barrier()
    if rank == 1:
        os._exit(9)
    call = FIRST_CALLS[sys.argv[2]]
    if os.environ.get("RECON_ON_LOSS") == "shrink":
        equal("the mean of who is left", hvd.allreduce(torch.tensor(float(rank))), 1.0)
        before.zero_grad()
        for largest in (lambda: topk(value), value.sum().backward):
            raises(ValueError, 'goes with on_loss="raise"', largest)
        raises(hvd.HorovodInternalError, "rank 1 is not among", lambda: hvd.broadcast(torch.ones(1), 1))
        raises(hvd.HorovodInternalError, "needs all 3 members", lambda: hvd.alltoall(torch.ones(3)))
        if sys.argv[2] in ("adasum", "root"):
            raises(hvd.HorovodInternalError, "", call)
        else:
            assert len(call()) in (2, 4)  # Of two ranks.
        assert hvd.join() in (0, 2)
        assert (hvd.rank(), hvd.size()) == (rank // 2, 2)
        equal("in one set", hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=two), [2.0])
        equal("in the other", hvd.allreduce(torch.ones(2), op=hvd.Sum, process_set=three), [2.0, 2.0])
        assert two.ranks == three.ranks == [0, 1]
        equal("of all", hvd.allreduce(torch.ones(1), op=hvd.Sum), [2.0])
    else:
        raises(hvd.HorovodInternalError, "", call)
        # Not the first call alone. Of others one rank may have begun more than another.
        for _ in range(3 if sys.argv[2] == "allreduce" else 0):
            raises(hvd.HorovodInternalError, "rank 1", lambda: hvd.allreduce(torch.ones(1)))
    print("ok", flush=True)


def elastic():
    """Counts batches until the file END is there; each adds 1 to a parameter, on all ranks alike."""
    hvd.init()
    end = pathlib.Path(sys.argv[2])
    value = nn.Linear(1, 1, bias=False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(value.parameters(), lr=1.0))

    class State(hvd.elastic.TorchState):
        def sync(self):
            if os.path.exists(os.environ.get("DIE_IN_SYNC", "")):
                os._exit(9)
            super().sync()

    state = State(value, optimizer, batch=0, over=False)
    with torch.no_grad():
        value.weight.zero_()
    state.save()
    state.register_reset_callbacks([lambda: print(f"reset: {hvd.size()} ranks", flush=True)])

    @hvd.elastic.run
    def train(state):
        while not state.over:
            optimizer.zero_grad()
            (-value.weight.sum()).backward()
            optimizer.step()
            state.batch += 1
            assert value.weight.item() == state.batch, (value.weight, state.batch)
            # All decide alike.
            state.over = bool(hvd.allreduce(torch.tensor(int(end.exists())), op=hvd.Max))
            print(f"batch {state.batch} of {hvd.size()} ranks, this is {hvd.rank()}", flush=True)
            state.commit()

    train(state)
    print(f"ended with {state.batch}", flush=True)


def elastic_join():
    """Rank 0 has no data; the others have until the file END is there."""
    hvd.init()
    end = pathlib.Path(sys.argv[2])
    state = hvd.elastic.ObjectState(batch=0)

    @hvd.elastic.run
    def train(state):
        while hvd.rank() > 0 and not end.exists():
            hvd.allreduce(torch.ones(1))
            state.batch += 1
            print(f"batch {state.batch} of {hvd.size()} ranks", flush=True)
            state.commit()
        print(f"joins {hvd.size()} ranks", flush=True)
        hvd.join()

    train(state)


{"elastic_join": elastic_join, "operations": operations, "loses_one": loses_one, "elastic": elastic}[sys.argv[1]]()
