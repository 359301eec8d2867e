"""One broken action mask of a device environment for each message of check_env."""

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tests.envs.checker_fakes import checked, message
from tests.envs.multi_agent_fakes import Two
from tfrl import seeding, specs, struct
from tfrl.envs.core import Autoreset, Env, initial_state
from tfrl.envs.registry import finish
from tfrl.envs.wrappers import ActionMask
from tfrl.types import EnvState

B = 3
NAN = np.nan
WANTED = "Return True for each valid value of the action, and False for the rest."
NONE = "Allow an action that does nothing, or end the episode."
STATIC = "Set the shape with tf.ensure_shape, so that a loop can run the steps."
SAME = "Return the same leaves, shapes and dtypes from both, so that a loop can run the steps."


@struct.logic_dataclass
class Good(Env):
    """Action t mod 3 is not valid at step t, and makes everything NaN; it ends at its fourth."""

    num_envs: int = B

    @property
    def obs_spec(self):
        return specs.BoundedTensorSpec([2], tf.float32, -1.0, 9.0)

    @property
    def action_spec(self):
        return specs.DiscreteSpec(3)

    def reset(self, key):
        start = seeding.uniform(key, [self.num_envs])
        state = {"start": start, "t": tf.zeros([self.num_envs], tf.int32)}
        return initial_state(self, env_state=state, obs=self.see(state), info=self.told(state))

    def see(self, state):
        return tf.stack([state["start"], tf.cast(state["t"], tf.float32)], -1)

    def told(self, state):
        return {"action_mask": self.mask(state["t"])}

    def mask(self, t):
        return tf.range(3) != t[:, tf.newaxis] % 3

    def invalid(self, t, action):
        return tf.cast(action, tf.int32) == t % 3

    def step(self, state, action):
        old = state.env_state
        over = old["t"] >= 4  # frozen rows are stepped on with any action
        bad = self.invalid(old["t"], action) & ~over
        new = {
            "start": tf.where(bad, NAN, old["start"]),
            "t": tf.where(over, old["t"], old["t"] + 1),
        }
        return EnvState(
            env_state=new,
            obs=self.see(new),
            reward=tf.ones([self.num_envs]),
            termination=new["t"] >= 4,
            truncation=tf.zeros([self.num_envs], tf.bool),
            info=self.told(new),
        )


@struct.logic_dataclass
class Nested(Good):
    """A Dict of a MultiDiscrete, bits and a float, of which the float has no mask."""

    @property
    def action_spec(self):
        return {
            "move": (specs.MultiDiscreteSpec([2, 3], [5, -1]),),
            "bits": specs.BinarySpec(2),
            "force": specs.BoundedTensorSpec([2], tf.float32, -1.0, 1.0),
        }

    def mask(self, t):
        even = t % 2 == 0
        # The second row's first value is never valid; the first row has two values only.
        pair = tf.stack([even, ~even, tf.ones_like(even)], -1)
        row = tf.stack([tf.zeros_like(even), even, ~even], -1)
        return {
            "move": (tf.stack([pair, row], 1),),
            "bits": tf.stack([even, ~even], -1),
            "force": None,
        }

    def invalid(self, t, action):
        even, move = t % 2 == 0, action["move"][0] - [5, -1]
        right = tf.where(even[:, tf.newaxis], [[0, 1]], [[1, 2]])
        bits = tf.cast(action["bits"], tf.bool)
        wrong = tf.reduce_any(move != tf.cast(right, move.dtype), -1)
        return wrong | tf.where(even, bits[:, 1], bits[:, 0])


def broken(base=Good, **members):
    return struct.logic_dataclass(type("Broken", (base,), members))()


def masked(mask, base=Good, **members):
    """Another mask: a function of t [B]."""
    return broken(base, mask=lambda self, t: mask(t), **members)


def only_in(place):
    """The mask is in the answer of `place` only."""

    def call(self, *args):
        state = getattr(Good, other)(self, *args)
        return state.replace(info={})

    other = "step" if place == "reset" else "reset"
    return broken(**{other: call})


def all_true(*shape, dtype=tf.bool):
    return lambda t: tf.ones([len(t), *shape], dtype)


@struct.logic_dataclass
class Tells(Good):
    """Answers as an environment with an autoreset mode of its own, DISABLED."""

    autoreset = Autoreset.DISABLED
    max_episode_steps = None

    def told(self, state):
        own = super().told(state)
        return {
            **own,
            "final_obs": self.see(state),
            "autoreset": tf.zeros([self.num_envs], tf.bool),
            "episode_return": tf.cast(state["t"], tf.float32),
            "episode_length": state["t"],
        }

    def step(self, state, action):
        new, over = Good.step(self, state, action), state.env_state["t"] >= 4
        return new.replace(
            reward=tf.where(over, 0.0, new.reward), info={**new.info, "autoreset": over}
        )


def thaws_of_its_own(self, state, action):
    new, over = Tells.step(self, state, action), state.env_state["t"] >= 4
    mask = new.info["action_mask"]
    other = tf.where(over[:, tf.newaxis], ~mask, mask)
    return new.replace(info={**new.info, "action_mask": other})


@struct.logic_dataclass
class Shown(ActionMask):
    """Its info says another thing than its observation, in row 1."""

    def reset(self, key):
        return self._other(super().reset(key))

    def step(self, state, action):
        return self._other(super().step(state, action))

    def _other(self, state):
        mask = state.info["action_mask"]
        other = tf.where([[False], [True], [False]], ~mask, mask)
        return state.replace(info={**state.info, "action_mask": other})


@struct.logic_dataclass
class OfAgents(Two):
    """Nothing is valid for b."""

    @property
    def obs_spec(self):
        mask, seen = tf.TensorSpec([2], tf.bool), super().obs_spec
        return {"a": seen["a"], "b": {**seen["b"], "action_mask": mask}}

    def observe(self, start, age):
        seen = super().observe(start, age)
        return {"a": seen["a"], "b": {**seen["b"], "action_mask": self.mask(age)}}

    def mask(self, age):
        return tf.zeros([len(age), 2], tf.bool)


def dynamic(t):
    """As many columns as are True in a tensor: 3, which no trace can know."""
    columns = tf.boolean_mask(tf.range(4), tf.constant([True] * 3 + [False]))
    return columns != t[:, tf.newaxis] % 3


BROKEN = {
    "too_few_values": (
        lambda: masked(all_true(2)),
        f"reset: info/action_mask: expected a tensor bool [3, 3], got bool [3, 2]. {WANTED}",
    ),
    "one_for_all_rows": (
        lambda: masked(lambda t: tf.ones([3], tf.bool)),
        f"reset: info/action_mask: expected a tensor bool [3, 3], got bool [3]. {WANTED}",
    ),
    "float": (
        lambda: masked(all_true(3, dtype=tf.float32)),
        f"reset: info/action_mask: expected a tensor bool [3, 3], got float32 [3, 3]. {WANTED}",
    ),
    "logits": (
        lambda: masked(lambda t: tf.constant([[0, -9, 1]] * B)),
        "reset: info/action_mask: expected only 0 and 1 in an integer mask, got -9.",
    ),
    "none_valid_at_reset": (
        lambda: masked(lambda t: tf.constant([[True] * 3, [False] * 3, [False] * 3])),
        "reset: info/action_mask: expected at least one valid action, got no valid action at "
        "[[1], [2]]. " + NONE,
    ),
    "none_valid_later": (
        lambda: masked(lambda t: Good().mask(t) & (t[:, tf.newaxis] != 2)),
        "step 2: info/action_mask: expected at least one valid action, got no valid action at "
        f"[[0], [1], [2]]. {NONE}",
    ),
    "missing_in_step": (
        lambda: only_in("reset"),
        "state/info/action_mask: expected the same leaf from step as from reset, bool [3, 3], got "
        f"nothing. {SAME}",
    ),
    "missing_in_reset": (
        lambda: only_in("step"),
        "state/info/action_mask: expected the same leaf from step as from reset, nothing, got "
        f"bool [3, 3]. {SAME}",
    ),
    "another_dtype_in_step": (
        lambda: broken(step=_as_integers),
        "state/info/action_mask: expected the same leaf from step as from reset, bool [3, 3], got "
        f"int32 [3, 3]. {SAME}",
    ),
    "shape_not_static": (
        lambda: masked(dynamic),
        "reset in tf.function: info/action_mask: expected a tensor bool [3, 3], got bool [3, "
        f"None]. {STATIC}",
    ),
    "a_row_of_a_multi_discrete": (
        lambda: masked(all_true(2, 2), Nested, action_spec=specs.MultiDiscreteSpec([2, 3])),
        f"reset: info/action_mask: expected a tensor bool [3, 2, 3], got bool [3, 2, 2]. {WANTED}",
    ),
    "flat_mask_of_a_multi_discrete": (
        lambda: masked(all_true(5), Nested, action_spec=specs.MultiDiscreteSpec([2, 3])),
        f"reset: info/action_mask: expected a tensor bool [3, 2, 3], got bool [3, 5]. {WANTED}",
    ),
    "only_a_value_that_does_not_exist": (
        lambda: masked(
            lambda t: tf.constant([[[False, False, True], [True] * 3]] * B),
            action_spec=specs.MultiDiscreteSpec([2, 3]),
        ),
        "reset: info/action_mask: expected at least one valid action, got no valid action at [[0, "
        f"0], [1, 0], [2, 0]]. {NONE}",
    ),
    "a_part_without_a_valid_action": (
        lambda: masked(
            lambda t: {**Nested().mask(t), "move": (tf.constant([[[True] * 3, [False] * 3]] * B),)},
            Nested,
        ),
        "reset: info/action_mask/move/0: expected at least one valid action, got no valid action "
        f"at [[0, 1], [1, 1], [2, 1]]. {NONE}",
    ),
    "of_a_float": (
        lambda: masked(lambda t: {"force": tf.ones([B, 2], tf.bool)}, Nested),
        "reset: info/action_mask/force: expected masks of discrete actions only, got a mask for "
        f"{Nested().action_spec['force']!r}. Use the nest of the action, with None for leaves "
        "that cannot be masked.",
    ),
    "of_no_action": (
        lambda: masked(lambda t: {"jump": tf.ones([B, 2], tf.bool)}, Nested),
        "reset: info/action_mask/jump: expected masks of discrete actions only, got a mask for "
        "the unknown action jump. Use the nest of the action, with None for leaves that cannot be "
        "masked.",
    ),
    "frozen_rows_thaw": (
        lambda: broken(Tells, step=thaws_of_its_own),
        "step 5 under DISABLED: info/action_mask: expected the mask of the last step in ended "
        "rows, got a different mask in rows [0, 1, 2]. Freeze the mask together with the "
        "observation, as tfrl.make_env does.",
    ),
    "info_and_observation_differ": (
        lambda: Shown(env=Good()),
        "reset: info/action_mask: expected the mask of the observation, obs/action_mask, got a "
        "different mask in rows [1]. Return the valid actions at obs in only one of them.",
    ),
    "an_agent_without_a_valid_action": (
        lambda: OfAgents(num_envs=2),
        "reset: obs/b/action_mask: expected at least one valid action, got no valid action at "
        "[[0], [1]]. " + NONE,
    ),
    "the_mask_of_an_agent_in_another_shape": (
        lambda: broken_agents(lambda self, age: tf.ones([len(age), 3], tf.bool)),
        "reset: obs/b/action_mask: expected a tensor bool [2, 2], got bool [2, 3]. Cast or "
        "reshape it; each leaf has the leading batch axis [num_envs].",
    ),
}


def broken_agents(mask):
    return struct.logic_dataclass(type("Broken", (OfAgents,), {"mask": mask}))(num_envs=2)


def _as_integers(self, state, action):
    new = Good.step(self, state, action)
    return new.replace(info={"action_mask": tf.cast(new.info["action_mask"], tf.int32)})


@pytest.mark.parametrize("name", BROKEN)
def test_broken_masks(name):
    make, expected = BROKEN[name]
    assert message(make(), steps=8) == expected


@pytest.mark.parametrize("cls", [Good, Nested])
@pytest.mark.parametrize("mode", [None, *Autoreset])
@pytest.mark.variants(4)
def test_right_masks_pass_and_are_kept_to(cls, mode):
    """An action that is not valid would make NaN, which is found."""
    env = cls()
    if mode is not None:
        env = finish(env, autoreset=mode, max_episode_steps=None, task_limit=None)
    # Episodes of 4 steps, with a reset after each, or none at all.
    times = {Autoreset.NEXT_STEP: 2, Autoreset.DISABLED: 9}.get(mode, 3)
    assert checked(env, steps=12).sum(axis=0).tolist() == [times] * B


def test_an_action_that_is_not_valid_is_seen():
    env = masked(lambda t: tf.ones([B, 3], tf.bool))  # allows the one that makes NaN
    assert "expected finite values" in message(env, steps=12)


def test_integers_are_masks_too():
    env = masked(lambda t: tf.cast(Good().mask(t), tf.int8))
    assert checked(env, steps=8).sum(axis=0).tolist() == [2] * B


def test_a_mode_of_its_own_that_freezes_masks_passes():
    assert checked(Tells(), steps=8).sum(axis=0).tolist() == [5] * B


def test_nothing_needs_to_be_valid_at_the_end():
    env = masked(lambda t: Good().mask(t) & (t[:, tf.newaxis] < 4))
    envs = [env]
    for mode in ("SAME_STEP", "NEXT_STEP", "DISABLED"):
        envs.append(finish(env, autoreset=Autoreset[mode], max_episode_steps=None, task_limit=None))
    times = [int(checked(env, steps=9).sum()) for env in envs]
    assert times == [2 * B, 2 * B, 2 * B, 6 * B]


def test_tasks_of_the_library_pass():
    env = tfrl.make_env("tf:Masked", 4, "DISABLED")
    assert checked(env, steps=15).any(axis=0).all()
    agents = broken_agents(lambda self, age: tf.ones([2, 2], tf.bool))
    assert checked(agents, steps=8).sum(axis=0).tolist() == [2, 2]
