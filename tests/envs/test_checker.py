"""One deliberately broken environment for each message of check_env."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tests.envs.checker_fakes import checked
from tfrl import seeding, specs, struct
from tfrl.envs import check_env, env_ids
from tfrl.envs.core import Autoreset, Env, Wrapper, initial_state
from tfrl.envs.testing import ScriptedEnv
from tfrl.envs.wrappers import Episode
from tfrl.errors import UserError
from tfrl.types import EnvState

B = 3


@struct.logic_dataclass
class Good(Env):
    """Drifts from a random start; ends at 2. Subclasses break one thing each."""

    num_envs: int = B

    @property
    def obs_spec(self):
        return specs.BoundedTensorSpec([2], tf.float32, -1.0, 5.0)

    @property
    def action_spec(self):
        return specs.DiscreteSpec(2)

    def start(self, key):
        return seeding.uniform(key, [self.num_envs, 2])

    def reset(self, key):
        place = self.start(key)
        return initial_state(self, env_state={"place": place}, obs=self.show(place))

    def show(self, place):
        return place

    def pay(self, place):
        return place[:, 0]

    def move(self, place):
        return place + 0.25

    def step(self, state, action):
        place = self.move(state.env_state["place"])
        no = tf.zeros([self.num_envs], tf.bool)
        return EnvState(
            env_state={"place": place},
            obs=self.show(place),
            reward=self.pay(place),
            termination=tf.reduce_any(place > 2.0, axis=1),
            truncation=no,
            info={},
        )


def broken(**members):
    return struct.logic_dataclass(type("Broken", (Good,), members))()


def changed(where, **fields):
    """A Good whose `reset` or `step` returns other fields; functions of the state."""

    def call(self, *args):
        state = getattr(Good, where)(self, *args)
        return state.replace(**{n: f(state) for n, f in fields.items()})

    return broken(**{where: call})


COUNTER = itertools.count()


def second_is_nan(self, place):
    return tf.where([[False, True]] * B, np.nan, place)


def grows_without_bound(self, place):
    return place + tf.constant([[0.0, 9.0]] * B)


def reads_obs(self, state, action):
    return Good.step(self, state.replace(env_state={"place": state.obs}), action)


def changes_with_reward(self, state, action):
    new = Good.step(self, state, action)
    paid = tf.zeros([B]) if state.reward is None else state.reward + 1.0
    return new.replace(reward=paid)


def stops_graphs(self, place):
    return place + (0.25 if place.numpy().any() else 0.5)


BARE = {
    "no_environment": (
        lambda: object(),
        "check_env: expected a device environment (tfrl.envs.Env), got object.",
    ),
    "no_spec": (
        lambda: broken(obs_spec=property(lambda self: {"a": 3})),
        "obs_spec a: expected a TensorSpec with the static shape of a single environment, got 3.",
    ),
    "open_shape": (
        lambda: broken(action_spec=property(lambda self: tf.TensorSpec([None], tf.float32))),
        "action_spec .: expected a TensorSpec with the static shape",
    ),
    "num_envs": (
        lambda: struct.logic_dataclass(type("Broken", (Good,), {}))(num_envs=0),
        "num_envs: expected a whole number of at least 1, got 0.",
    ),
    "no_state": (
        lambda: broken(reset=lambda self, key: {}),
        "return value of reset: expected an EnvState, got dict.",
    ),
    "other_nest": (
        lambda: changed("reset", obs=lambda s: {"x": s.obs, "y": s.obs}),
        "reset: obs: expected the leaves of the spec: ., got x, y.",
    ),
    "shape": (
        lambda: changed("reset", obs=lambda s: s.obs[:, :1]),
        "reset: obs: expected a tensor float32 [3, 2], got float32 [3, 1].",
    ),
    "dtype": (
        lambda: changed("step", obs=lambda s: tf.cast(s.obs, tf.float64)),
        "step: obs: expected a tensor float32 [3, 2], got float64 [3, 2].",
    ),
    "no_tensor": (
        lambda: changed("step", reward=lambda s: 1.0),
        "step: reward: expected a tensor float32 [3], got 1.0 of type float.",
    ),
    "flag_dtype": (
        lambda: changed("step", termination=lambda s: tf.cast(s.termination, tf.float32)),
        "step: termination: expected a tensor bool [3], got float32 [3].",
    ),
    "flag_shape": (
        lambda: changed("step", truncation=lambda s: s.truncation[:, tf.newaxis]),
        "step: truncation: expected a tensor bool [3], got bool [3, 1].",
    ),
    "state_rows": (
        lambda: changed("reset", env_state=lambda s: {"place": s.obs, "key": seeding.key(0)}),
        "reset: env_state/key: expected a leading axis of num_envs = 3, got shape [2].",
    ),
    "reset_reward": (
        lambda: changed("reset", reward=lambda s: tf.ones([B])),
        "reset: reward: expected 0 or False in every environment before the first step, got [1.0, "
        "1.0, 1.0].",
    ),
    "reset_flag": (
        lambda: changed("reset", termination=lambda s: tf.constant([False, True, False])),
        "reset: termination: expected 0 or False in every environment",
    ),
    "more_from_step": (
        lambda: changed("step", info=lambda s: {"bonus": s.reward}),
        "state/info/bonus: expected the same leaf from step as from reset, nothing, got float32 "
        "[3].",
    ),
    "less_from_step": (
        lambda: changed("reset", info=lambda s: {"bonus": s.reward}),
        "state/info/bonus: expected the same leaf from step as from reset, float32 [3], got "
        "nothing.",
    ),
    "unseeded_reset": (
        lambda: broken(start=lambda self, key: tf.random.uniform([B, 2])),
        "reset: env_state/place: expected the same result from the same key, state and action, "
        "got a different result from the second call.",
    ),
    "unseeded_step": (
        lambda: broken(pay=lambda self, place: tf.fill([B], float(next(COUNTER)))),
        "step: reward: expected the same result from the same key",
    ),
    "ignores_the_key": (
        lambda: broken(start=lambda self, key: tf.constant([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])),
        "reset: expected different starts from different seeds, got the same start from 33 seeds. "
        "Draw each row's start from the key, with shape [num_envs, ...]; for a task with a single "
        "start, call check_env(env, stochastic=False).",
    ),
    "same_rows": (
        lambda: broken(start=lambda self, key: tf.tile(seeding.uniform(key, [1, 2]), [B, 1])),
        "reset: expected different starts in the environments of a batch, got the same row 3 "
        "times, from 33 seeds. Give each environment its own seed, or draw rows from one "
        "generator.",
    ),
    "reads_obs": (
        lambda: broken(step=reads_obs),
        "step: expected a step that reads only state.env_state, got ",
    ),
    "depends_on_reward": (
        lambda: broken(step=changes_with_reward),
        "step: reward: expected a result that depends only on state.env_state",
    ),
    "does_not_compile": (
        lambda: broken(move=stops_graphs),
        "step in tf.function: expected a step that compiles, got AttributeError: ",
    ),
    "nan": (
        lambda: broken(show=second_is_nan),
        "reset: obs: expected finite values, got nan at [0, 1], nan at [1, 1], nan at [2, 1].",
    ),
    "infinite_reward": (
        lambda: broken(pay=lambda self, place: place[:, 0] / tf.constant([1.0, 0.0, 1.0])),
        "step 1: reward: expected finite values, got inf at [1].",
    ),
    "bounds": (
        lambda: broken(show=grows_without_bound),
        "reset: obs: expected values within the bounds of the space, [-1.0, 5.0], got ",
    ),
}


@pytest.mark.parametrize("name", BARE)
def test_broken_bare_environments(name):
    make, text = BARE[name]
    with pytest.raises(UserError) as error:
        check_env(make(), steps=5)
    assert str(error.value).startswith(text), str(error.value)


def test_all_bad_indices_are_listed_at_once():
    with pytest.raises(UserError) as error:
        check_env(broken(show=grows_without_bound), steps=1)
    listed = [f" at [{i}, 1]" in str(error.value) for i in range(B)]
    assert listed == [True] * B
    many = struct.logic_dataclass(type("Broken", (Good,), {"show": lambda self, p: p - 9.0}))
    with pytest.raises(UserError) as error:
        check_env(many(num_envs=10), steps=1)
    assert all(f" at [{i}, {j}]" in str(error.value) for i in range(10) for j in range(2))


def test_good_ones_pass():
    envs = [Good(), Good(num_envs=1)]
    for env in (*envs, *(Episode(env=Good(), mode=mode, limit=7) for mode in Autoreset)):
        ends = checked(env, steps=30)
        assert len(ends) == 30 and ends.any(axis=0).all()


@pytest.mark.parametrize("env_id", ["tf:CartPole-v1", "tf:Pendulum-v1"])
def test_shipped_tasks_pass(env_id):
    assert env_id in env_ids()
    check_env(tfrl.make_env(env_id, 2).unwrapped, steps=60)
    check_env(tfrl.make_env(env_id, 2, max_episode_steps=20), steps=60)


REQUIRE_ARGUMENTS = {"testing:Scripted"}
ONE_START = {"testing:Chain", "testing:ConstantReward", "tf:DeepSea"}
# Only the keys of their first states differ.
ONE_FIRST_PICTURE = {"tf:Asterix-MinAtar", "tf:Seaquest-MinAtar", "tf:SpaceInvaders-MinAtar"}


def test_the_lists_of_exceptions():
    for env_id in REQUIRE_ARGUMENTS:
        with pytest.raises(UserError, match="the arguments that the task requires"):
            tfrl.make_env(env_id)
    for env_id in ONE_START:
        with pytest.raises(
            UserError, match="reset: expected different starts from different seeds"
        ):
            check_env(tfrl.make_env(env_id), steps=1)


@pytest.mark.parametrize("num_envs", [1, 2, 4, 16])
@pytest.mark.parametrize("env_id", sorted(set(env_ids()) - REQUIRE_ARGUMENTS))
@pytest.mark.variants(21)
def test_registered_tasks_pass(env_id, num_envs):
    env = tfrl.make_env(env_id, num_envs)
    stochastic = env_id not in ONE_START | ONE_FIRST_PICTURE
    ends = checked(env, steps=40, seed=num_envs, stochastic=stochastic)
    assert ends.shape == (40, num_envs)


@pytest.mark.parametrize("mode", [Autoreset.SAME_STEP, Autoreset.NEXT_STEP], ids=lambda m: m.name)
@pytest.mark.parametrize("num_envs", [1, 2, 16])
@pytest.mark.parametrize("task", ["Identity", "MemoryRecall"])
@pytest.mark.variants(2)
def test_few_starts_repeat_by_chance(task, num_envs, mode):
    env = tfrl.make_env(f"testing:{task}", num_envs, mode)
    for seed in range(4):
        assert checked(env, steps=40, seed=seed).sum(axis=0).min() >= 2


# --- the autoreset contract


@struct.logic_dataclass
class Spoiled(Wrapper):
    """Spoils what a correct environment returns, by a function of the state."""

    spoil: object
    spoil_reset: bool = False

    def reset(self, key):
        state = self.env.reset(key)
        return self.spoil(state) if self.spoil_reset else state

    def step(self, state, action):
        return self.spoil(self.env.step(state, action))


def info(name, fn):
    """Replaces one field of info by a function of the state."""
    return lambda new: new.replace(info={**new.info, name: fn(new)})


def at_ends(new):
    return tf.logical_or(new.termination, new.truncation)


def rows(mask, a, b):
    return tf.where(mask[:, tf.newaxis], a, b)


def without(name):
    return lambda new: new.replace(info={n: v for n, v in new.info.items() if n != name})


SAME, NEXT = Autoreset.SAME_STEP, Autoreset.NEXT_STEP
CACHED, OFF = Autoreset.SAME_STEP_CACHED, Autoreset.DISABLED

# The script: environment 1 ends at its second step, the others at their third.
CONTRACT = {
    "no_final_obs": (
        SAME,
        without("final_obs"),
        "step: info: expected final_obs, autoreset, episode_return and episode_length, "
        "got no final_obs.",
    ),
    "length_dtype": (
        SAME,
        info("episode_length", lambda s: tf.cast(s.info["episode_length"], tf.int64)),
        "step: info/episode_length: expected a tensor int32 [3], got int64 [3].",
    ),
    "autoreset_flag": (
        SAME,
        info("autoreset", at_ends),
        "step 2 under SAME_STEP: info/autoreset: expected True only in rows that are not steps, "
        "got a mismatch in rows [1].",
    ),
    "final_obs_of_the_next_episode": (
        NEXT,
        info("final_obs", lambda s: s.obs + 1.0),
        "step 1 under NEXT_STEP: info/final_obs: expected the value of obs, got a mismatch in rows "
        "[0, 1, 2].",
    ),
    "final_obs_beside_an_end": (
        SAME,
        info("final_obs", lambda s: s.obs + 1.0),
        "step 1 under SAME_STEP: info/final_obs: expected the value of obs",
    ),
    "length_that_goes_on": (
        SAME,
        info("episode_length", lambda s: s.info["episode_length"] + tf.cast(at_ends(s), tf.int32)),
        "step 2 under SAME_STEP: info/episode_length: expected the number of steps in the episode "
        "so far, [2, 2, 2], got a mismatch in rows [1] ([2, 3, 2]).",
    ),
    "return_without_the_last_reward": (
        SAME,
        info("episode_return", lambda s: s.info["episode_return"] - s.reward),
        "step 1 under SAME_STEP: info/episode_return: expected the sum of the episode's rewards",
    ),
    "no_truncation_at_the_limit": (
        SAME,
        lambda new: new.replace(truncation=tf.zeros_like(new.truncation)),
        "step 4 under SAME_STEP: truncation: expected True at max_episode_steps = 4",
    ),
    "the_first_start_again": (
        SAME,
        lambda new: new.replace(obs=rows(at_ends(new), new.info["first"], new.obs)),
        "step 6 under SAME_STEP: obs: expected a new start after an end, not the first start",
    ),
    "another_start_under_cached": (
        CACHED,
        lambda new: new.replace(obs=rows(at_ends(new), new.obs + 0.5, new.obs)),
        "step 2 under SAME_STEP_CACHED: obs: expected the first start after an end",
    ),
    "reward_of_a_reset_row": (
        NEXT,
        lambda new: new.replace(reward=new.reward + tf.cast(new.info["autoreset"], tf.float32)),
        "step 3 under NEXT_STEP: reward: expected 0 in rows that are not steps, got a mismatch in "
        "rows [1].",
    ),
    "flags_of_a_reset_row": (
        NEXT,
        lambda new: new.replace(termination=tf.logical_or(new.termination, new.info["autoreset"])),
        "step 3 under NEXT_STEP: end flags: expected False in a reset row",
    ),
    "the_first_start_again_later": (
        NEXT,
        lambda new: new.replace(
            obs=rows(new.info["autoreset"], new.info["first"], new.obs),
            info={
                **new.info,
                "final_obs": rows(new.info["autoreset"], new.info["first"], new.obs),
            },
        ),
        "step 8 under NEXT_STEP: obs: expected a new start after an end, not the first start",
    ),
    "moves_on_when_frozen": (
        OFF,
        lambda new: new.replace(obs=rows(new.info["autoreset"], new.obs + 0.5, new.obs)),
        "step 3 under DISABLED: obs: expected the value of the last obs",
    ),
    "forgets_the_end": (
        OFF,
        lambda new: new.replace(
            termination=tf.logical_and(new.termination, ~new.info["autoreset"])
        ),
        "step 3 under DISABLED: termination: expected the unchanged flag of the last step",
    ),
    "flag_of_a_frozen_row": (
        OFF,
        info("autoreset", lambda s: tf.zeros_like(s.info["autoreset"])),
        "step 3 under DISABLED: info/autoreset: expected True only in rows that are not steps",
    ),
}


@struct.logic_dataclass
class RemembersFirst(Wrapper):
    """Puts the first observation into info; a help for spoiling the rest."""

    def reset(self, key):
        state = self.env.reset(key)
        return self._with(state, state.obs)

    def step(self, state, action):
        inner, first = state.env_state
        return self._with(self.env.step(state.replace(env_state=inner), action), first)

    def _with(self, state, first):
        return state.replace(
            env_state=(state.env_state, first), info={**state.info, "first": first}
        )

    def inner_state(self, state):
        return state.replace(env_state=state.env_state[0])


def scripted(mode):
    task = ScriptedEnv(
        num_envs=B,
        rewards=(1.0, 2.0, 3.0, 4.0),
        terminations=((False,) * 3, (False, True, False), (True, False, False), (False,) * 3),
    )
    return RemembersFirst(env=Episode(env=task, mode=mode, limit=4))


@pytest.mark.parametrize("mode", list(Autoreset), ids=lambda m: m.name)
def test_unspoiled_autoreset(mode):
    # Episodes of 3, 2 and 4 steps, with a reset after each in between, or none at all.
    times = {NEXT: [3, 4, 2], OFF: [10, 11, 9]}.get(mode, [4, 6, 3])
    assert checked(scripted(mode), steps=12).sum(axis=0).tolist() == times


@pytest.mark.parametrize("name", CONTRACT)
def test_broken_autoreset(name):
    mode, spoil, text = CONTRACT[name]
    env = scripted(mode)
    in_reset = name in ("no_final_obs", "length_dtype")
    with pytest.raises(UserError) as error:
        check_env(Spoiled(env=env, spoil=spoil), steps=12)
    assert str(error.value).startswith(text), str(error.value)
    if in_reset:
        spoiled = Spoiled(env=env, spoil=spoil, spoil_reset=True)
        with pytest.raises(UserError, match=text.replace("step:", "reset:").split("[")[0]):
            check_env(spoiled, steps=2)


def test_one_row_that_always_starts_the_same():
    def spoil(new):
        mask = tf.logical_and(at_ends(new), [False, False, True])
        return new.replace(obs=rows(mask, new.info["first"], new.obs))

    env = Spoiled(env=scripted(SAME), spoil=spoil)
    with pytest.raises(UserError, match=r"not the first start, got a mismatch in rows \[2\]"):
        check_env(env, steps=30)


def test_one_of_two_starts_for_ever():
    env = RemembersFirst(env=tfrl.make_env("testing:MemoryRecall", 8, delay=0))
    check_env(env, steps=40)
    again = Spoiled(
        env=env, spoil=lambda new: new.replace(obs=rows(at_ends(new), new.info["first"], new.obs))
    )
    with pytest.raises(UserError, match="a new start after an end, not the first start"):
        check_env(again, steps=40)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("autoreset", tf.ones([B], tf.bool), "reset: info/autoreset: expected False"),
        ("episode_length", tf.ones([B], tf.int32), "reset: info/episode_length: expected 0"),
        ("final_obs", tf.zeros([B, 2]), "reset: info/final_obs: expected the value of obs"),
    ],
)
def test_broken_reset(name, value, text):
    env = Episode(env=Good(), mode=SAME)
    spoil = info(name, lambda _: value)
    with pytest.raises(UserError) as error:
        check_env(Spoiled(env=env, spoil=spoil, spoil_reset=True), steps=2)
    assert str(error.value).startswith(text)
