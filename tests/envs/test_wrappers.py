"""Each wrapper by hand-worked numbers, on each of its sides, and the messages of the wrong side."""

import numpy as np
import pytest
import tensorflow as tf

from tests.envs.checker_fakes import checked
from tests.envs.device_checks import check_ways_agree
from tfrl import seeding, specs, struct
from tfrl.envs import check_env
from tfrl.envs.core import Autoreset, Env, initial_state
from tfrl.envs.testing import Chain, ConstantReward, ScriptedEnv
from tfrl.envs.tf import CartPole, Pendulum
from tfrl.envs.wrappers import (
    ActionClip,
    ActionRepeat,
    ActionRescale,
    Episode,
    ObservationCast,
    ObservationFlatten,
    ObservationStack,
    RewardClip,
    RewardNormalize,
    RewardScale,
    RewardSparse,
)
from tfrl.errors import UserError
from tfrl.types import EnvState

SAME, NEXT, OFF = Autoreset.SAME_STEP, Autoreset.NEXT_STEP, Autoreset.DISABLED


@struct.logic_dataclass
class Mixed(Env):
    """A dict of observations and a dict of actions; shows the action that it got."""

    num_envs: int = 2

    @property
    def obs_spec(self):
        return {
            "image": specs.BoundedTensorSpec([2, 2], tf.uint8, 0, 255),
            "kind": specs.DiscreteSpec(3, start=5),
            "pair": specs.MultiDiscreteSpec([2, 3]),
            "place": specs.BoundedTensorSpec([2], tf.float32, [-1, -2], [1, 2]),
        }

    @property
    def action_spec(self):
        return {
            "arm": specs.BoundedTensorSpec([2], tf.float32, [0.0, -4.0], [10.0, 4.0]),
            "gear": specs.DiscreteSpec(3),
        }

    def _obs(self):
        n = self.num_envs
        return {
            "image": tf.cast(tf.tile([[[1, 2], [3, 4]]], [n, 1, 1]), tf.uint8),
            "kind": tf.fill([n], tf.constant(6, tf.int64)),
            "pair": tf.tile(tf.constant([[1, 2]], tf.int64), [n, 1]),
            "place": tf.tile([[0.5, -0.5]], [n, 1]),
        }

    def reset(self, key):
        return initial_state(self, env_state=self._info(), obs=self._obs(), info=self._info())

    def _info(self):
        return {"arm": tf.zeros([self.num_envs, 2]), "gear": tf.zeros([self.num_envs], tf.int64)}

    def step(self, state, action):
        no = tf.zeros([self.num_envs], tf.bool)
        one = tf.ones([self.num_envs])
        return EnvState(
            env_state=action,
            obs=self._obs(),
            reward=one,
            termination=no,
            truncation=no,
            info=action,
        )


def scripted(rewards, ends=(), num_envs=1):
    return ScriptedEnv(rewards=tuple(rewards), terminations=tuple(ends), num_envs=num_envs)


def rewards_of(env, steps, seed=0):
    """Rewards, returns and flags of an environment without real actions, each [T, B]."""
    state, rows = env.reset(seeding.key(seed)), []
    assert not np.any(state.reward)
    for _ in range(steps):
        state = env.step(state, tf.zeros([env.num_envs], env.action_spec.dtype))
        total = state.info.get("episode_return", tf.zeros([env.num_envs]))
        rows.append((state.reward, total, state.termination, state.truncation))
    return [np.array(c) for c in zip(*rows, strict=True)]


# --- actions


@pytest.mark.parametrize("outside", [False, True])
def test_action_rescale(outside):
    if outside:
        env = ActionRescale(env=Episode(env=Mixed(), mode=SAME))
    else:
        env = Episode(env=ActionRescale(env=Mixed()), mode=SAME)
    expected = specs.BoundedTensorSpec([2], tf.float32, -1.0, 1.0)
    assert env.action_spec["arm"] == expected and env.action_spec["gear"] == specs.DiscreteSpec(3)
    arm = tf.constant([[-1.0, -1.0], [0.5, 1.0]])
    action = {"arm": arm, "gear": tf.constant([2, 1], tf.int64)}
    info = env.step(env.reset(seeding.key(0)), action).info
    np.testing.assert_allclose(info["arm"], [[0.0, -4.0], [7.5, 4.0]])
    np.testing.assert_array_equal(info["gear"], [2, 1])


def test_action_rescale_from_another_range():
    env = ActionRescale(env=Pendulum(num_envs=3), low=0.0, high=1.0)
    state = env.step(env.reset(seeding.key(0)), tf.constant([[0.0], [0.25], [1.0]]))
    np.testing.assert_allclose(state.env_state[:, 2], [-2.0, -1.0, 2.0])


def test_action_rescale_needs_bounds():
    with pytest.raises(UserError, match=r"action \.: expected finite bounds.*\[-inf, inf\]"):
        ActionRescale(env=ActionClip(env=Pendulum()))
    with pytest.raises(UserError, match="ActionRescale.high: expected a number above 1"):
        ActionRescale(env=Pendulum(), low=1.0, high=1.0)


@pytest.mark.parametrize("outside", [False, True])
def test_action_clip(outside):
    if outside:
        env = ActionClip(env=Episode(env=Mixed(), mode=SAME))
    else:
        env = Episode(env=ActionClip(env=Mixed()), mode=SAME)
    assert env.action_spec["arm"] == tf.TensorSpec([2], tf.float32)
    assert env.action_spec["gear"] == specs.DiscreteSpec(3)
    arm = tf.constant([[-3.0, 99.0], [5.0, -np.inf]])
    action = {"arm": arm, "gear": tf.constant([2, 1], tf.int64)}
    info = env.step(env.reset(seeding.key(0)), action).info
    np.testing.assert_allclose(info["arm"], [[0.0, 4.0], [5.0, -4.0]])


def test_action_repeat_adds_rewards_and_stops_at_an_end():
    # Frames pay 1, 2, 3, 4, 5; the first environment ends at its second frame, the other at its
    # fifth.
    ends = ((False, False), (True, False), (False, False), (False, False), (False, True))
    env = ActionRepeat(env=scripted((1.0, 2.0, 3.0, 4.0, 5.0), ends, 2), repeat=3)
    assert env.action_repeat == 3 and ActionRepeat(env=env, repeat=2).action_repeat == 6
    env = Episode(env=env, mode=SAME)
    assert env.action_repeat == 3
    reward, total, termination, _ = rewards_of(env, 3)
    np.testing.assert_array_equal(reward, [[3, 6], [3, 9], [3, 6]])
    np.testing.assert_array_equal(total, [[3, 6], [3, 15], [3, 6]])
    np.testing.assert_array_equal(termination, [[True, False], [True, True], [True, False]])
    state = env.step(env.reset(seeding.key(0)), tf.zeros([2], tf.int64))
    np.testing.assert_array_equal(state.info["final_obs"][:, 0], [2, 3])
    np.testing.assert_array_equal(state.info["episode_length"], [1, 1])


@pytest.mark.parametrize("repeat", [2.0, np.float64(2), True, np.True_, 0, np.int64(0)])
def test_a_count_is_an_int_of_at_least_1(repeat):
    with pytest.raises(UserError) as error:
        ActionRepeat(env=CartPole(), repeat=repeat)
    assert str(error.value) == (
        f"ActionRepeat.repeat: expected a whole number of at least 1, got {repeat!r}. Give 1 or "
        "more."
    )


@pytest.mark.parametrize("repeat", [3, np.int64(3), np.uint8(3)])
def test_action_repeat_is_as_many_single_steps(repeat):
    env, repeated = CartPole(num_envs=4), ActionRepeat(env=CartPole(num_envs=4), repeat=repeat)
    action = tf.constant([0, 1, 0, 1], tf.int64)
    state = env.reset(seeding.key(0))
    for _ in range(3):
        state = env.step(state, action)
    np.testing.assert_array_equal(
        repeated.step(repeated.reset(seeding.key(0)), action).obs, state.obs
    )


# --- observations


@pytest.mark.parametrize("outside", [False, True])
def test_observation_flatten(outside):
    if outside:
        env = ObservationFlatten(env=Episode(env=Mixed(), mode=SAME))
    else:
        env = Episode(env=ObservationFlatten(env=Mixed()), mode=SAME)
    # image (4), kind 6 of 5..7 one-hot (3), pair (1, 2) one-hot (2 + 3), place (2).
    row = [1, 2, 3, 4, 0, 1, 0, 0, 1, 0, 0, 1, 0.5, -0.5]
    low = [0] * 12 + [-1, -2]
    high = [255] * 4 + [1] * 8 + [1, 2]
    assert env.obs_spec == specs.BoundedTensorSpec([14], tf.float32, low, high)
    state = env.reset(seeding.key(0))
    np.testing.assert_array_equal(state.obs, [row, row])
    action = specs.sample(env.action_spec, seeding.key(1), [2])
    np.testing.assert_array_equal(env.step(state, action).info["final_obs"], [row, row])
    check_env(env, steps=3, stochastic=False)


def test_observation_flatten_keeps_a_single_dtype():
    env = ObservationFlatten(env=ObservationStack(env=CartPole(num_envs=2), num=2))
    assert env.obs_spec.shape == [8] and env.obs_spec.dtype == tf.float32
    np.testing.assert_allclose(env.obs_spec.maximum, np.tile(CartPole().obs_spec.maximum, 2))


@pytest.mark.parametrize("outside", [False, True])
def test_observation_cast(outside):
    if outside:
        env = ObservationCast(env=Episode(env=Mixed(), mode=SAME))
    else:
        env = Episode(env=ObservationCast(env=Mixed()), mode=SAME)
    assert {s.dtype for s in tf.nest.flatten(env.obs_spec)} == {tf.float32}
    assert env.obs_spec["kind"] == specs.BoundedTensorSpec([], tf.float32, 5.0, 7.0)
    state = env.reset(seeding.key(0))
    np.testing.assert_array_equal(state.obs["image"][1], [[1.0, 2.0], [3.0, 4.0]])
    check_env(env, steps=3, stochastic=False)
    with pytest.raises(UserError, match="ObservationCast.dtype: expected a numeric tf.DType"):
        ObservationCast(env=Mixed(), dtype="float32")


def test_observation_stack_clears_history_and_keeps_the_ends():
    env = ScriptedEnv(rewards=(0.0,) * 3, terminations=(False, False, True))
    env = Episode(env=ObservationStack(env=env, num=3), mode=SAME)
    assert env.obs_spec.shape == [3, 2]
    state = env.reset(seeding.key(0))
    np.testing.assert_array_equal(state.obs[0, :, 0], [0, 0, 0])
    seen = []
    for _ in range(4):
        state = env.step(state, tf.zeros([1], tf.int64))
        seen.append((state.obs[0, :, 0].numpy(), state.info["final_obs"][0, :, 0].numpy()))
    starts = [[0, 0, 1], [0, 1, 2], [0, 0, 0], [0, 0, 1]]
    finals = [[0, 0, 1], [0, 1, 2], [1, 2, 3], [0, 0, 1]]
    np.testing.assert_array_equal([s[0] for s in seen], starts)
    np.testing.assert_array_equal([s[1] for s in seen], finals)
    check_env(env, steps=8)


def test_observation_stack_with_zeros_joined():
    env = ObservationStack(env=ConstantReward(length=4), num=3, concat=True, padding="zero")
    assert env.obs_spec == specs.BoundedTensorSpec([3], tf.float32, 0.0, 1.0)
    state = env.step(env.reset(seeding.key(0)), tf.zeros([1], tf.int64))
    state = env.step(state, tf.zeros([1], tf.int64))
    np.testing.assert_array_equal(state.obs, [[0.0, 0.25, 0.5]])
    spec = ObservationStack(env=Mixed(), num=2, concat=True).obs_spec
    assert spec["image"].shape == [2, 4] and spec["image"].dtype == tf.uint8
    assert spec["kind"].shape == [2]
    zero = ObservationStack(env=Mixed(), num=2, padding="zero")
    assert zero.obs_spec["kind"].minimum.min() == 0
    np.testing.assert_array_equal(zero.reset(seeding.key(0)).obs["kind"][0], [0, 6])


def test_observation_stack_mistakes():
    with pytest.raises(
        UserError, match="ObservationStack.num: expected a whole number of at least 1"
    ):
        ObservationStack(env=CartPole(), num=0)
    with pytest.raises(UserError, match="ObservationStack.padding: expected one of reset, zero"):
        ObservationStack(env=CartPole(), num=2, padding="edge")


# --- rewards


def test_reward_scale_and_clip_below_and_above():
    task = scripted((1.0, -4.0, 2.0), (False, False, True))
    below = Episode(env=RewardScale(env=task, scale=0.5), mode=SAME)
    reward, total, _, _ = rewards_of(below, 4)
    np.testing.assert_array_equal(reward[:, 0], [0.5, -2, 1, 0.5])
    np.testing.assert_array_equal(total[:, 0], [0.5, -1.5, -0.5, 0.5])
    above = RewardScale(env=Episode(env=task, mode=SAME), scale=0.5)
    reward, total, _, _ = rewards_of(above, 4)
    np.testing.assert_array_equal(reward[:, 0], [0.5, -2, 1, 0.5])
    np.testing.assert_array_equal(total[:, 0], [1, -3, -1, 1])
    clipped = RewardClip(env=Episode(env=task, mode=SAME), low=-2.0, high=1.5)
    np.testing.assert_array_equal(rewards_of(clipped, 4)[0][:, 0], [1, -2, 1.5, 1])


@pytest.mark.parametrize(("mode", "expected"), [(NEXT, [5, 0, 5]), (OFF, [5, 0, 0])])
def test_rows_that_are_no_steps_are_not_paid(mode, expected):
    env = RewardClip(env=Episode(env=scripted((9.0,), (True,)), mode=mode), low=1.0, high=5.0)
    np.testing.assert_array_equal(rewards_of(env, 3)[0][:, 0], expected)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (SAME, [0, 0, 7, 0, 0, 7, 0]),
        (NEXT, [0, 0, 7, 0, 0, 0, 7]),
        (OFF, [0, 0, 7, 0, 0, 0, 0]),
    ],
)
def test_reward_sparse(mode, expected):
    env = RewardSparse(env=Episode(env=scripted((1.0, 2.0, 4.0), (False, False, True)), mode=mode))
    reward, total, _, _ = rewards_of(env, 7)
    np.testing.assert_array_equal(reward[:, 0], expected)
    np.testing.assert_array_equal(total[:3, 0], [1, 3, 7])


def test_reward_sparse_pays_at_the_time_limit():
    env = RewardSparse(env=Episode(env=scripted((1.0, 2.0)), mode=SAME, limit=3))
    np.testing.assert_array_equal(rewards_of(env, 6)[0][:, 0], [0, 0, 4, 0, 0, 4])


def normalized(rows, ended, valid, discount, epsilon):
    """A plain loop: moments over all valid returns so far, begun with 1e-4 rows N(0, 1)."""
    count, mean, m2 = 1e-4, 0.0, 1e-4
    running, paid = np.zeros(rows.shape[1]), []
    for reward, end, ok in zip(rows, ended, valid, strict=True):
        running = running * discount + reward
        for g in running[ok]:
            count += 1
            delta = g - mean
            mean += delta / count
            m2 += delta * (g - mean)
        paid.append(reward / np.sqrt(m2 / count + epsilon))
        running[end] = 0.0
    return np.array(paid)


@pytest.mark.parametrize("mode", list(Autoreset), ids=lambda m: m.name)
def test_reward_normalize_is_a_plain_loop(mode):
    rng = np.random.default_rng(0)
    table = tuple(map(tuple, rng.normal(1.0, 3.0, [5, 3]).round(2).tolist()))
    ends = ((False,) * 3, (True, False, False), (False, False, True), (False,) * 3, (False,) * 3)
    task = ScriptedEnv(rewards=table, terminations=ends, num_envs=3)
    inner = Episode(env=task, mode=mode, limit=4)
    env = RewardNormalize(env=inner, discount=0.9)
    raw, _, term, trunc = rewards_of(inner, 12)
    ended = term | trunc
    valid = np.ones_like(ended)
    if mode is NEXT:
        valid[1:] = ~ended[:-1]
    if mode is OFF:
        valid[1:] = ~np.maximum.accumulate(ended, axis=0)[:-1]
    reward, total, _, _ = rewards_of(env, 12)
    expected = normalized(raw, ended, valid, 0.9, 1e-8)
    np.testing.assert_allclose(reward, expected, rtol=2e-4, atol=1e-6)
    np.testing.assert_array_equal(total, rewards_of(inner, 12)[1])


def test_reward_normalize_gives_unit_scale():
    env = RewardNormalize(env=Episode(env=ConstantReward(reward=100.0), mode=SAME), discount=0.5)
    reward = rewards_of(env, 60)[0]
    # The return approaches 200 from 100: 100, 150, 175, ... with 10 steps an episode.
    returns = 200 * (1 - 0.5 ** np.arange(1, 11))
    np.testing.assert_allclose(reward[-1], 100 / returns.std(), rtol=1e-3)


def test_reward_mistakes():
    layer = Episode(env=Chain(), mode=SAME)
    with pytest.raises(UserError, match="RewardScale.scale: expected a finite number, got nan"):
        RewardScale(env=layer, scale=float("nan"))
    with pytest.raises(UserError, match="RewardClip.high: expected a number above 2, got 1"):
        RewardClip(env=layer, low=2.0, high=1.0)
    with pytest.raises(
        UserError, match=r"RewardNormalize.discount: expected a number of at least 0"
    ):
        RewardNormalize(env=layer, discount=1.5)


# --- all


@pytest.mark.parametrize("wrap", [ActionRepeat, ObservationStack], ids=lambda w: w.__name__)
def test_above_the_autoreset_is_the_wrong_side(wrap):
    size = {"repeat": 2} if wrap is ActionRepeat else {"num": 2}
    with pytest.raises(UserError) as error:
        wrap(env=Episode(env=CartPole(), mode=SAME), **size)
    assert str(error.value).startswith(
        f"{wrap.__name__}: expected a bare environment to wrap (below time limit and autoreset), "
        "got an environment with autoreset SAME_STEP. Above the autoreset "
    )
    assert f"wrappers=(lambda env: {wrap.__name__}(env=env, ...),)" in str(error.value)


@pytest.mark.parametrize("wrap", [RewardSparse, RewardNormalize], ids=lambda w: w.__name__)
def test_below_the_autoreset_is_the_wrong_side(wrap):
    with pytest.raises(UserError) as error:
        wrap(env=CartPole())
    assert str(error.value).startswith(
        f"{wrap.__name__}: expected an environment with an autoreset mode to wrap, got the bare "
        "CartPole. Below the autoreset "
    )


STACKS = {
    "below": lambda mode: Episode(
        env=ObservationStack(
            env=RewardScale(
                env=ActionRepeat(env=ActionRescale(env=Pendulum(num_envs=3)), repeat=2), scale=0.1
            ),
            num=3,
        ),
        mode=mode,
        limit=5,
    ),
    "above": lambda mode: RewardNormalize(
        env=RewardClip(
            env=ObservationFlatten(
                env=ActionRescale(env=Episode(env=Pendulum(num_envs=3), mode=mode, limit=5))
            ),
            low=-5.0,
            high=5.0,
        )
    ),
    "sparse": lambda mode: RewardSparse(
        env=ActionClip(env=Episode(env=Pendulum(num_envs=3), mode=mode, limit=5))
    ),
}


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("mode", [SAME, NEXT, OFF], ids=lambda m: m.name)
@pytest.mark.variants(3)
def test_stacks_pass_the_checker(name, mode):
    # Episodes of 5 steps, with a reset after each, or none at all.
    times = {SAME: 2, NEXT: 2, OFF: 8}[mode]
    assert checked(STACKS[name](mode), steps=12).sum(axis=0).tolist() == [times] * 3


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.variants(1)
def test_stacks_are_equal_eager_graph_and_xla(name):
    check_ways_agree(STACKS[name](SAME), 6, rtol=2e-5, atol=2e-5)


def test_rendering_reaches_the_task_through_wrappers():
    env = STACKS["below"](SAME)
    bare = Pendulum(num_envs=3)
    state = env.reset(seeding.key(0))
    physics = state.env_state.inner.inner  # episode, then stack
    shown = bare.reset(seeding.key(9)).replace(env_state=physics)
    np.testing.assert_array_equal(env.render(state, 1), bare.render(shown, 1))


@pytest.mark.parametrize("wrong", [1e20, 3e38, -3e38])
@pytest.mark.variants(1)
def test_one_reward_does_not_ruin_the_moments(wrong):
    """The 9th step of the first environment pays it; what is paid 30 steps later is as without."""
    rows = np.random.default_rng(0).normal(0.0, 2.0, [60, 3]).round(3)

    def paid(table):
        task = ScriptedEnv(rewards=tuple(map(tuple, table.tolist())), num_envs=3)
        env = RewardNormalize(env=Episode(env=task, mode=SAME), discount=0.9)
        return rewards_of(env, 60)[0]

    clean = paid(rows)
    rows[8, 0] = wrong
    spoilt = paid(rows)
    assert np.all(np.isfinite(spoilt)) and np.abs(spoilt).max() < np.sqrt(180)
    np.testing.assert_allclose(spoilt[40:], clean[40:], rtol=0.25)
