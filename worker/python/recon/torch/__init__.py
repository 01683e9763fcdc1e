"""recon for PyTorch: three lines, and the script's own loop stays as it is.

    import recon.torch as rt
    loader = rt.DataLoader(dataset, batch_size=128, num_workers=4)     # in place of torch's DataLoader
    rt.join(model, optimizer, loader, evaluate=validate, epochs=10)    # when both exist
    for epoch in range(10):
        for x, y in loader:
            loss = criterion(model(x), y); loss.backward(); optimizer.step(); optimizer.zero_grad()

Every process that runs the script is a worker of the same job; it may be killed, and others may come, at any time.
"""

from recon.torch._data import DataLoader
from recon.torch._files import leased
from recon.torch._join import Job, join, steps_on_workers
from recon.torch._state import load_optimizer, state_dict

__all__ = ["DataLoader", "Job", "join", "leased", "load_optimizer", "state_dict", "steps_on_workers"]
