#!/usr/bin/env python3
"""Says once more, in few lines, why tests of a build's last ctest run have failed: ctest prints a failed test's output
among that of the others, and a log of which only the end is kept does not have it.

tools/failed_tests.py build/release"""

import argparse
import pathlib
import re

LINES = 14
# What a test prints where it fails: Catch2, Python's unittest, a sanitizer, ctest itself.
TELLS = re.compile(r"FAILED:|^(FAIL|ERROR): |Error: |ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|runtime error:|Assertion")
ENTRY = re.compile(r'^\d+/\d+ Testing: (?P<name>.+?)\n.*?^Output:\n-+\n(?P<output>.*?)^<end of output>\n(?P<end>.*?)(?=^"|\Z)',
                   re.MULTILINE | re.DOTALL)


def excerpt(output):
    """The lines about the first failure, or the last ones."""
    lines = output.rstrip().splitlines()
    for number, line in enumerate(lines):
        if TELLS.search(line):
            first = max(0, number - LINES // 3)
            return lines[first:first + LINES]
    return lines[-LINES:]


def failed(directory):
    """Names of the tests that failed, each with lines of its output."""
    where = directory / "Testing/Temporary"
    if not (where / "LastTestsFailed.log").exists():
        return {"ctest": ["no test has failed: it could not run them"]}
    names = {line.split(":", 1)[1] for line in (where / "LastTestsFailed.log").read_text().splitlines()}
    text = (where / "LastTest.log").read_text(errors="replace")
    outputs = {entry["name"]: excerpt(entry["output"] + entry["end"]) for entry in ENTRY.finditer(text)}
    return {name: outputs.get(name, ["(no output)"]) for name in sorted(names)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    for name, lines in failed(parser.parse_args().build).items():
        print(f"{name} failed:", *lines, sep="\n  ")


if __name__ == "__main__":
    main()
