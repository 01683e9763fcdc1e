"""An example that stands still in the middle of its work, where a test kills it: stands_still.py EXAMPLE ARGUMENT..."""

import pathlib
import runpy
import sys
import time

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "worker/python/examples"


def stand_still():
    print("stands still", flush=True)
    while True:
        time.sleep(60)


def in_step_30_of_pipeline():
    import pipeline_model
    pieces = pipeline_model.pieces

    def stopped(batch, step, *more):
        if step == 30:
            stand_still()
        return pieces(batch, step, *more)

    pipeline_model.pieces = stopped


def in_third_commit_of_three_ranks():
    import recon.hvd as hvd
    commit, commits = hvd.elastic.State.commit, []

    def stopped(state):
        commits.append(hvd.size())
        if commits.count(3) == 3:
            stand_still()
        commit(state)

    hvd.elastic.State.commit = stopped


sys.path.insert(0, str(EXAMPLES))
sys.argv = sys.argv[1:]
{"pipeline.py": in_step_30_of_pipeline, "hvd_elastic.py": in_third_commit_of_three_ranks}[sys.argv[0]]()
runpy.run_path(str(EXAMPLES / sys.argv[0]), run_name="__main__")
