"""Fixtures of the tests of roles."""

import numpy as np
import pytest

from tests.roles.jobs import PPO, workflow
from tfrl.replay.reverb.library import reverb
from tfrl.replay.reverb.server import ReverbServer
from tfrl.roles import collector as collector_lib
from tfrl.roles import tables
from tfrl.roles.remote_collectors import RolloutCollectors


@pytest.fixture(name="queue")
def fixture_queue():
    """A learner of rollouts, and a function that queues one of a version over a line."""
    from tests.replay.reverb import test_duplicates  # needs Reverb

    learner = workflow(PPO)
    server = ReverbServer(tables.make_tables(learner, 1))
    line = test_duplicates.Line(server.port)
    signature = tables.rollout_signature(tables.rollout_form(learner, 1), 1)
    writer = reverb().Client(line.address).trajectory_writer(1)

    def send(version, task_id=0, request=0):
        row = {name: np.zeros(s.shape, s.dtype.as_numpy_dtype) for name, s in signature.items()}
        row[collector_lib.POLICY_VERSION] = np.int64(version)
        row[collector_lib.TASK_ID] = np.int32(task_id)
        row[collector_lib.REQUEST] = np.int64(request)
        writer.append(row)
        columns = {name: writer.history[name][-1] for name in row}
        writer.create_item(tables.ROLLOUTS, 1.0, columns)
        return writer

    made = []

    def make(**options):
        options = {"synchronous": False, "wait_seconds": 20.0, **options}
        made.append(RolloutCollectors(learner, server.address, **options))
        return made[0]

    yield make, send, line
    for collectors in made:
        collectors.close()
    writer.close()
    line.close()
    learner.close()
    server.stop()
