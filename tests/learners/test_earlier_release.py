"""A checkpoint of an earlier release is restored, by this one and by all that follow.

The folder data/learner_v1 was written, once, from the top of the repository by

    python -m tests.learners.test_earlier_release tests/learners/data/learner_v1

It stays as it is: when the format changes, its schema version is raised, and a second folder is
added beside this one.
"""

import pathlib
import sys

import numpy as np

from tfrl.experiment.metadata import params_digest
from tfrl.learners import Learner, ModuleConfig

sys.path.insert(0, str(pathlib.Path(__file__).parent))  # the checkpoint names learner_fakes:Dot
from learner_fakes import Dot, Held, column

from tfrl.keras import api as keras

FIXTURE = pathlib.Path(__file__).parent / "data" / "learner_v1"
DIGEST = "faee979d07d290739746e57073ff69fe5d95e43bae26fa90e8ec2b9604a207f4"
# The mean of the column is the gradient, [2, 3].
ROWS = column([1.0, 2.0], [3.0, 4.0])


def momentum(config):
    return keras.optimizers.legacy.SGD(0.0, momentum=0.5)


def saved_learner():
    """Two updates, at half of the schedule: a rate of 1/8."""
    config = {
        "line": ModuleConfig(lr=[[0, 0.25], [100, 0.0]], grad_clip=8.0),
        "held": ModuleConfig(),
        "later": ModuleConfig(lr=0.5, minibatch_size=1),
    }
    learner = Learner(
        {"line": Dot(), "held": Held()},
        config={m: config[m] for m in ("line", "held")},
        optimizer_fn=momentum,
        check_numerics="raise",
    )
    learner.build(3)
    learner.add_module("later", Dot(), config_overrides=config["later"])
    learner.train_only(["line"])
    for _ in range(2):
        learner.update_from_batch({"line": ROWS}, timesteps=50)
    learner.metrics.log("episodes", 7, reduce="lifetime_sum")
    return learner


def test_it_is_restored_to_the_bit_and_goes_on():
    learner = Learner.from_checkpoint(FIXTURE, optimizer_fn=momentum)
    assert params_digest(learner.variables()) == DIGEST
    assert sorted(learner.modules) == ["held", "later", "line"]
    assert learner.policies_to_train == ["line"] and learner.check_numerics == "raise"
    assert learner.configs["line"] == ModuleConfig(lr=[[0, 0.25], [100, 0.0]], grad_clip=8.0)
    assert learner.configs["later"] == ModuleConfig(lr=0.5, minibatch_size=1)
    counters = ("learner_steps", "skipped_steps", "env_steps", "weights_seq_no")
    assert [int(getattr(learner, name)) for name in counters] == [2, 0, 50, 2]
    assert learner.metrics.peek("episodes") == 7
    # v = 0.5 v - g / 8: -1/4 and -3/8, then -3/8 and -9/16; w begins at 1.
    np.testing.assert_array_equal(learner.module_state("line").params["w"], [0.375, 0.0625])
    np.testing.assert_array_equal(learner.module_state("later").params["w"], [1.0, 1.0])
    # Then -7/16 and -21/32.
    learner.update_from_batch({"line": ROWS})
    np.testing.assert_array_equal(learner.module_state("line").params["w"], [-0.0625, -0.59375])


def test_this_release_would_save_the_same(tmp_path):
    folders = (tmp_path / "now", FIXTURE)
    saved_learner().save_to_path(folders[0])
    now, before = (Learner.from_checkpoint(p, optimizer_fn=momentum) for p in folders)
    assert list(now.variables()) == list(before.variables())
    for path, variable in now.variables().items():
        # What a module begins with is drawn from a key; another machine may round otherwise.
        np.testing.assert_allclose(variable, before.variables()[path], rtol=1e-5, err_msg=path)
    files = [[p.relative_to(f) for p in f.rglob("*") if p.is_file()] for f in folders]
    assert sorted(files[0]) == sorted(files[1])
    assert sum(p.stat().st_size for p in FIXTURE.rglob("*") if p.is_file()) < 20_000


if __name__ == "__main__":
    made = saved_learner()
    made.save_to_path(sys.argv[1])
    print(params_digest(made.variables()))
