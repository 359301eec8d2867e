"""Episodes of two agents through the Learner's default pipeline."""

import numpy as np
import pytest
import tensorflow as tf

from tfrl.agents import PPO, Impala, Reinforce
from tfrl.episodes import MultiAgentEpisode
from tfrl.errors import UserError
from tfrl.learners import Learner
from tfrl.specs import BoundedTensorSpec


def agent(kind=PPO, **options):
    return kind(
        obs_spec=tf.TensorSpec([2], tf.float32),
        action_spec=BoundedTensorSpec([], tf.int32, 0, 1),
        hidden=(4,),
        **options,
    )


def episode(steps, until):
    """Agents `left` and `right`; `right` ends after `until` steps."""
    rng = np.random.default_rng(steps)
    built = MultiAgentEpisode(agent_to_module_mapping_fn=lambda agent, episode: agent)
    alive = ["left", "right"]
    built.add_env_reset({a: rng.normal(size=[2]).astype(np.float32) for a in alive})
    for t in range(steps):
        built.add_env_step(
            {a: rng.normal(size=[2]).astype(np.float32) for a in alive},
            {a: int(rng.integers(2)) for a in alive},
            {a: 1.0 for a in alive},
            terminated={"right": t + 1 == until},
            extra_model_outputs={a: {"log_prob": np.float32(-0.7)} for a in alive},
        )
        alive = ["left"] if t + 1 >= until else alive
    return built


def test_modules_train_on_their_agents_steps():
    learner = Learner({"left": agent(), "right": agent()})
    learner.build()
    before = learner.get_state(["rl_module"])["rl_module"]
    results = learner.update_from_episodes([episode(12, 5), episode(7, 3)], num_epochs=2)
    after = learner.get_state(["rl_module"])["rl_module"]
    for module_id in ("left", "right"):
        assert np.isfinite(results[module_id]["loss"])
        changed = [
            not np.array_equal(value, after[module_id][path])
            for path, value in before[module_id].items()
            if path.startswith("params/")
        ]
        assert any(changed), module_id


@pytest.mark.parametrize("minibatch_size", [None, 4])
def test_episodes_of_any_length_and_equal_learners_share_a_trace(minibatch_size):
    traced = []

    class Counted(PPO):
        def prepare_minibatch(self, *args, **kwargs):
            traced.append(1)
            return super().prepare_minibatch(*args, **kwargs)

    for _ in range(2):
        learner = Learner({"left": agent(Counted), "right": agent(Counted)})
        learner.build()
        for steps in (6, 7, 9):
            learner.update_from_episodes(
                [episode(steps, 3)], minibatch_size=minibatch_size, num_epochs=1, compile="graph"
            )
        assert learner.trace_count == 1
    assert len(traced) == 2  # one for each module


def test_agents_of_unknown_modules_are_an_error():
    learner = Learner({"left": agent()})
    learner.build()
    with pytest.raises(UserError, match="modules of the learner, \\['left'\\], got .*'right'"):
        learner.update_from_episodes([episode(4, 2)])


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: agent(Impala), "Impala: V-trace learns from the trajectories of rollouts"),
        (lambda: agent(Reinforce), "Reinforce: REINFORCE learns from the rollouts in which"),
        (lambda: agent(gae_horizon=4), "PPO: gae_horizon cuts rollouts, not episodes"),
    ],
)
@pytest.mark.variants(1)
def test_agents_that_need_rollouts_say_so(made, why):
    learner = Learner({"left": made(), "right": agent()})
    learner.build()
    with pytest.raises(UserError) as error:
        learner.update_from_episodes([episode(4, 2)])
    assert str(error.value).startswith(
        "episodes for module 'left': expected an agent that learns from advantages of whole "
        f"episodes, such as PPO, got {why}"
    )
