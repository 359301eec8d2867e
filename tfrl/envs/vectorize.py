"""Makes a batch from a single environment."""

import functools
from typing import Any

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.envs.core import Env, carrying
from tfrl.envs.registry import check_num_envs
from tfrl.errors import UserError
from tfrl.traces import counted_separately
from tfrl.types import EnvState, Nest


def vectorize(env: Env, num_envs: int) -> Env:
    """Batches a single-environment environment with `tf.vectorized_map`.

    The environment has the methods of `Env` with unbatched leaves: `reset(key)` and
    `step(state, action)` return an observation as in `obs_spec`, a scalar reward and scalar end
    flags, and `num_envs` is 1. A random step uses a key in `env_state`; environment i is reset with
    `fold_in(key, i)`. The result is a bare environment for `make_env`:

        register("my:Task", lambda num_envs: vectorize(MyTask(), num_envs))

    TensorFlow vectorises everything except random draws, which run one environment after the other:
    a natively batched environment is faster with many draws.

    Args:
      env: The single environment; a `struct.logic_dataclass`.
      num_envs: Number of environments in the batch.

    Returns:
      The batched environment.

    Raises:
      UserError: If `env` already has an autoreset mode or a batch, or `num_envs` is not a positive
        int; at reset or step, if it returns batched leaves.
    """
    num_envs = check_num_envs(num_envs)
    if env.autoreset is not None or env.num_envs != 1:
        raise UserError(
            "vectorize",
            expected="a bare environment with num_envs 1 and unbatched leaves",
            got=f"num_envs {env.num_envs}, autoreset {env.autoreset and env.autoreset.name}",
            remedy="Use a batched environment without vectorize, and add autoreset with make_env.",
        )
    return Vectorized(env=env, num_envs=num_envs)


@struct.logic_dataclass
class Vectorized(Env):
    """A batch of `num_envs` copies of a single environment; see `vectorize`."""

    env: Env
    num_envs: int = 1

    @property
    def obs_spec(self) -> Nest:
        """The single environment's."""
        return self.env.obs_spec

    @property
    def action_spec(self) -> Nest:
        """The single environment's."""
        return self.env.action_spec

    @property
    def max_episode_steps(self) -> int | None:
        """The single environment's."""
        return self.env.max_episode_steps

    @property
    def action_repeat(self) -> int:
        """The single environment's."""
        return self.env.action_repeat

    def reset(self, key: tf.Tensor) -> EnvState:
        """Starts an episode in every environment, number i with `fold_in(key, i)`."""
        return _compiled(self, "_reset")(key) if tf.executing_eagerly() else self._reset(key)

    def _reset(self, key: tf.Tensor) -> EnvState:
        keys = seeding.fold_in(key, tf.range(self.num_envs))  # [B, 2]
        return self._map(self.env.reset, (keys,))

    def step(self, state: EnvState, action: Nest) -> EnvState:
        """Takes one step in every environment."""
        step = _compiled(self, "_step") if tf.executing_eagerly() else self._step
        return step(carrying(state.env_state), action)

    def _step(self, state: EnvState, action: Nest) -> EnvState:
        def one(env_state: Nest, action: Nest) -> EnvState:
            return self.env.step(carrying(env_state), action)

        return self._map(one, (state.env_state, action))

    def _map(self, fn: Any, arguments: tuple[Nest, ...]) -> EnvState:
        """Maps over the leading axis; passes leaves to vectorized_map as plain lists."""
        structure: list[EnvState] = []

        def flat(leaves: list[tf.Tensor]) -> list[tf.Tensor]:
            state = _single(fn(*tf.nest.pack_sequence_as(arguments, leaves)))
            structure[:] = [state]
            return tf.nest.flatten(state)

        leaves = tf.vectorized_map(flat, tf.nest.flatten(arguments), warn=False)
        batched = [tf.ensure_shape(x, [self.num_envs, *x.shape[1:]]) for x in leaves]
        return tf.nest.pack_sequence_as(structure[0], batched)

    def render(self, state: EnvState, index: int = 0) -> Any:
        """Draws environment `index` with the single environment's renderer."""
        row = tf.nest.map_structure(lambda x: x[index], state)
        return self.env.render(row, 0)


@functools.lru_cache(maxsize=64)
def _compiled(env: Vectorized, method: str) -> Any:
    """The traced method; otherwise every eager call would retrace vectorized_map."""
    return tf.function(counted_separately(getattr(env, method)), autograph=False)


def _single(state: EnvState) -> EnvState:
    """Converts the result of a user's environment, and checks its ranks."""
    state = state.replace(
        reward=tf.nest.map_structure(lambda r: tf.cast(r, tf.float32), state.reward),
        termination=tf.cast(state.termination, tf.bool),
        truncation=tf.cast(state.truncation, tf.bool),
    )
    state = tf.nest.map_structure(tf.convert_to_tensor, state)
    parts = {"reward": state.reward, "termination": state.termination}
    for path, x in struct.paths({**parts, "truncation": state.truncation}).items():
        if x.shape.rank != 0:
            raise UserError(
                f"vectorize: {path}",
                expected="a scalar, since the environment is unbatched",
                got=f"shape {tuple(x.shape)}",
                remedy="Return unbatched leaves, or register the environment without vectorize.",
            )
    return state
