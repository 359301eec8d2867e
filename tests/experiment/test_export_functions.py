import numpy as np
import pytest
import tensorflow as tf

from tfrl import seeding, specs
from tfrl.agents import DQN, PPO, SAC, TD3, MultiAgent, RandomAgent
from tfrl.experiment import export_functions
from tfrl.experiment.export_functions import policy_functions

OBS = tf.TensorSpec([3])
BOX = specs.BoundedTensorSpec([2], tf.float32, [-2.0, 0.0], [2.0, 1.0])
KEY = seeding.key(4)


def made(agent, **changes):
    state = agent.init(KEY).replace(**changes)
    return state, policy_functions(agent, state)


def draw(spec, size=20):
    return specs.sample(spec, KEY, [size])


def test_the_normaliser_is_inside_and_drawing_is_that_of_the_agent():
    agent = PPO(obs_spec=OBS, action_spec=specs.DiscreteSpec(4, start=2), normalize_obs=True)
    state = agent.init(KEY)
    moved = agent.update_normalizer(
        state,
        tf.nest.map_structure(lambda x: x, _trajectory(7.0 + 3.0 * seeding.normal(KEY, [9, 5, 3]))),
    )
    policy = policy_functions(agent, moved)
    obs = 7.0 + 3.0 * draw(OBS)
    own = agent.evaluate_actions(moved, obs, KEY).action
    np.testing.assert_array_equal(policy.functions["action"](obs)["action"], own)
    seeds = [0, 1, 2**40]
    drawn = [policy.functions["explore"](obs, tf.constant(s, tf.int64))["action"] for s in seeds]
    for seed, action in zip(seeds, drawn, strict=True):
        np.testing.assert_array_equal(
            action, agent.compute_actions(moved, obs, seeding.key(seed)).action
        )
    assert len({tuple(a.numpy()) for a in drawn}) == 3
    logits = policy.functions["distribution"](obs)["logits"]
    np.testing.assert_allclose(tf.reduce_sum(tf.exp(logits), -1), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(2 + np.argmax(logits, -1), own)
    assert policy.distributions["."]["kind"] == "categorical"
    assert policy.distributions["."]["start"] == 2
    unmoved = policy_functions(agent, state).functions["distribution"](obs)["logits"]
    assert np.abs(unmoved - logits).max() > 1e-4, "the statistics count"


def _trajectory(obs):
    from tfrl.types import Trajectory

    flat = obs.shape[:2]
    flags = tf.zeros(flat, tf.bool)
    return Trajectory(
        obs=obs, action=tf.zeros(flat, tf.int64), reward=tf.zeros(flat), next_obs=obs,
        termination=flags, truncation=flags, valid=None,
    )  # fmt: skip


def test_gaussians_say_by_what_formula_actions_follow():
    obs = draw(OBS)
    for agent, kind in (
        (PPO(obs_spec=OBS, action_spec=BOX), "gaussian"),
        (PPO(obs_spec=OBS, action_spec=BOX, squash=True), "tanh_gaussian"),
        (SAC(obs_spec=OBS, action_spec=BOX, hidden=(8,)), "tanh_gaussian"),
    ):
        state, policy = made(agent)
        found = policy.functions["distribution"](obs)
        about = policy.distributions["."]
        assert (about["kind"], found["loc"].shape, found["scale"].shape) == (kind, (20, 2), (20, 2))
        assert (found["scale"].numpy() > 0).all()
        mode = found["loc"].numpy()
        if kind == "tanh_gaussian":
            low, high = np.array(about["low"]), np.array(about["high"])
            assert (low.tolist(), high.tolist()) == ([-2.0, 0.0], [2.0, 1.0])
            mode = (low + high) / 2 + (high - low) / 2 * np.tanh(mode)
        else:
            assert (mode[:, 1] < 0).any()
            mode = np.clip(mode, [-2.0, 0.0], [2.0, 1.0])
        np.testing.assert_allclose(policy.functions["action"](obs)["action"], mode, atol=1e-6)
        drawn = policy.functions["explore"](obs, tf.constant(0, tf.int64))["action"]
        own = agent.compute_actions(state, obs, seeding.key(0)).action
        np.testing.assert_allclose(drawn, np.clip(own, [-2.0, 0.0], [2.0, 1.0]), atol=1e-6)


def test_nests_masks_and_bits():
    spec = {"move": specs.DiscreteSpec(3), "bits": specs.BinarySpec(2), "turn": BOX}
    state, policy = made(PPO(obs_spec={"a": OBS, "b": OBS}, action_spec=spec))
    assert (policy.inputs, policy.state) == (("observation_a", "observation_b"), ())
    obs = draw(OBS)
    found = policy.functions["distribution"](obs, -obs)
    assert sorted(found) == ["loc_turn", "logits_bits", "logits_move", "scale_turn"]
    action = policy.functions["action"](obs, -obs)
    np.testing.assert_array_equal(action["action_bits"], found["logits_bits"].numpy() > 0)
    assert action["action_bits"].dtype == tf.int8
    masked = {
        "observation": OBS,
        "action_mask": specs.BoundedTensorSpec([3], tf.bool, False, True),
    }
    _, policy = made(PPO(obs_spec=masked, action_spec=specs.DiscreteSpec(3)))
    assert policy.inputs == ("observation_action_mask", "observation_observation")
    mask = tf.one_hot(tf.range(20) % 3, 3, on_value=True, off_value=False)
    action = policy.functions["explore"](mask, obs, tf.constant(1, tf.int64))["action"]
    np.testing.assert_array_equal(action, np.arange(20) % 3)


def test_q_values_and_deterministic_actions():
    obs = draw(OBS)
    agent = DQN(obs_spec=OBS, action_spec=specs.DiscreteSpec(3), epsilon=1.0)
    state, policy = made(agent)
    values = policy.functions["distribution"](obs)["q_values"]
    np.testing.assert_allclose(values, agent.action_values(state, obs), atol=1e-6)
    np.testing.assert_array_equal(
        policy.functions["action"](obs)["action"], np.argmax(values, axis=-1)
    )
    drawn = policy.functions["explore"](obs, tf.constant(0, tf.int64))["action"]
    assert set(drawn.numpy()) == {0, 1, 2}, "epsilon is that of the state"
    _, policy = made(TD3(obs_spec=OBS, action_spec=BOX, hidden=(8,)))
    loc = policy.functions["distribution"](obs)["loc"]
    np.testing.assert_array_equal(loc, policy.functions["action"](obs)["action"])
    explored = policy.functions["explore"](obs, tf.constant(0, tf.int64))["action"]
    assert (explored.numpy() != loc.numpy()).any()
    assert (explored >= BOX.minimum).numpy().all() and (explored <= BOX.maximum).numpy().all()


def test_critics_are_no_part_of_an_export():
    _, policy = made(SAC(obs_spec=OBS, action_spec=BOX, hidden=(32,)))
    for function in policy.functions.values():
        nodes = function.get_concrete_function().graph.as_graph_def().node
        sizes = [
            tuple(d.size for d in n.attr["value"].tensor.tensor_shape.dim)
            for n in nodes
            if n.op == "Const"
        ]
        assert (3, 32) in sizes  # the actor's first layer
        assert not [s for s in sizes if s[:1] == (2,) and len(s) == 3]  # stacked critics


def test_memory_goes_in_and_out_of_every_function():
    agent = PPO(obs_spec=OBS, action_spec=BOX, memory="lstm", memory_size=4)
    state, policy = made(agent)
    assert policy.state == (
        "state_policy_cell", "state_policy_hidden", "state_value_cell", "state_value_hidden",
    )  # fmt: skip
    begun = policy.functions["initial_state"](tf.constant(20))
    assert [begun[n].shape for n in policy.state] == [(20, 4)] * 4
    carry = [begun[n] for n in policy.state]
    obs = draw(OBS)
    after = policy.functions["action"](obs, *carry)
    own = agent.evaluate_actions(state, obs, KEY, agent.initial_carry(20))
    np.testing.assert_allclose(after["state_policy_cell"], own.carry["policy"]["cell"], atol=1e-6)
    for name, more in (("explore", (tf.constant(0, tf.int64),)), ("distribution", ())):
        other = policy.functions[name](obs, *carry, *more)
        for n in policy.state:
            np.testing.assert_allclose(other[n], after[n], atol=1e-6)


def test_several_policies_are_one_export():
    obs_spec = {"left": OBS, "right": OBS, "judge": tf.TensorSpec([2])}
    move = specs.DiscreteSpec(3)
    agent = MultiAgent(
        obs_spec=obs_spec,
        action_spec={"left": move, "right": move, "judge": BOX},
        policies={"players": PPO, "judge": PPO},
        policy_mapping_fn={"left": "players", "right": "players", "judge": "judge"},
    )
    state = agent.init(KEY)
    policy = policy_functions(agent, state)
    obs = {name: draw(spec) for name, spec in obs_spec.items()}
    given = [obs[name] for name in sorted(obs)]
    found = policy.functions["action"](*given)
    own = agent.evaluate_actions(state, obs, KEY).action
    assert policy.outputs == ("action_judge", "action_left", "action_right")
    for name in obs:
        wanted = specs.clip(own[name], agent.action_spec[name])
        np.testing.assert_allclose(found[f"action_{name}"], wanted, atol=1e-6)
    parameters = policy.functions["distribution"](*given)
    assert sorted(parameters) == ["loc_judge", "logits_left", "logits_right", "scale_judge"]
    np.testing.assert_array_equal(np.argmax(parameters["logits_left"], -1), own["left"])
    assert policy.distributions["judge"]["kind"] == "gaussian"


def test_what_an_agent_cannot_do_is_left_out_with_the_reason():
    class Shy(RandomAgent):
        def evaluate_actions(self, state, obs, key, carry=None):
            return super().evaluate_actions(state, tf.ensure_shape(obs, [7, 3]), key, carry)

        def compute_actions(self, state, obs, key, carry=None):
            if obs.shape[0] is None:
                raise NotImplementedError("no batch of unknown size\nand more")
            return super().compute_actions(state, obs, key, carry)

    agent = Shy(obs_spec=OBS, action_spec=specs.DiscreteSpec(3))
    policy = policy_functions(agent, agent.init(KEY))
    assert list(policy.functions) == ["action"]
    assert policy.left_out == {
        "explore": "NotImplementedError: no batch of unknown size",
        "distribution": "the distribution of Shy is not known",
    }


def test_an_agent_of_ones_own_says_its_distribution():
    class Uniform(RandomAgent):
        def evaluate_actions(self, state, obs, key, carry=None):
            return super().evaluate_actions(state, tf.ensure_shape(obs, [2, 3]), key, carry)

        def policy_parameters(self, state, obs, carry=None):
            logits = tf.zeros([tf.shape(obs)[0], self.action_spec.num_values])
            return {".": ("categorical", {"logits": logits})}, carry

    agent = Uniform(obs_spec=OBS, action_spec=specs.DiscreteSpec(3))
    policy = policy_functions(agent, agent.init(KEY))
    found = policy.functions["distribution"](draw(OBS, 2))
    np.testing.assert_array_equal(found["logits"], np.zeros([2, 3]))
    assert policy.distributions["."]["kind"] == "categorical"


def test_specs_for_readers():
    camera = specs.BoundedTensorSpec([2, 2], tf.uint8, 0, 255)
    _, policy = made(
        PPO(obs_spec={"camera": camera, "speed": OBS}, action_spec=BOX, obs_key="speed")
    )
    told = export_functions.specs_of(policy)
    assert told["observation"] == [
        {"name": "observation_camera", "path": "camera", "shape": [2, 2], "dtype": "uint8",
         "minimum": 0, "maximum": 255},
        {"name": "observation_speed", "path": "speed", "shape": [3], "dtype": "float32",
         "minimum": -np.inf, "maximum": np.inf},
    ]  # fmt: skip
    (action,) = told["action"]
    assert (action["name"], action["minimum"].tolist()) == ("action", [-2.0, 0.0])


@pytest.mark.needs("tf_agents")
def test_an_export_for_tf_agents_says_its_version():
    assert "tf_agents" in export_functions.export_versions("tf_agents")


@pytest.mark.parametrize("memory", [None, "gru"])
@pytest.mark.variants(1)
def test_any_batch_size(memory):
    agent = PPO(obs_spec=OBS, action_spec=specs.MultiDiscreteSpec([2, 3]), memory=memory)
    _, policy = made(agent)
    for size in (1, 7):
        begun = policy.functions["initial_state"](tf.constant(size)) if memory else {}
        found = policy.functions["action"](draw(OBS, size), *(begun[n] for n in policy.state))
        assert found["action"].shape == (size, 2)
