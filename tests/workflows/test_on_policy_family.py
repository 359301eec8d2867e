"""The on-policy agents through the workflow: memory, masks, replicas, checkpoints, tiny tasks."""

import functools
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tfrl
from tests.agents import registered
from tests.envs.test_action_mask import made as make_masked
from tfrl import seeding, specs, struct
from tfrl.agents import A2C, PPO, Impala
from tfrl.envs.core import Autoreset, Env, initial_state
from tfrl.envs.registry import finish
from tfrl.errors import UserError
from tfrl.learners import Learner, ModuleConfig
from tfrl.types import EnvState
from tfrl.workflows import OnPolicyWorkflow

KEY = seeding.key(0)
SMALL = functools.partial(PPO, hidden=(8,), memory_size=8)


# The agent's own number of updates per rollout.
OWN_EPOCHS = {"num_epochs": None, "num_minibatches": None}


def workflow(agent, env=None, **changes):
    env = env or tfrl.make_env("tf:CartPole-v1", num_envs=8, max_episode_steps=13)
    settings = {
        "rollout_length": 16,
        "num_epochs": 2,
        "num_minibatches": 2,
        "eval_episodes": 6,
        "compile": "graph",
        "learner_config": ModuleConfig(lr=1e-3),
        **changes,
    }
    return OnPolicyWorkflow(env=env, agent=agent, **settings)


def mirrored(n=2):
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(n)])


def arrays(flow, state):
    return {p: np.array(v) for p, v in flow.state_values(state).items()}


def assert_same(a, b):
    assert set(a) == set(b)
    for path, value in a.items():
        np.testing.assert_array_equal(value, b[path], err_msg=path)


class MemoryTest(parameterized.TestCase):
    def test_restored_it_goes_on_as_if_it_had_not_stopped(self):
        agent = functools.partial(SMALL, memory="lstm", sequence_length=8, normalize_obs=True)
        flow = workflow(agent)
        folder = tempfile.mkdtemp()
        state = flow.advance(flow.setup(0), 2).state
        carry = {p: x for p, x in arrays(flow, state).items() if p.startswith("progress/carry")}
        self.assertLen(carry, 4)  # hidden and cell, of policy and value
        # Episodes of 13 steps and rollouts of 16: most carries cross the boundary.
        self.assertTrue(all(np.any(np.abs(x) > 1e-3) for x in carry.values()))
        flow.save(state, folder)
        state = flow.advance(state, 2).state
        other = workflow(agent)
        again = other.advance(other.restore(folder), 2).state
        assert_same(arrays(flow, state), arrays(other, again))

    @pytest.mark.slow
    def test_iterations_per_call_change_nothing(self):
        flow = workflow(functools.partial(SMALL, memory="gru"))
        one = flow.setup(0)
        for _ in range(3):
            one = flow.advance(one, 1).state
        assert_same(arrays(flow, one), arrays(flow, flow.advance(flow.setup(0), 3).state))

    @pytest.mark.slow
    def test_eager_graph_and_xla_agree(self):
        found = {}
        for mode in ("eager", "graph", "xla"):
            flow = workflow(functools.partial(SMALL, memory="gru"), compile=mode)
            found[mode] = arrays(flow, flow.advance(flow.setup(1), 1).state)
        for mode in ("graph", "xla"):
            for path, value in found["eager"].items():
                np.testing.assert_allclose(
                    value, found[mode][path], rtol=2e-3, atol=2e-4, err_msg=f"{mode} {path}"
                )

    @parameterized.parameters("pad", "drop")
    @pytest.mark.slow
    def test_sequences_that_fill_no_minibatch(self, remainder):
        flow = workflow(
            functools.partial(SMALL, memory="gru", sequence_length=8),
            num_minibatches=3,
            remainder=remainder,
        )
        sizes = {"pad": 6, "drop": 5}  # of 16 sequences
        self.assertEqual(flow.minibatch_sizes, {"default_policy": sizes[remainder]})
        metrics, _ = flow.step(flow.setup(0))
        self.assertEqual(metrics["gradient_steps"], 6)
        self.assertTrue(np.isfinite(metrics["loss"]))

    @pytest.mark.slow
    def test_padding_changes_no_mean(self):
        # One minibatch of 8 sequences, with or without 8 padded ones, gives the same gradient.
        results = []
        for padded in (False, True):
            flow = workflow(
                functools.partial(SMALL, memory="gru"), num_minibatches=1, num_epochs=1,
                remainder="pad",
            )  # fmt: skip
            if padded:
                flow.minibatch_sizes = {"default_policy": 16}
            metrics, state = flow.step(flow.setup(0))
            results.append((metrics, arrays(flow, state)))
        for name in ("loss", "policy_loss", "value_loss", "entropy", "grad_norm"):
            np.testing.assert_allclose(
                results[0][0][name], results[1][0][name], rtol=1e-4, atol=1e-6, err_msg=name
            )
        for path, value in results[0][1].items():
            np.testing.assert_allclose(value, results[1][1][path], rtol=1e-3, atol=1e-5)

    @parameterized.parameters(
        ({"num_minibatches": 9}, "num_minibatches: expected a number from 1 to the 8 rows of an "
         "iteration (sequences of 16 steps of 8 environments), got 9."),
        ({"num_minibatches": 3}, "num_minibatches: expected a divisor of the 8 rows of an "
         "iteration (sequences of 16 steps of 8 environments), got 3. The nearest divisors are "
         "2 and 4; or choose remainder='pad', 'drop' or 'wrap'."),
    )  # fmt: skip
    def test_messages(self, changes, message):
        with pytest.raises(UserError) as error:
            workflow(functools.partial(SMALL, memory="gru"), **changes)
        self.assertIn(message, str(error.value))

    def test_a_length_that_does_not_divide_is_said_at_once(self):
        with pytest.raises(UserError, match="PPO.sequence_length: expected a divisor of the 16"):
            workflow(functools.partial(SMALL, memory="gru", sequence_length=5))


class ReplicasTest(parameterized.TestCase):
    @parameterized.parameters("gru", "impala")
    @pytest.mark.slow
    def test_two_replicas(self, kind):
        make = functools.partial(Impala, hidden=(8,)) if kind == "impala" else SMALL
        if kind == "gru":
            make = functools.partial(make, memory="gru", sequence_length=8)
        flow = workflow(make, strategy=mirrored())
        metrics, state = flow.step(flow.setup(0))
        self.assertEqual(metrics["env_steps"], 8 * 16)
        self.assertTrue(np.isfinite(metrics["loss"]))
        state = flow.advance(state, 2).state
        kept = arrays(flow, state)
        if kind == "gru":
            self.assertEqual(kept["progress/carry/policy/hidden"].shape, (2, 4, 8))
        for v in flow.learner_of(state).variables().values():
            first, second = (
                c.numpy() for c in flow.replicas.strategy.experimental_local_results(v)
            )
            np.testing.assert_array_equal(first, second, err_msg=v.name)
        again = flow.advance(flow.load_values(flow.setup(9), kept), 1).state
        assert_same(arrays(flow, flow.advance(state, 1).state), arrays(flow, again))

    @parameterized.parameters(
        SMALL, functools.partial(Impala, hidden=(8,), memory_size=8, normalize_advantage=True)
    )
    @pytest.mark.slow
    def test_replicas_learn_from_sequences_as_one_device_does(self, make):
        agent = make(obs_spec=tf.TensorSpec([3]), action_spec=specs.DiscreteSpec(2), memory="gru")
        state = agent.init(KEY)
        trajectory = scripted_experience(agent, state, steps=10, envs=8)
        batch, _ = agent.learner_batch(state, trajectory)
        one, two = (
            Learner(agent, config=ModuleConfig(lr=1e-2), strategy=strategy)
            for strategy in (None, mirrored())
        )
        for learner in (one, two):
            learner.build(KEY)
            for _ in range(3):
                # Shuffled minibatches of sequences; the replicas have unequal rows.
                learner.update_from_batch(batch, minibatch_size=4, num_epochs=2, compile="graph")
        found = {p: np.array(v) for p, v in two.variables().items()}
        for path, value in one.variables().items():
            np.testing.assert_allclose(found[path], value, rtol=1e-5, atol=1e-5, err_msg=path)


def scripted_experience(agent, state, steps, envs):
    """Synthetic rows with some invalid ones, uneven over the environments."""
    rows = {"obs": [], "action": [], "policy_extras": []}
    carry = agent.initial_carry(envs)
    for t in range(steps):
        key = seeding.fold_in(KEY, t)
        obs = seeding.normal(key, [envs, 3])
        output = agent.compute_actions(state, obs, key, carry)
        carry = output.carry
        for name, x in zip(rows, (obs, output.action, output.extras), strict=True):
            rows[name].append(x)
    stacked = {n: tf.nest.map_structure(lambda *x: tf.stack(x), *xs) for n, xs in rows.items()}
    no = np.zeros([steps, envs], bool)
    valid = ~no
    valid[7:, :3] = False
    return tfrl.types.Trajectory(
        **stacked,
        next_obs=stacked["obs"] + 0.1,
        reward=seeding.normal(KEY, [steps, envs]),
        termination=tf.constant(no),
        truncation=tf.constant(no),
        valid=tf.constant(valid),
    )


class AgentsTest(parameterized.TestCase):
    @parameterized.parameters(
        *((functools.partial(cls, hidden=(8,)), OWN_EPOCHS) for cls in registered.ON_POLICY),
        (functools.partial(Impala, hidden=(8,), sequence_length=4), {}),
        (functools.partial(PPO, hidden=(8,), clip=None, kl_coef=1.0, kl_target=0.01), {}),
        (functools.partial(PPO, hidden=(8,), shared_torso=True, gae_horizon=4), {}),
        (functools.partial(A2C, hidden=(8,), memory="gru", memory_size=8), {}),
    )
    @pytest.mark.variants(2)
    def test_every_agent_shares_the_loop(self, agent, changes):
        env = tfrl.make_env(
            "tf:CartPole-v1", num_envs=8, autoreset="NEXT_STEP", max_episode_steps=13
        )
        flow = workflow(agent, env, **changes)
        state = flow.setup(0)
        before = flow.agent_state(state).params
        metrics, state = flow.step(state)
        after = flow.agent_state(state).params
        for name in ("policy_loss", "value_loss", "entropy", "approx_kl", "value_mean"):
            self.assertTrue(np.isfinite(metrics[name]), name)
        for group, params in struct.paths(before).items():
            if "kernel" in group:
                self.assertFalse(np.array_equal(params, struct.paths(after)[group]), group)

    @parameterized.parameters(None, "gru")
    @pytest.mark.variants(1)
    def test_masks(self, memory):
        env = make_masked("SAME_STEP", limit=9)
        small = SMALL if memory else functools.partial(PPO, hidden=(8,))
        flow = workflow(functools.partial(small, memory=memory, normalize_obs=True), env)
        state = flow.setup(0)
        for _ in range(2):
            metrics, state = flow.step(state)
            # Three steps pay 1 each, an invalid action would cost 100.
            self.assertEqual(metrics["episode_return"], 3.0)
        evaluation, _ = flow.evaluate(state)
        self.assertEqual(evaluation["eval_return_mean"], 3.0)


@struct.logic_dataclass
class Copy(Env):
    """The reward is the share of observed bits that the action repeats; episodes have one step."""

    kind: str
    num_envs: int = 1

    @property
    def obs_spec(self):
        bits = specs.TensorSpec([3], tf.float32)
        return {"bits": bits, "noise": specs.DiscreteSpec(4)} if self.kind == "dict" else bits

    @property
    def action_spec(self):
        if self.kind == "binary":
            return specs.BinarySpec([3])
        if self.kind == "multi":
            return specs.MultiDiscreteSpec([2, 2, 2])
        return {"left": specs.DiscreteSpec(2), "rest": specs.MultiDiscreteSpec([2, 2])}

    def observe(self, bits):
        obs = tf.cast(bits, tf.float32)
        noise = tf.cast(3 * bits[:, 0], tf.int64)
        return {"bits": obs, "noise": noise} if self.kind == "dict" else obs

    def reset(self, key):
        bits = seeding.randint(key, [self.num_envs, 3], 0, 2)
        return initial_state(self, env_state=bits, obs=self.observe(bits))

    def step(self, state, action):
        bits = state.env_state
        if self.kind == "dict":
            action = tf.concat([action["left"][:, tf.newaxis], action["rest"]], -1)
        same = tf.equal(tf.cast(action, tf.int32), bits)
        return EnvState(
            env_state=bits,
            obs=self.observe(bits),
            reward=tf.reduce_mean(tf.cast(same, tf.float32), -1),
            termination=tf.ones([self.num_envs], tf.bool),
            truncation=tf.zeros([self.num_envs], tf.bool),
            info={},
        )


def learned(flow, steps):
    state = flow.learn(flow.setup(0), total_env_steps=steps, progress=False)
    return flow.evaluate(state)[0]["eval_return_mean"]


class LearningTest(parameterized.TestCase):
    @parameterized.parameters("multi", "binary", "dict")
    @pytest.mark.variants(1)
    def test_actions_and_observations_of_every_kind(self, kind):
        env = finish(
            Copy(kind=kind, num_envs=16),
            autoreset=Autoreset.SAME_STEP,
            max_episode_steps=None,
            task_limit=1,
        )
        flow = workflow(
            functools.partial(PPO, hidden=(16,)),
            env,
            learner_config=ModuleConfig(lr=1e-2),
            eval_episodes=32,
            iterations_per_call=10,
        )
        self.assertGreaterEqual(learned(flow, 10_000), 0.98)

    @parameterized.parameters(
        *((functools.partial(cls, hidden=(16,)), OWN_EPOCHS) for cls in registered.ON_POLICY),
        (functools.partial(PPO, hidden=(16,), clip=None, kl_coef=1.0, kl_target=0.01), {}),
    )
    @pytest.mark.slow
    def test_identity_is_learnt(self, agent, changes):
        env = tfrl.make_env("testing:Identity", num_envs=16, max_episode_steps=8)
        flow = workflow(
            agent, env, learner_config=ModuleConfig(lr=2e-2), iterations_per_call=20, **changes
        )
        self.assertGreaterEqual(learned(flow, 30_000), 7.6)

    @parameterized.parameters("lstm", "gru")
    @pytest.mark.slow
    def test_a_cue_is_remembered(self, memory):
        env = tfrl.make_env("testing:MemoryRecall", num_envs=32, max_episode_steps=9)
        recurrent = functools.partial(PPO, hidden=(16,), memory=memory, memory_size=16)
        options = {
            "rollout_length": 20,
            "learner_config": ModuleConfig(lr=5e-3),
            "eval_episodes": 64,
            "iterations_per_call": 10,
        }
        # The greedy policy needs the carry as well: without it the best is 0.
        self.assertGreaterEqual(learned(workflow(recurrent, env, **options), 60_000), 0.95)
        plain = functools.partial(PPO, hidden=(16,))
        self.assertLess(learned(workflow(plain, env, **options), 60_000), 0.5)
