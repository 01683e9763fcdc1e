#!/usr/bin/env python3
"""Draws what tools/bench/policies.sh --json measured, and what recon-bench goodput --json simulated: two SVG files beside
server/control/POLICIES.md. Needs matplotlib (tools/setup.sh --bench)."""

import argparse
import json
import pathlib

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent.parent.parent / "server" / "control"


def last_json(path):
    return json.loads(pathlib.Path(path).read_text().splitlines()[-1])


def save(figure, path):
    # No date and fixed ids: drawing the same data again gives the same file.
    matplotlib.rcParams["svg.hashsalt"] = "recon"
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
    print(f"wrote {path}")


def draw_policies(result, path):
    figure, (curves, bars) = pyplot.subplots(1, 2, figsize=(11, 4.2), gridspec_kw={"wspace": 0.35})
    for name, row in result["rows"].items():
        curves.plot([at for at, _ in row["evaluations"]], [a for _, a in row["evaluations"]], marker="o", label=name)
    curves.set_xscale("log")
    curves.set_xlabel("seconds since the first lease")
    curves.set_ylabel("test accuracy, %")
    curves.set_title(f"first seed, links of {result['link_mbit']} Mbit/s")
    curves.grid(alpha=0.3)
    curves.legend(fontsize=8)
    names = list(result["rows"])
    bars.barh(names, [result["rows"][name]["samples_per_s"] for name in names])
    bars.invert_yaxis()
    bars.set_xscale("log")
    bars.set_xlabel("samples a second")
    bars.set_title("throughput, mean of the seeds")
    save(figure, path)


def draw_goodput(result, path):
    figure, axis = pyplot.subplots(figsize=(7, 4.2))
    failures = list(dict.fromkeys(row["failures"] for row in result["table"]))
    for workers in dict.fromkeys(row["workers"] for row in result["table"]):
        rows = {row["failures"]: row for row in result["table"] if row["workers"] == workers}
        axis.plot(failures, [rows[f]["recon_goodput"] for f in failures], marker="o", label=f"recon asp, {workers} workers")
    axis.plot(failures, [rows[f]["restarts_goodput"] for f in failures], "k--", marker="x",
              label="all-reduce with restarts")
    axis.set_ylim(0, 1.05)
    axis.set_ylabel("goodput (simulated)")
    axis.set_xlabel("workers that die, in the whole cluster")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    save(figure, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", help="what policies.sh --json printed")
    parser.add_argument("--goodput", help="what recon-bench goodput --json printed")
    options = parser.parse_args()
    if options.policies:
        draw_policies(last_json(options.policies), HERE / "policies.svg")
    if options.goodput:
        draw_goodput(last_json(options.goodput), HERE / "goodput.svg")


if __name__ == "__main__":
    main()
