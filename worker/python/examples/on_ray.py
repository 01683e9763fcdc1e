"""The NumPy example on a Ray cluster: python on_ray.py DIR WORKERS, with DIR where all nodes see it. Without a cluster
(RAY_ADDRESS), one is started on this machine."""

import pathlib
import sys

import ray
import recon.ray

SCRIPT = pathlib.Path(__file__).resolve().with_name("numpy_softmax.py")


def train() -> None:
    exec(source, {"__name__": "__main__"})


source = SCRIPT.read_text()
ray.init()
# Nodes of one network that nobody else is in: otherwise RECON_TLS_CERT, RECON_TLS_KEY and RECON_TLS_CA.
job = recon.ray.Job(train, data=sys.argv[1], workers=int(sys.argv[2]), environment={"RECON_INSECURE": "1"},
                    server_flags=["--idle-timeout", "10m"])
status = job.wait()
print(f"done: {status['data_epochs_completed']:.0f} passes over {status['train_samples']:,} samples")
