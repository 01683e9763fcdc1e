#!/usr/bin/env python3
"""What more servers bring: four workers and 1, 2 and 4 servers, each in a network namespace of its own whose link is
limited, synchronous steps (BSP) with gradients in FP32 and nothing to compute. Beside it, on the same links, the
all-reduce of gloo among the workers (PyTorch's CPU back end), the same bytes over plain TCP connections both ways at
once (tcp_exchange.py), and what the links allow. Prints a table; with --json, one JSON object as the last line. In
`ratios`: step time over gloo's, and plain TCP's over step time, at each number of servers."""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from local_job import ROOT, LocalJob  # noqa: E402
from namespaces import Star  # noqa: E402

# The first steps fill pools and windows.
WARM_UP = 3
# All servers are on this machine: a thread for each of its cores in each of them would be too many.
ONE_THREAD = ["--apply-threads", 1]


def collect(processes, seconds):
    """The arrays that processes print, step by step the slowest."""
    rows = []
    for process in processes:
        output, _ = process.communicate(timeout=seconds)
        if process.returncode != 0:
            raise SystemExit(f"bench: a process ended with {process.returncode}")
        rows.append(json.loads(output.splitlines()[-1]))
    return [max(step) for step in zip(*rows)][WARM_UP:]


def bound(options, servers):
    """Seconds that a step takes at least: its bytes over the busiest link, one direction."""
    at_worker = 4 * options.parameters
    at_server = options.workers * 4 * options.parameters / servers
    return max(at_worker, at_server) * 8 / (options.mbit * 1e6)


def ours(options, servers):
    with Star(options.workers, options.mbit, servers, offloads=True) as star, LocalJob(options.bin, star.prefix, star.listen(0)) as job:
        job.start_server("--servers", servers, "--sync", "bsp", "--workers-min", options.workers, "--optimizer", "sgd",
                         "--split-samples", 1000, "--snapshot-interval", "1h", "--durability", options.durability,
                         "--insecure", *ONE_THREAD)
        for index in range(1, servers):
            job.spawn("server", index, [options.bin / "recon-server", "--join", job.address, "--insecure", "--listen",
                                        star.listen(index), "--data", job.path / f"data{index}", *ONE_THREAD])
        processes = []
        for index in range(options.workers):
            command = [*star.prefix("worker", index), options.bin / "recon-bench", "step-load", "--server", job.address,
                       "--name", f"w{index}", "--parameters", options.parameters, "--steps", options.steps + WARM_UP, "--connections", options.connections]
            processes.append(subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True))
        try:
            return collect(processes, options.timeout)
        finally:
            for process in processes:
                process.kill()


def plain_tcp(options, servers):
    with Star(options.workers, options.mbit, servers, offloads=True) as star:
        addresses = [star.listen(index).split(":")[0] for index in range(servers)]
        script = [options.python, pathlib.Path(__file__).with_name("tcp_exchange.py"), "--bytes",
                  4 * options.parameters // servers, "--steps", options.steps + WARM_UP]
        listening = [subprocess.Popen([str(part) for part in [*star.prefix("server", index), *script, "--listen", address,
                                                              "--workers", options.workers]])
                     for index, address in enumerate(addresses)]
        workers = [subprocess.Popen([str(part) for part in [*star.prefix("worker", index), *script, "--servers",
                                                            ",".join(addresses)]], stdout=subprocess.PIPE, text=True)
                   for index in range(options.workers)]
        try:
            return collect(workers, options.timeout)
        finally:
            for process in listening + workers:
                process.kill()
                process.wait()


def gloo(options):
    with Star(options.workers, options.mbit, offloads=True) as star:
        processes = []
        for rank in range(options.workers):
            command = [*star.prefix("worker", rank), "env", "GLOO_SOCKET_IFNAME=link0", options.python,
                       pathlib.Path(__file__).with_name("gloo_ring.py"), "--rank", rank, "--ranks", options.workers,
                       "--address", f"{star.worker_address(0)}:7071", "--parameters", options.parameters, "--steps",
                       options.steps + WARM_UP]
            processes.append(subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True))
        try:
            return collect(processes, options.timeout)
        finally:
            for process in processes:
                process.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=ROOT / "build/release/bin", type=pathlib.Path, help="where the programs are")
    parser.add_argument("--python", default="/usr/bin/python3", help="one that has torch")
    parser.add_argument("--workers", default=4, type=int)
    parser.add_argument("--servers", default="1,2,4", help="comma-separated")
    parser.add_argument("--parameters", default=25_000_000, type=int, help="of FP32: 4 bytes each")
    parser.add_argument("--mbit", default=1000, type=int, help="of each link, in each direction")
    parser.add_argument("--connections", default=1, type=int, help="of a worker to each server")
    parser.add_argument("--steps", default=7, type=int, help="the median is of these")
    parser.add_argument("--durability", default="snapshot", choices=["snapshot", "log", "sync"],
                        help="as the server's; with a push log the disk is measured, too")
    parser.add_argument("--timeout", default=300, type=int, help="seconds for one run")
    parser.add_argument("--no-gloo", action="store_true", help="only our own")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    result = {"workers": options.workers, "gradient_bytes": 4 * options.parameters, "link_mbit": options.mbit,
              "durability": options.durability, "steps": options.steps, "servers": {}, "ratios": {}}
    reference = None
    if not options.no_gloo:
        reference = statistics.median(gloo(options))
        ring = 2 * (options.workers - 1) / options.workers * bound(options, options.workers)
        result["gloo"] = {"step_seconds": reference, "bound_seconds": ring}
        print(f"gloo, all-reduce among {options.workers}: {reference:.3f} s, the links allow {ring:.3f} s")
    for servers in [int(number) for number in options.servers.split(",")]:
        steps = ours(options, servers)
        median = statistics.median(steps)
        tcp = statistics.median(plain_tcp(options, servers))
        limit = bound(options, servers)
        result["servers"][str(servers)] = {"step_seconds": median, "tcp_seconds": tcp, "bound_seconds": limit,
                                           "worst_seconds": max(steps)}
        result["ratios"][f"bound_of_step_{servers}"] = limit / median
        result["ratios"][f"tcp_of_step_{servers}"] = tcp / median
        if reference is not None:
            result["ratios"][f"step_of_gloo_{servers}"] = median / reference
        print(f"recon, {servers} servers: {median:.3f} s, plain TCP {tcp:.3f} s, the links allow {limit:.3f} s")
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
