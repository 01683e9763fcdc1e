"""A process that waits to become a worker: what takes longest at a worker's start, importing PyTorch, is done already.

Usage: spare.py FD [MODULE...]. It imports the modules, then waits for one line on the pipe FD, a JSON object: "program"
(a script's path, or with "module": true a module's name), "arguments" and "environment". Then it is that program, as
`python PROGRAM ARGUMENTS` would be. The end of the pipe without a line ends it.

It is started by its path and imports nothing of this package by itself, so that nothing is there that the program
would not have imported."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import runpy
import sys


def preload(modules: list[str]) -> None:
    own = [os.path.realpath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    for module in modules:
        # Whatever is wrong with a module is the program's to say, when it imports it.
        with contextlib.suppress(BaseException):
            top = module.split(".")[0]
            spec = importlib.util.find_spec(top)
            place = os.path.realpath(spec.origin or "") if spec else ""
            # What is being worked on may do things when it is imported; installed packages are made to be imported.
            if top == "recon" or not any(place.startswith(path + os.sep) for path in own):
                importlib.import_module(module)
    if "torch" in sys.modules:
        # The first optimizer that is made imports it, which takes nearly as long as PyTorch itself.
        with contextlib.suppress(BaseException):
            importlib.import_module("torch._dynamo")


def main() -> None:
    pipe = int(sys.argv[1])
    sys.path.pop(0)
    preload(sys.argv[2:])
    with open(pipe, encoding="utf-8") as lines:
        line = lines.readline()
    if not line:
        return
    job = json.loads(line)
    os.environ.update(job["environment"])
    program = job["program"]
    sys.argv = [program, *job["arguments"]]
    if job["module"]:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.realpath(program)))
        runpy.run_path(os.path.abspath(program), run_name="__main__")


def run() -> None:
    """An exception is shown as Python shows one of a program: without what led to its first line."""
    try:
        main()
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)


if __name__ == "__main__":
    run()
