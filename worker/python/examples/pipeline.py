"""A small transformer in three stages (embedding, encoder, decoder), each on two workers that halve the batch. Start it
six times with RECON_RANK=0 to 5, and again with its rank where one dies: the others wait for it, and it gets what its
twin has. pipeline_model.py trains the same model in one process."""

import os

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import recon
from pipeline_model import WIDTH, Momentum, build, loss_of, options, pieces
from recon.meeting import Meeting

WORKERS = 2  # Of each stage.
args = options(__doc__)


class Worker:
    """One worker of one stage. Its step counts when all stages have their gradients, for all of them or for none."""

    def __init__(self, rank):
        self.stage, self.number = divmod(rank, WORKERS)
        self.module = build(self.stage)
        self.optimizer = Momentum(self.module, args.lr)
        self.done, self.losses = 0, []
        self.meeting = Meeting("pipeline", rank=rank, size=3 * WORKERS, member=f"worker {rank}")

    def run(self):
        while self.done < args.steps:
            world = self.meeting.meet()
            sets = [world]
            try:
                sets.append(world.split(f"stage {self.stage}"))
                sets.append(world.split(f"chain {self.number}"))
                self.take_state(*sets[:2])
                while self.done < args.steps:
                    self.step(*sets)
            except recon.Refused:
                raise
            except recon.ReconError as error:
                print(f"step {self.done}: {error}", flush=True)
                self.module.zero_grad()
            for one in sets:
                one.close()  # Whoever waits for this worker hears it at once.

    def take_state(self, world, stage):
        """From the worker of this stage that has done more steps."""
        steps = world.all_gather(np.array([self.done]))
        done = stage.all_gather(np.array([self.done]))
        if done.max() < steps.max():
            raise SystemExit(f"all workers of stage {self.stage} are gone, and its parameters with them")
        root = int(done.argmax())
        values = parameters_to_vector(self.module.parameters()).detach()
        vector_to_parameters(stage.broadcast(values, root), self.module.parameters())
        self.optimizer.moving = stage.broadcast(self.optimizer.moving, root)
        print(f"goes on with step {done.max()}", flush=True)
        self.done = int(done.max())

    def step(self, world, stage, chain):
        x, y = pieces(args.batch, self.done, self.number, WORKERS)
        sent, made, losses = [], [], []
        for number, (part, goal) in enumerate(zip(x.chunk(args.micro_batches), y.chunk(args.micro_batches))):
            if self.stage > 0:
                part = chain.recv(torch.empty(*part.shape, WIDTH), self.stage - 1, tag=number).requires_grad_()
            out = self.module(part)
            if self.stage < 2:
                sent.append(chain.send(out.detach(), self.stage + 1, tag=number, async_op=True))
            else:
                out = loss_of(out, goal) / args.micro_batches
                losses.append(out.item())
            made.append((part, out))
        for number, (part, out) in enumerate(made):
            out.backward(chain.recv(torch.empty_like(out), self.stage + 1, tag=number) if self.stage < 2 else None)
            if self.stage > 0:
                sent.append(chain.send(part.grad, self.stage - 1, tag=number, async_op=True))
        for handle in sent:
            handle.wait()
        gradient = stage.all_reduce(self.optimizer.gradient(), "mean")
        loss = stage.all_reduce(torch.tensor([float(sum(losses))]), "mean").item()
        world.barrier()
        self.optimizer.step(gradient)
        self.losses.append(loss)
        self.done += 1
        if self.stage == 2 and self.done % 10 == 0:
            print(f"step {self.done}: loss {loss:.4f}", flush=True)


worker = Worker(int(os.environ["RECON_RANK"]))
worker.run()
if worker.losses and worker.stage == 2:
    print(f"loss {np.mean(worker.losses[-10:]):.4f}", flush=True)
