"""Acting in host environments: one call per step, in TensorFlow or NumPy."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import seeding, struct
from tfrl.envs.host_env import HostEnv
from tfrl.rollout.numpy_program import NotInNumpy, NumpyProgram
from tfrl.timing import MARGIN, best_seconds
from tfrl.traces import logic_key, traces_of
from tfrl.types import ActionFn, Nest

MODES = ("numpy", "graph", "xla", "eager")
_TIMING_SECONDS = 0.01  # of each mode
_TOLERANCE = 1e-4
_MOST_POLICIES = 16  # cached per environment


class HostPolicy:
    """An agent's `action_fn` for NumPy observations, with the state of one rollout.

    `begin(agent_state, key, length)`, then `act(obs, t, carry)` for t = 0 .. length - 1. Step t
    draws from `seeding.split(key, length)[t]`, as in a rollout on the device.

    Attributes:
      mode: "numpy", "graph", "xla" or "eager"; None until it is chosen.
      seconds: `{mode: seconds}` of one step, for the timed modes.
    """

    def __init__(self, env: HostEnv, agent: object, action_fn: ActionFn):
        """Prepares; nothing is traced yet."""
        self._env = env
        self._agent = agent
        self._action_fn = action_fn
        self.mode: str | None = None
        self.seconds: dict[str, float] = {}
        self.why_not_numpy = ""
        self._program: NumpyProgram | None = None
        # The chosen mode and its functions, shared by equal agents in equal environments.
        self._traces = traces_of(logic_key(("acting", env, agent, action_fn)))
        self._compiled: dict[str, Any] = {}
        self._form: Nest = None
        self._published: Nest = None
        self._keys: Any = None
        self._foreseen: tuple[Any, Any] | None = None

    # State.

    def fresh_carry(self) -> Nest:
        """Returns the recurrent state at an episode start, arrays `[B, ...]`, or None."""
        initial = getattr(self._agent, "initial_carry", None)
        carry = None if initial is None else initial(self._env.num_envs)
        return None if carry is None else tf.nest.map_structure(np.asarray, struct.values(carry))

    def begin(self, agent_state: Nest, key: tf.Tensor, length: int, obs: Nest, carry: Nest) -> None:
        """Takes the agent's state for the next steps; at first, chooses the mode.

        Args:
          agent_state: Leaves may be tensors or tf.Variables.
          key: int32 [2].
          length: Number of steps.
          obs: The first observation, for the timing.
          carry: The first recurrent state, or None.
        """
        agent_state = () if agent_state is None else agent_state
        if self.mode is None:
            known = self._traces.notes.get("choice")
            if known is None:
                chosen = self._choose(agent_state, key, length, obs, carry)
                known = chosen, self.seconds, self.why_not_numpy
                self._traces.notes["choice"] = known
            self.mode, self.seconds, self.why_not_numpy = known
        self._begin(self.mode, agent_state, key, length, carry)

    def draws(self, key: tf.Tensor, length: int) -> list[tf.Tensor]:
        """Returns the random draws of the next rollout, for `foresee`; call it while tracing.

        Only NumPy mode needs them; the other modes draw at each step.
        """
        return self._program.draw(key, length) if self._program is not None else []

    @property
    def reads(self) -> tuple[int, ...]:
        """Indices of the agent state's leaves that NumPy mode reads."""
        return self._program.reads if self._program is not None else ()

    def foresee(self, leaves: Sequence[Any], draws: Sequence[Any]) -> None:
        """Supplies precomputed parameters and draws to the next `begin` in NumPy mode.

        Args:
          leaves: The leaves of the agent's state in `reads`.
          draws: The result of `draws` for the key.
        """
        self._foreseen = (leaves, draws)

    def _begin(self, mode: str, state: Any, key: tf.Tensor, length: int, carry: Nest) -> None:
        foreseen, self._foreseen = self._foreseen, None
        if mode == "numpy" and foreseen is not None and self._program is not None:
            self._program.begin_from(*foreseen)
            return
        if mode == "numpy":
            program = self._program or self._make_program(state, carry)
            program.begin(state, key, length)
            return
        values = struct.values(state)
        self._keys = _split(key, length).numpy()
        if mode == "eager":
            self._published = values
        elif self._published is None:
            # Captured variables, since a dozen arguments slow down the call.
            self._published = tf.nest.map_structure(
                lambda x: tf.Variable(x, trainable=False), values
            )
        else:
            tf.nest.map_structure(lambda v, x: v.assign(x), self._published, values)

    def redraw(self, key: tf.Tensor, length: int) -> None:
        """Draws for more steps with the state of `begin`; arguments as in `begin`."""
        if self.mode == "numpy" and self._program is not None:
            self._program.redraw(key, length)
        else:
            self._keys = _split(key, length).numpy()

    def act(self, obs: Nest, t: int, carry: Nest) -> tuple[Nest, Nest, Nest]:
        """Returns action, next carry and extras for observations `[B, ...]`, in NumPy."""
        return self._act(str(self.mode), obs, t, carry)

    def _act(self, mode: str, obs: Nest, t: int, carry: Nest) -> tuple[Nest, Nest, Nest]:
        inputs = [obs, () if carry is None else carry]
        if mode == "numpy":
            program: Any = self._program
            action, after, extras = program.run(t, inputs)
        else:
            outputs = self._call(mode, self._keys[t], *inputs)
            action, after, extras = tf.nest.map_structure(lambda x: x.numpy(), outputs)
        none = isinstance(extras, tuple) and not extras
        return action, (None if carry is None else after), (None if none else extras)

    def _answer(self, state: Any, key: tf.Tensor, obs: Nest, carry: Nest) -> Nest:
        """The agent's output, with () for missing parts."""
        state = None if isinstance(state, tuple) and not state else state
        absent = isinstance(carry, tuple) and not carry  # a tensor overrides equality
        output = self._action_fn(state, obs, key, None if absent else carry)
        more = [() if x is None else x for x in (output.carry, output.extras)]
        return (output.action, *more)

    def _call(self, mode: str, *args: Any) -> Nest:
        def call(key: tf.Tensor, obs: Nest, carry: Nest) -> Nest:
            return self._answer(struct.values(self._published), key, obs, carry)

        args = tf.nest.map_structure(tf.convert_to_tensor, args)
        if mode == "eager" or tf.config.functions_run_eagerly():
            return call(*args)
        if mode not in self._compiled:
            make = functools.partial(tf.function, call, autograph=False, jit_compile=mode == "xla")
            variables = {str(i): v for i, v in enumerate(tf.nest.flatten(self._published))}
            self._compiled[mode] = self._traces.bound(("act", mode), make, args, variables)
        return self._compiled[mode](*args)

    def _make_program(self, state: Any, carry: Nest) -> NumpyProgram:
        spec = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), state)
        batch = self._env.num_envs
        obs = tf.nest.map_structure(
            lambda s: tf.TensorSpec([batch, *s.shape], s.dtype), self._env.obs_spec
        )
        before = () if carry is None else carry
        carry_spec = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), before)
        notes = self._traces.notes
        if "program" not in notes:
            notes["program"] = NumpyProgram(self._answer, spec, [obs, carry_spec])
        program: NumpyProgram = notes["program"].fresh()
        self._program = program
        return program

    # The choice.

    def _choose(self, state: Any, key: tf.Tensor, length: int, obs: Nest, carry: Nest) -> str:
        """Chooses NumPy if it gives the same actions faster than TensorFlow."""
        if getattr(self._agent, "takes_records", False):
            self.why_not_numpy = "it takes records"
            return "graph"
        try:
            self._begin("numpy", state, key, length, carry)
            ours = self._act("numpy", obs, 0, carry)
        except NotInNumpy as error:
            self.why_not_numpy = f"it has {error}"
            return "graph"
        self._begin("graph", state, key, length, carry)
        for t in range(min(length, 4)):
            ours, theirs = (self._act(mode, obs, t, carry) for mode in ("numpy", "graph"))
            if not _close(ours, theirs):
                self.why_not_numpy = "its actions differ"
                return "graph"
        calls = {
            mode: functools.partial(self._act, mode, obs, 0, carry) for mode in ("graph", "numpy")
        }
        self.seconds.update(best_seconds(calls, seconds=_TIMING_SECONDS))
        if self.seconds["numpy"] * MARGIN < self.seconds["graph"]:
            return "numpy"
        self.why_not_numpy = "it is no faster"
        return "graph"


def policy_for(env: HostEnv, agent: object, action_fn: ActionFn) -> HostPolicy:
    """Returns the `HostPolicy` of an agent, cached in the environment."""
    known = env.policies
    if action_fn not in known:
        if len(known) >= _MOST_POLICIES:  # functions recreated for every rollout
            del known[next(iter(known))]
        known[action_fn] = HostPolicy(env, agent, action_fn)
    return known[action_fn]


@functools.partial(tf.function, autograph=False)
def _split(key: tf.Tensor, length: int) -> tf.Tensor:
    """`seeding.split` as a graph: eagerly its few operations take two milliseconds."""
    return seeding.split(key, length)


def _close(ours: Nest, theirs: Nest) -> bool:
    """Whether integers are equal, and floats up to rounding."""
    for a, b in zip(tf.nest.flatten(ours), tf.nest.flatten(theirs), strict=True):
        if a is None and b is None:
            continue
        a, b = np.asarray(a), np.asarray(b)
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        if a.dtype.kind == "f":
            if not np.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True):
                return False
        elif not np.array_equal(a, b):
            return False
    return True
