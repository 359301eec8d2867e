"""A trained policy: NumPy observations in, NumPy actions out."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import seeding, specs, struct
from tfrl.errors import UserError
from tfrl.nest_packing import builder, collector, leaves_of
from tfrl.rollout.acting import HostPolicy
from tfrl.types import ActingAgent, Nest

# Number of steps per batch of random draws.
_STEPS = 256
_MOST_SIZES = 32  # maximum number of prepared batch sizes


@struct.logic_dataclass
class _Batch(struct.Struct):
    """The properties of environments that acting needs, without environments."""

    num_envs: int
    obs_spec: Nest


class Policy:
    """An agent with its parameters, with the `predict` of Stable-Baselines3's policies.

    Small policies run in NumPy, without calling TensorFlow. The first prediction for a batch size
    takes longer: it prepares NumPy and TensorFlow and chooses.

    Attributes:
      obs_spec: The nest of specs of one observation.
      action_spec: The nest of specs of one action.
    """

    def __init__(self, agent: ActingAgent, agent_state: Nest, seed: int = 0):
        """Takes an agent and its state.

        Args:
          agent: Any agent with the library's protocol.
          agent_state: Its state; values are read at the first prediction.
          seed: The seed of sampled actions.
        """
        self.obs_spec, self.action_spec = agent.obs_spec, agent.action_spec
        self._agent, self._agent_state = agent, agent_state
        self._key = seeding.key(seed)
        self._draws = 0
        self._observations = ObsReader(self.obs_spec)
        self._bounds = [_bounds(spec) for spec in tf.nest.flatten(self.action_spec)]
        self._pack_action = builder(tf.nest.map_structure(lambda _: 0, self.action_spec))
        self._players: dict[tuple[int, bool], _BatchPolicy] = {}

    def predict(
        self,
        obs: Nest,
        deterministic: bool = True,
        state: Nest = None,
        episode_start: Any = None,
    ) -> tuple[Nest, Nest]:
        """Returns the action for an observation, and the recurrent state after it.

        Continuous actions are clipped to their bounds.

        Args:
          obs: One observation, or a batch `[B, ...]`, with the structure of `obs_spec`: an array,
            or a dict, list or tuple of arrays.
          deterministic: Whether to take the greedy action; else it is sampled as in training.
          state: The state returned by the previous call; None if all episodes start.
          episode_start: Whether an episode starts here, a bool or bool `[B]`: `state` is ignored in
            those rows.

        Returns:
          The action for the observation or the batch, and the state, leaves `[B, ...]` (B = 1 for
          one observation), or None without memory.

        Raises:
          UserError: For an observation that does not match `obs_spec`, or has integers out of its
            range; a state that is not `[B, ...]` of `state_spec`; an `episode_start` of another
            length.
        """
        rows, size, single = self._observations.read(obs)
        player = self._players.get((size, deterministic)) or self._player(size, deterministic)
        carry = player.states.read(state, episode_start)
        if player.step >= player.length:
            player.begin(self._next_key(), rows, carry)
        action, after, _ = player.policy.act(rows, player.step, carry)
        player.step += 1
        leaves = leaves_of(action)
        for i, bounds in enumerate(self._bounds):
            if bounds is not None:
                leaves[i] = np.minimum(np.maximum(leaves[i], bounds[0]), bounds[1])
        if single:
            leaves = [x[0] for x in leaves]
        return self._pack_action(leaves), after

    @property
    def state_spec(self) -> Nest:
        """The nest of specs of one row of the recurrent state; None without memory."""
        make = getattr(self._agent, "initial_carry", None)
        carry = None if make is None else make(1)
        if carry is None:
            return None
        return tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape[1:], x.dtype), carry)

    def _player(self, size: int, deterministic: bool) -> "_BatchPolicy":
        if len(self._players) >= _MOST_SIZES:
            del self._players[next(iter(self._players))]
        player = _BatchPolicy(self._agent, self._agent_state, size, deterministic)
        self._players[size, deterministic] = player
        return player

    def _next_key(self) -> tf.Tensor:
        self._draws += 1
        return seeding.fold_in(self._key, self._draws)


class _BatchPolicy:
    """Acts for one batch size."""

    def __init__(self, agent: ActingAgent, agent_state: Nest, size: int, deterministic: bool):
        batch: Any = _Batch(num_envs=size, obs_spec=agent.obs_spec)
        act = agent.evaluate_actions if deterministic else agent.compute_actions
        self.policy = HostPolicy(batch, agent, act)
        self._agent_state = agent_state
        self.states = StateReader(self.policy.fresh_carry(), size)
        self.step = self.length = 0

    def begin(self, key: tf.Tensor, obs: Nest, carry: Nest) -> None:
        """Draws random numbers for the next steps."""
        self.policy.begin(self._agent_state, key, _STEPS, obs, carry)
        self.step, self.length = 0, _STEPS


class StateReader:
    """Checks recurrent states of users, and replaces them in rows where an episode starts."""

    def __init__(self, fresh: Nest, size: int):
        """Takes the state at an episode start, arrays `[size, ...]`; None without memory."""
        self._fresh, self._size = fresh, size
        self._collect = collector(fresh, "state")
        self._pack = builder(fresh)
        self._leaves = [
            (_name("state", path), leaf.dtype, leaf.shape)
            for path, leaf in struct.paths(fresh).items()
        ]

    def read(self, state: Nest, episode_start: Any) -> Nest:
        """Returns the state of a step.

        Args:
          state: The user's state, or None: all episodes start.
          episode_start: A bool or bool `[size]`, or None.
        """
        starts = None if episode_start is None else self._starts(episode_start)
        if state is None:
            return self._fresh
        if self._fresh is None:
            raise UserError(
                "state",
                expected="None for a policy without memory",
                got=type(state).__name__,
                remedy="Leave it out.",
            )
        values: list[Any] = []
        self._collect(state, values)
        arrays = []
        for (name, dtype, shape), leaf in zip(self._leaves, values, strict=True):
            array = _array(name, dtype, leaf)
            if array.shape != shape:
                raise _wrong(name, f"{dtype} of shape {list(shape)}", array, "state_spec")
            arrays.append(array)
        if starts is not None and starts.any():
            fresh = leaves_of(self._fresh)
            for i, old in enumerate(arrays):
                arrays[i] = np.where(starts.reshape([-1] + [1] * (old.ndim - 1)), fresh[i], old)
        return self._pack(arrays)

    def _starts(self, episode_start: Any) -> np.ndarray:
        rows = np.asarray(episode_start)
        if rows.dtype.kind not in "biuf" or rows.shape not in ((), (self._size,)):
            raise UserError(
                "episode_start",
                expected=f"a bool, or bool of shape [{self._size}]",
                got=f"{rows.dtype} of shape {list(rows.shape)}",
                remedy="Pass one value per observation.",
            )
        return np.broadcast_to(rows.astype(bool), [self._size])


def _bounds(spec: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """The bounds of a continuous action, if it has any."""
    low, high = specs.bounds(spec)
    if not spec.dtype.is_floating or not (np.isfinite(low).any() or np.isfinite(high).any()):
        return None
    return low, high


def _ranges(spec: Any) -> tuple[Any, Any] | None:
    """The bounds of integers that do not use all values of their dtype, scalars as ints."""
    if not (specs.is_discrete(spec) and spec.dtype.is_integer):
        return None
    low, high = specs.bounds(spec)
    if (low == spec.dtype.min).all() and (high == spec.dtype.max).all():
        return None  # images
    return (low, high) if low.ndim else (low.item(), high.item())


def _check_range(name: str, array: np.ndarray, low: Any, high: Any) -> None:
    if array.ndim == 0:  # a Discrete value, in a tenth of a microsecond
        if low <= array.item() <= high:
            return
    elif not ((array < low) | (array > high)).any():
        return
    raise UserError(
        name,
        expected=f"whole numbers from {specs.shown(low)} to {specs.shown(high)}",
        got=f"{array.min()} to {array.max()}" if array.ndim else str(array),
        remedy="Match the policy's obs_spec.",
    )


class ObsReader:
    """Turns user observations into arrays `[B, ...]` of the spec's dtypes."""

    def __init__(self, obs_spec: Nest):
        """Takes the nest of specs of one observation."""
        self._collect = collector(obs_spec, "obs")
        self._pack = builder(tf.nest.map_structure(lambda _: 0, obs_spec))
        self._leaves = [
            (
                _name("obs", path),
                np.dtype(spec.dtype.as_numpy_dtype),
                tuple(spec.shape.as_list()),
                _ranges(spec),
            )
            for path, spec in struct.paths(obs_spec).items()
        ]

    def read(self, obs: Nest) -> tuple[Nest, int, bool]:
        """Returns the observation with a leading axis B, B, and whether it was a single one."""
        values: list[Any] = []
        self._collect(obs, values)
        arrays, sizes = [], set()
        for (name, dtype, shape, ranges), leaf in zip(self._leaves, values, strict=True):
            array = _array(name, dtype, leaf)
            single = array.shape == shape
            if single:
                sizes.add(0)
            elif array.shape[1:] == shape and array.ndim == len(shape) + 1 and len(array):
                sizes.add(array.shape[0])
            elif array.shape == (0, *shape):
                raise UserError(
                    name,
                    expected="at least one observation",
                    got=f"a batch of shape {list(array.shape)}",
                    remedy="Pass one observation or a batch of several.",
                )
            else:
                raise _wrong(name, f"{dtype} of shape {list(shape)}, or a batch", array)
            if ranges is not None:
                _check_range(name, array, *ranges)
            arrays.append(array[np.newaxis] if single else array)
        if len(sizes) != 1:
            raise UserError(
                "obs",
                expected="the same batch size in all parts",
                got=f"{', '.join(f'{n}' if n else 'none' for n in sorted(sizes))}",
                remedy="Use the same leading axis in every part, or no leading axis.",
            )
        (size,) = sizes
        return self._pack(arrays), size or 1, not size


def _array(name: str, dtype: np.dtype, leaf: Any) -> np.ndarray:
    """A leaf as an array of the spec's dtype, if that preserves the values."""
    try:
        array = leaf if type(leaf) is np.ndarray else np.asarray(leaf)
    except ValueError as error:  # lists of different lengths
        raise UserError(
            name,
            expected="numbers, in lists of equal length",
            got=f"{leaf!r:.60}",
            remedy="Pass an array.",
        ) from error
    if array.dtype == dtype:
        return array
    kinds = {"f": "fiub", "i": "iub", "u": "iub", "b": "b"}.get(dtype.kind, dtype.kind)
    if array.dtype.kind not in kinds:
        raise _wrong(name, f"{dtype}", array)
    cast = array.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(cast, array):
        raise UserError(
            name,
            expected=f"values of {dtype}",
            got=f"{array.min()} to {array.max()}",
            remedy="Match the policy's obs_spec.",
        )
    return cast


def _name(base: str, path: str) -> str:
    return base if path == "." else f"{base}/{path}"


def _wrong(name: str, expected: str, array: np.ndarray, spec: str = "obs_spec") -> UserError:
    return UserError(
        name,
        expected=expected,
        got=f"{array.dtype} of shape {list(array.shape)}",
        remedy=f"Match the policy's {spec}.",
    )
