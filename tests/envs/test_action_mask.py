"""The wrapper that shows action masks: in every mode, at every end, only where there are any."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tfrl
from tests.envs.multi_agent_fakes import Two
from tfrl import seeding, specs, struct
from tfrl.agents import PPO
from tfrl.envs.core import Autoreset, Env, initial_state
from tfrl.envs.registry import finish
from tfrl.envs.testing import Identity
from tfrl.envs.wrappers import ActionMask, ActionRepeat, ObservationFlatten
from tfrl.envs.wrappers.action_mask import gives_mask
from tfrl.errors import UserError
from tfrl.rollout import rollout
from tfrl.types import EnvState

KEY = seeding.key(2)
MODES = ("SAME_STEP", "SAME_STEP_CACHED", "NEXT_STEP", "DISABLED")


@struct.logic_dataclass
class OneValid(Env):
    """At step t of an episode only action (start + t) mod 5 is valid, and pays 1.

    The observation is [start, t]; as a Dict, {"place": [start, t]}. An invalid action pays -100.
    """

    num_envs: int = 1
    length: int = 3
    as_dict: bool = False
    mask_dtype: tf.DType = tf.bool

    @property
    def obs_spec(self):
        spec = specs.TensorSpec([2], tf.float32)
        return {"place": spec} if self.as_dict else spec

    @property
    def action_spec(self):
        return specs.DiscreteSpec(5)

    def observe(self, start, t):
        obs = tf.stack([tf.cast(start, tf.float32), tf.cast(t, tf.float32)], -1)
        return {"place": obs} if self.as_dict else obs

    def mask(self, start, t):
        return {"action_mask": tf.cast(tf.one_hot((start + t) % 5, 5), self.mask_dtype)}

    def reset(self, key):
        start = seeding.randint(key, [self.num_envs], 0, 5)
        t = tf.zeros([self.num_envs], tf.int32)
        return initial_state(
            self,
            env_state={"start": start, "t": t},
            obs=self.observe(start, t),
            info=self.mask(start, t),
        )

    def step(self, state, action):
        start, t = state.env_state["start"], state.env_state["t"]
        valid = tf.equal(tf.cast(action, tf.int32), (start + t) % 5)
        t += 1
        return EnvState(
            env_state={"start": start, "t": t},
            obs=self.observe(start, t),
            reward=tf.where(valid, 1.0, -100.0),
            termination=t >= self.length,
            truncation=tf.zeros([self.num_envs], tf.bool),
            info=self.mask(start, t),
        )


@struct.logic_dataclass
class Pair(OneValid):
    """As `OneValid`, with a pair of actions of which only the first can be masked."""

    @property
    def action_spec(self):
        return (specs.DiscreteSpec(5), specs.BoundedTensorSpec([1], tf.float32, -1.0, 1.0))

    def mask(self, start, t):
        return {"action_mask": (super().mask(start, t)["action_mask"], None)}

    def step(self, state, action):
        return super().step(state, action[0])


def made(mode="SAME_STEP", wrappers=(), limit=None, **options):
    return finish(
        OneValid(num_envs=4, **options),
        autoreset=Autoreset.parse(mode),
        max_episode_steps=limit,
        task_limit=None,
        wrappers=wrappers,
    )


def place(obs):
    inner = obs.get("observation", obs)
    return np.asarray(inner["place"] if isinstance(inner, dict) else inner)


def assert_fits(obs):
    """The mask is the one of this very observation."""
    start, t = place(obs)[..., 0].astype(int), place(obs)[..., 1].astype(int)
    expected = np.eye(5, dtype=bool)[(start + t) % 5]
    np.testing.assert_array_equal(np.asarray(obs["action_mask"]).astype(bool), expected)


class ActionMaskTest(parameterized.TestCase):
    @parameterized.product(mode=MODES, as_dict=[False, True], limit=[None, 2])
    @pytest.mark.variants(6)
    def test_the_mask_is_that_of_every_observation(self, mode, as_dict, limit):
        env = made(mode, as_dict=as_dict, limit=limit)
        names = {"place", "action_mask"} if as_dict else {"observation", "action_mask"}
        self.assertEqual(set(env.obs_spec), names)
        self.assertEqual(env.obs_spec["action_mask"], tf.TensorSpec([5], tf.bool))
        state = env.reset(KEY)
        step = tf.function(env.step, autograph=False)
        ended = 0
        for _ in range(8):
            self.assertEqual(set(state.obs), names)
            assert_fits(state.obs)
            assert_fits(state.info["final_obs"])
            ended += int(tf.math.count_nonzero(state.termination | state.truncation))
            action = tf.argmax(state.obs["action_mask"], axis=-1)
            state = step(state, action)
            acted = ~state.info["autoreset"].numpy()
            np.testing.assert_array_equal(state.reward.numpy()[acted], 1.0)
        self.assertGreaterEqual(ended, 4)

    def test_integers_are_masks_too(self):
        env = made(mask_dtype=tf.int8)
        spec = env.obs_spec["action_mask"]
        self.assertEqual((spec.dtype, spec.shape.as_list()), (tf.int8, [5]))
        self.assertEqual((int(spec.minimum), int(spec.maximum)), (0, 1))
        assert_fits(env.reset(KEY).obs)

    def test_it_stands_above_what_a_user_wraps_around(self):
        env = made(wrappers=(lambda e: ObservationFlatten(env=e),), as_dict=True)
        self.assertEqual(env.obs_spec["observation"].shape, [2])
        assert_fits(env.reset(KEY).obs)

    def test_another_number_of_environments(self):
        env = made().with_num_envs(2)
        self.assertEqual(env.reset(KEY).obs["action_mask"].shape, [2, 5])
        self.assertEqual(env.obs_spec, made().obs_spec)

    @parameterized.parameters("tf:CartPole-v1", "testing:Identity", "tf:Relay-v0")
    def test_environments_without_masks_are_as_they_were(self, env_id):
        env = tfrl.make_env(env_id, num_envs=2)
        inner = env
        while hasattr(inner, "env"):
            self.assertNotIsInstance(inner, ActionMask)
            inner = inner.env
        self.assertFalse(gives_mask(inner))
        self.assertEqual(env.obs_spec, inner.obs_spec)

    def test_what_resets_wrongly_is_said_by_the_reset_itself(self):
        class Broken(Identity):
            def reset(self, key):
                raise ZeroDivisionError

        env = Broken()
        self.assertFalse(gives_mask(env))
        with pytest.raises(ZeroDivisionError):
            env.reset(KEY)

    def test_messages(self):
        with pytest.raises(UserError) as error:
            ActionMask(env=Identity())
        self.assertEqual(
            str(error.value),
            "ActionMask: expected an environment that returns info['action_mask'], got Identity, "
            "whose info has no mask. Return the valid actions at the observation from reset and "
            "step.",
        )
        with pytest.raises(UserError, match="the last observation of an episode has no mask"):
            ActionMask(env=made())
        with pytest.raises(UserError) as error:
            ActionMask(env=ActionMask(env=OneValid()))
        self.assertEqual(
            str(error.value),
            "the observation of OneValid: expected no item 'action_mask' in addition to the one "
            "in info, got items ['action_mask', 'observation'].",
        )

    def test_several_agents_have_their_masks_in_their_observations(self):
        class Masked(Two):
            def reset(self, key):
                state = super().reset(key)
                mask = {a: tf.ones([self.num_envs, 2], tf.bool) for a in self.agent_ids}
                return state.replace(info={**state.info, "action_mask": mask})

        with pytest.raises(UserError) as error:
            finish(
                Masked(),
                autoreset=Autoreset.SAME_STEP,
                max_episode_steps=None,
                task_limit=None,
            )
        self.assertEqual(
            str(error.value),
            "ActionMask: expected a single-agent environment, got Masked, whose info has masks of "
            "several agents. Add the item 'action_mask' to each agent's observation, a Dict, and "
            "remove it from info.",
        )


class MendedTest(parameterized.TestCase):
    @parameterized.parameters(*MODES)
    def test_info_and_observation_have_the_same_mask(self, mode):
        env = made(mode)
        state = env.reset(KEY)
        for _ in range(7):
            mask = state.info["action_mask"]
            np.testing.assert_array_equal(mask, state.obs["action_mask"])
            state = env.step(state, tf.argmax(mask, -1))

    @parameterized.parameters(False, True)
    def test_a_mask_of_floats_is_not_normalized(self, as_dict):
        env = made(mask_dtype=tf.float32, as_dict=as_dict)
        agent = PPO(obs_spec=env.obs_spec, action_spec=env.action_spec, normalize_obs=True)
        agent_state, state = agent.init(KEY), env.reset(KEY)
        for t in range(9):
            rows, state, _ = rollout(env, agent, state, agent_state, seeding.fold_in(KEY, t), 4)
            self.assertEqual(float(tf.reduce_min(rows.reward)), 1.0)
            agent_state = agent.observe(agent_state, rows)

    def test_some_leaves_of_an_action_have_no_mask(self):
        env = finish(
            Pair(num_envs=4),
            autoreset=Autoreset.SAME_STEP,
            max_episode_steps=None,
            task_limit=None,
        )
        self.assertEqual(set(env.obs_spec["action_mask"]), {"0"})
        agent = PPO(obs_spec=env.obs_spec, action_spec=env.action_spec)
        rows, _, _ = rollout(env, agent, env.reset(KEY), agent.init(KEY), KEY, 12)
        self.assertEqual(float(tf.reduce_min(rows.reward)), 1.0)
        self.assertGreater(float(tf.math.reduce_std(rows.action[1])), 0.0)

    def test_a_repeated_action_may_become_invalid(self):
        with self.assertRaisesRegex(
            UserError, "ActionRepeat: expected an environment without an action mask, got OneVal"
        ):
            made(wrappers=(lambda env: ActionRepeat(env=env, repeat=2),))

    @parameterized.parameters(
        (specs.DiscreteSpec(4), [3], "action mask .: expected shape [4] for"),
        (specs.DiscreteSpec(4), [1], "got shape [1]. Pass one boolean per choice"),
        (specs.MultiDiscreteSpec([3, 3]), [3], "expected shape [2, 3] for"),
        (specs.MultiDiscreteSpec([3, 2]), [5], "expected shape [2, 3] for"),
        (specs.BinarySpec((2, 2)), [2, 2], "expected shape [4] for"),
        (
            {"a": specs.DiscreteSpec(4)},
            {"b": [4]},
            "action mask b: expected a mask for an action among a, got a mask for b",
        ),
        (
            {"a": specs.BoundedTensorSpec([1], tf.float32, -1.0, 1.0)},
            {"a": [1]},
            "action mask a: expected None for a continuous action",
        ),
    )
    def test_a_mask_of_another_shape_is_refused(self, action_spec, shape, message):
        named = isinstance(shape, dict)
        mask = {n: tf.TensorSpec(s, tf.bool) for n, s in shape.items()} if named else None
        obs_spec = {
            "observation": tf.TensorSpec([2], tf.float32),
            "action_mask": mask or tf.TensorSpec(shape, tf.bool),
        }
        with pytest.raises(UserError) as error:
            PPO(obs_spec=obs_spec, action_spec=action_spec)
        self.assertIn(message, str(error.value))


def test_reset_is_traced_once_for_equal_environments():
    calls = []

    @struct.logic_dataclass
    class Counted(OneValid):
        def reset(self, key):
            calls.append(self.num_envs)
            return super().reset(key)

    for num_envs in (1, 1, 2):
        env = Counted(num_envs=num_envs)
        assert gives_mask(env)
        ActionMask(env=env)
    assert calls == [1, 2]
