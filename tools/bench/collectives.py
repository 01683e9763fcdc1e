#!/usr/bin/env python3
"""Collectives of recon beside gloo's (PyTorch's CPU back end), in one run: ranks, and recon's servers, each in a
network namespace of its own whose link is limited; then all on loopback. Prints a table of medians; with --json, one
JSON object as the last line. In `ratios`: recon's time over gloo's; of sets_at_once_of_one, the time of 16 sets at once over that
of one set that has the same values."""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from local_job import ROOT, LocalJob  # noqa: E402
from namespaces import Star  # noqa: E402

RANK = pathlib.Path(__file__).resolve().parent / "collective_rank.py"
PYTHON = ROOT / "build/python/bin/python3"


def run_ranks(options, backend, ranks, prefix, address):
    """Medians of each operation's rounds, of which the slowest rank counts."""
    environment = ["env", f"PYTHONPATH={options.bin.parent / 'python'}", "RECON_INSECURE=1"]
    if backend == "gloo" and prefix("worker", 0):
        environment.append("GLOO_SOCKET_IFNAME=link0")
    processes = [subprocess.Popen([str(word) for word in (
        *prefix("worker", rank), *environment, PYTHON, RANK, "--backend", backend, "--rank", rank, "--ranks", ranks,
        "--address", address, "--megabytes", options.megabytes, "--rounds", options.rounds)], stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)]
    try:
        outputs = [process.communicate(timeout=options.timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(process.returncode != 0 for process in processes):
        raise SystemExit(f"bench: a rank of {backend} ended with an error")
    rows = [json.loads(output.splitlines()[-1]) for output in outputs]
    return {name: statistics.median(max(times) for times in zip(*(row[name] for row in rows)))
            for name in rows[0] if rows[0][name]}


def ours(options, ranks, servers, prefix, listen):
    with LocalJob(options.bin, prefix, listen(0)) as job:
        flags = ["--servers", servers] if servers > 1 else []
        job.start_server(*flags, "--insecure")
        for index in range(1, servers):
            job.spawn("server", index, [options.bin / "recon-server", "--join", job.address, "--insecure", "--listen",
                                        listen(index), "--data", job.path / f"data{index}"])
        if servers > 1:
            job.wait(lambda: knows_all(job, servers), 60)
        try:
            return run_ranks(options, "recon", ranks, prefix, job.address)
        except BaseException:
            job.print_logs()
            raise


def knows_all(job, servers):
    """Whether the head has found them: there is no model yet that a status would tell of."""
    return (job.path / "server0.log").read_text().count(" has place ") == servers - 1


def compare(title, recon, gloo, suffix, result):
    print(f"\n{title}: seconds, medians")
    print(f"  {'':16}{'recon':>10}{'gloo':>10}{'ratio':>8}")
    for name, seconds in recon.items():
        base = gloo.get("allreduce_fp32" if name == "allreduce_fp16" else name)
        if base is None:
            print(f"  {name:16}{seconds:10.4f}{'-':>10}{'-':>8}")
            continue
        print(f"  {name:16}{seconds:10.4f}{base:10.4f}{seconds / base:8.2f}")
        result["ratios"][f"{name}_of_gloo_{suffix}"] = round(seconds / base, 3)
    result["seconds"][suffix] = {"recon": recon, "gloo": gloo}
    for name, seconds in (("recon", recon), ("gloo", gloo)):
        result["ratios"][f"sets_at_once_of_one_{name}_{suffix}"] = round(seconds["sets_at_once"] / seconds["allreduce_fp32"], 3)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--mbit", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--no-loopback", action="store_true")
    parser.add_argument("--no-links", action="store_true", help="loopback only; needs no root")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = {"megabytes": options.megabytes, "ratios": {}, "seconds": {}}
    if not options.no_links:
        with Star(options.ranks, options.mbit, options.servers, offloads=True) as star:
            recon = ours(options, options.ranks, options.servers, star.prefix, star.listen)
            gloo = run_ranks(options, "gloo", options.ranks, star.prefix, f"{star.worker_address(0)}:29400")
        compare(f"{options.ranks} ranks and {options.servers} servers, links of {options.mbit} Mbit/s", recon, gloo,
                "1g" if options.mbit == 1000 else f"{options.mbit}mbit", result)
    if not options.no_loopback:
        def here(*_):
            return []
        for ranks in (2, 4):
            recon = ours(options, ranks, 1, here, lambda index: f"127.0.0.1:{27470 + index}")
            gloo = run_ranks(options, "gloo", ranks, here, "127.0.0.1:29401")
            compare(f"{ranks} ranks and one server on loopback", recon, gloo, f"loopback{ranks}", result)
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
