"""EvolutionWorkflow in two processes, which share the population."""

import json
import zlib

import numpy as np
import pytest

from tests.distribute import processes
from tests.workflows.test_evolution import NORMALIZING, mirrored, workflow_of
from tfrl import struct

PROGRAM = """
    import json, sys
    from tfrl.distribute import make_strategy

    strategy = make_strategy("multi_worker")
    from tests.workflows import test_evolution_processes as test

    flow, found = test.learnt(sys.argv[1], strategy)
    found["chief"] = flow.worker_group.is_chief
    flow.worker_group.barrier("the end")  # who leaves earlier looks lost to the others
    print(json.dumps(found))
"""


def learnt(folder, strategy=None):
    """Runs some generations; returns the workflow, and digests of all that the state has."""
    flow = workflow_of(agent=NORMALIZING, obs_statistics="running", strategy=strategy)
    state = flow.learn(flow.setup(0), total_env_steps=400, root_dir=folder, progress=False)
    return flow, {"bits": bits_of(state), "env_steps": flow.report.env_steps}


def bits_of(state):
    """Digests of all leaves of a state."""
    return {path: zlib.crc32(np.array(x).tobytes()) for path, x in struct.paths(state).items()}


@pytest.mark.usefixtures("grappler")
def test_two_processes_give_the_bits_of_one(tmp_path):
    with processes.Cluster(PROGRAM, 2, tmp_path, args=[tmp_path / "two"]) as cluster:
        outputs = cluster.start().wait_all(300.0)
    found = [json.loads(out.splitlines()[-1]) for out in outputs]
    assert [each.pop("chief") for each in found] == [True, False]
    flow, one = learnt(str(tmp_path / "one"), mirrored(2))
    assert found == [one, one]
    rows = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("one", "two")]
    fitness = [[json.loads(row)["fitness_mean"] for row in text.splitlines()] for text in rows]
    assert fitness[0] == fitness[1] != []
    # One process goes on where two have ended.
    states = [flow.restore(str(tmp_path / name / "checkpoints")) for name in ("one", "two")]
    after = [bits_of(flow.advance(state, 1).state) for state in states]
    assert bits_of(states[1]) == one["bits"] != after[0]
    assert after[0] == after[1]
