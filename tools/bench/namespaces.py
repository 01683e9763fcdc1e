"""Network namespaces with links of limited rate, for measurements on one machine. Needs root, ip, tc and ethtool."""

import json
import os
import secrets
import subprocess

SERVER_ADDRESS = "10.77.0.1"


def command(text):
    done = subprocess.run(text.split(), capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"bench: {text}: {done.stderr.strip()}")
    return done.stdout


class Star:
    """A namespace for each worker, joined by a bridge in one more, where the server is; with `servers`, each of so many
    has a namespace of its own. Each worker's (and such a server's) link has `mbit` in each direction; None = as fast as
    the machine is. Offloads are off, so that counters count what a wire would carry; with `offloads` packets of up to
    64 KiB go through, which costs the machine less, and limits count their bytes."""

    def __init__(self, workers, mbit, servers=0, offloads=False):
        self.offloads = offloads
        if os.geteuid() != 0:
            raise SystemExit("bench: network namespaces need root")
        # Between namespaces nobody finds the job's token by himself: all that is started shows this one.
        os.environ.setdefault("RECON_TOKEN", secrets.token_hex(16))
        self.tag = f"recon{os.getpid()}"
        self.leaves = [("worker", index) for index in range(workers)] + [("server", index) for index in range(servers)]
        self.mbit = mbit
        self.made = []

    def name(self, role, index):
        return f"{self.tag}-{role[0]}{index}" if (role, index) in self.leaves else f"{self.tag}-hub"

    def worker_address(self, index):
        return f"10.77.0.{index + 10}"

    def listen(self, index):
        """Where server `index` listens."""
        host = f"10.77.0.{index + 100}" if ("server", index) in self.leaves else SERVER_ADDRESS
        return f"{host}:{7070 + index}"

    def prefix(self, role, index):
        return ["ip", "netns", "exec", self.name(role, index)]

    def within(self, role, index, text):
        return command(" ".join(self.prefix(role, index)) + " " + text)

    def limit(self, role, index, device):
        if self.mbit is not None:
            burst = "256kb" if self.offloads else "32kb"
            self.within(role, index, f"tc qdisc add dev {device} root tbf rate {self.mbit}mbit burst {burst} latency 100ms")

    def __enter__(self):
        try:
            self.add("hub", 0)
            self.within("hub", 0, "ip link add bridge0 type bridge")
            self.within("hub", 0, f"ip addr add {SERVER_ADDRESS}/24 dev bridge0")
            self.within("hub", 0, "ip link set bridge0 up")
            for number, (role, index) in enumerate(self.leaves):
                self.add(role, index)
                self.within("hub", 0, f"ip link add to{number} type veth peer name link0 netns {self.name(role, index)}")
                self.within("hub", 0, f"ip link set to{number} master bridge0 up")
                host = self.worker_address(index) if role == "worker" else self.listen(index).split(":")[0]
                self.within(role, index, f"ip addr add {host}/24 dev link0")
                self.within(role, index, "ip link set link0 up")
                for end, at, device in (("hub", 0, f"to{number}"), (role, index, "link0")):
                    if not self.offloads:
                        self.within(end, at, f"ethtool -K {device} tso off gso off gro off tx off")
                    self.limit(end, at, device)
        except BaseException:
            self.__exit__()
            raise
        return self

    def add(self, role, index):
        name = self.name(role, index)
        command(f"ip netns add {name}")
        self.made.append(name)
        self.within(role, index, "ip link set lo up")

    def __exit__(self, *unused):
        for name in self.made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def counters(self, index):
        """Bytes the worker's interface has sent and received."""
        link = json.loads(self.within("worker", index, "ip -s -j link show dev link0"))[0]
        return link["stats64"]["tx"]["bytes"], link["stats64"]["rx"]["bytes"]
