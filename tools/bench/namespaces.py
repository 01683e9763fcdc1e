"""Network namespaces with links of limited rate, for measurements on one machine. Needs root, ip, tc and ethtool."""

import json
import os
import subprocess

SERVER_ADDRESS = "10.77.0.1"


def command(text):
    done = subprocess.run(text.split(), capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"bench: {text}: {done.stderr.strip()}")
    return done.stdout


class Star:
    """One namespace for the server and one for each worker, joined by a bridge. Each worker's link has `mbit` in each
    direction; None = as fast as the machine is. Offloads are off, so that counters count what a wire would carry."""

    def __init__(self, workers, mbit):
        if os.geteuid() != 0:
            raise SystemExit("bench: network namespaces need root")
        self.tag = f"recon{os.getpid()}"
        self.workers = workers
        self.mbit = mbit
        self.made = []

    def name(self, role, index):
        return f"{self.tag}-{'s' if role == 'server' else f'w{index}'}"

    def prefix(self, role, index):
        return ["ip", "netns", "exec", self.name(role, index)]

    def within(self, role, index, text):
        return command(" ".join(self.prefix(role, index)) + " " + text)

    def limit(self, role, index, device):
        if self.mbit is not None:
            self.within(role, index, f"tc qdisc add dev {device} root tbf rate {self.mbit}mbit burst 32kb latency 100ms")

    def __enter__(self):
        try:
            self.add("server", 0)
            self.within("server", 0, "ip link add bridge0 type bridge")
            self.within("server", 0, f"ip addr add {SERVER_ADDRESS}/24 dev bridge0")
            self.within("server", 0, "ip link set bridge0 up")
            for index in range(self.workers):
                self.add("worker", index)
                self.within("server", 0, f"ip link add to{index} type veth peer name link0 netns {self.name('worker', index)}")
                self.within("server", 0, f"ip link set to{index} master bridge0 up")
                self.within("worker", index, f"ip addr add 10.77.0.{index + 10}/24 dev link0")
                self.within("worker", index, "ip link set link0 up")
                for role, device in (("server", f"to{index}"), ("worker", "link0")):
                    self.within(role, index, f"ethtool -K {device} tso off gso off gro off tx off")
                    self.limit(role, index, device)
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
