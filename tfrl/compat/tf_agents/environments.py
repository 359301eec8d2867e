"""This library's environments as TF-Agents' `PyEnvironment` and `TFEnvironment`."""

from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.environments.py_environment import PyEnvironment
from tf_agents.environments.tf_environment import TFEnvironment
from tf_agents.environments.tf_py_environment import TFPyEnvironment
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import TimeStep

from tfrl import seeding
from tfrl.compat.tf_agents import specs, trajectories
from tfrl.compat.tf_agents.players import Player, as_tensors, check_reward, make_player
from tfrl.compat.tf_agents.trajectories import time_step, time_step_spec
from tfrl.envs.adapters import host_spaces
from tfrl.envs.core import Autoreset, Env, Wrapper, carrying
from tfrl.envs.host import on_host
from tfrl.envs.host_env import HostEnv
from tfrl.envs.multi_agent import MultiAgentEnv
from tfrl.envs.wrappers.episode import Episode
from tfrl.errors import UserError
from tfrl.traces import counted_separately
from tfrl.types import EnvState, Nest


class BatchedEnvironment(PyEnvironment):
    """A batch of environments as one batched PyEnvironment."""

    def __init__(self, player: Player):
        """Reads the specs; nothing is reset yet.

        Args:
          player: The player of the environments.
        """
        super().__init__()
        self._player = player
        env = player.env
        self._specs = trajectories.time_step_spec(env.obs_spec)
        self._action_spec = specs.array_spec(env.action_spec, "action")
        self._copy = host_spaces.copier(
            specs.plain(env.action_spec), "action for the environment", env.num_envs
        )

    @property
    def batched(self) -> bool:
        """True."""
        return True

    @property
    def batch_size(self) -> int | None:
        """The number of environments."""
        return self._player.env.num_envs

    @property
    def max_episode_steps(self) -> int | None:
        """Steps after which an episode is truncated, or None."""
        return self._player.env.max_episode_steps

    def observation_spec(self) -> Nest:
        """The nest of array specs of one observation."""
        return self._specs.observation

    def action_spec(self) -> Nest:
        """The nest of array specs of one action."""
        return self._action_spec

    def seed(self, seed: int) -> None:
        """Sets the seed of the next reset."""
        self._player.seed(seed)

    def get_info(self) -> dict[str, Any]:
        """Returns the last `EnvState.info`, without the observations."""
        return self._player.info

    def render(self, mode: str = "rgb_array") -> np.ndarray:
        """Renders the environments, uint8 RGB `[B, H, W, 3]`."""
        if mode != "rgb_array":
            raise NotImplementedError("render supports only mode rgb_array")
        return np.stack([self._player.render(i) for i in range(self._player.env.num_envs)])

    def close(self) -> None:
        """Closes environments on the host."""
        self._player.close()

    def _reset(self) -> TimeStep:
        return self._player.reset()

    def _step(self, action: Nest) -> TimeStep:
        return self._player.step(self._copy(action))


class SingleEnvironment(BatchedEnvironment):
    """One environment as a PyEnvironment without a batch axis."""

    @property
    def batched(self) -> bool:
        """False."""
        return False

    @property
    def batch_size(self) -> None:
        """None, since there is no batch axis."""
        return None

    def get_info(self) -> dict[str, Any]:
        """Returns the last `EnvState.info`, without the observations."""
        return tf.nest.map_structure(lambda x: x[0], self._player.info)

    def render(self, mode: str = "rgb_array") -> np.ndarray:
        """Renders the environment, uint8 RGB `[H, W, 3]`."""
        return super().render(mode)[0]

    def _reset(self) -> TimeStep:
        return _row(super()._reset())

    def _step(self, action: Nest) -> TimeStep:
        return _row(super()._step(tf.nest.map_structure(lambda a: np.asarray(a)[None], action)))


def _row(batch: TimeStep) -> TimeStep:
    # Arrays also for numbers: TF-Agents' specs reject NumPy scalars.
    return tf.nest.map_structure(lambda x: np.asarray(x[0]), batch)


class GraphEnvironment(TFEnvironment):
    """A device environment with its state in variables.

    The first `reset` starts the episodes of `env.reset(tfrl.seeding.key(seed))`; so does an
    environment without a reset. Further resets start different episodes.
    """

    def __init__(self, env: Env, seed: int, discount: float):
        """Makes the variables, and starts an episode.

        Args:
          env: An environment with autoreset NEXT_STEP.
          seed: See `as_tf_environment`.
          discount: See `as_tf_environment`.
        """
        super().__init__(
            tensor_spec.from_spec(time_step_spec(env.obs_spec)),
            specs.tensor_spec(env.action_spec, "action"),
            env.num_envs,
        )
        self._env, self._discount = env, discount
        with tf.init_scope():
            self._key = tf.Variable(seeding.key(seed), trainable=False, name="key")
            self._resets = tf.Variable(0, trainable=False, dtype=tf.int64, name="resets")
            begun = tf.function(counted_separately(self._begun), autograph=False)()
            self._shape = begun
            self._variables = [
                tf.Variable(leaf, trainable=False, name="state") for leaf in tf.nest.flatten(begun)
            ]
        self._reset_fn = tf.function(counted_separately(self._restart), autograph=False)
        self._step_fn = tf.function(counted_separately(self._go_on), autograph=False)

    @property
    def max_episode_steps(self) -> int | None:
        """Steps after which an episode is truncated, or None."""
        return self._env.max_episode_steps

    def seed(self, seed: int) -> None:
        """Sets the seed of the next `reset`."""
        self._key.assign(seeding.key(seed))
        self._resets.assign(0)

    def _outputs(self, state: EnvState) -> tuple[Nest, TimeStep]:
        check_reward(state.reward)
        return state.env_state, time_step(state, self._env.obs_spec, self._discount)

    def _begun(self) -> tuple[Nest, TimeStep]:
        number = self._resets.read_value()
        key = tf.where(number == 0, self._key, seeding.fold_in(self._key, number))
        return self._outputs(self._env.reset(key))

    def _values(self) -> tuple[Nest, TimeStep]:
        values = [variable.read_value() for variable in self._variables]
        return tf.nest.pack_sequence_as(self._shape, values)

    def _keep(self, outputs: tuple[Nest, TimeStep]) -> TimeStep:
        for variable, value in zip(self._variables, tf.nest.flatten(outputs), strict=True):
            variable.assign(value)
        return outputs[1]

    def _restart(self) -> TimeStep:
        step = self._keep(self._begun())
        self._resets.assign_add(1)
        return step

    def _go_on(self, action: Nest) -> TimeStep:
        return self._keep(self._outputs(self._env.step(carrying(self._values()[0]), action)))

    def _current_time_step(self) -> TimeStep:
        return self._values()[1]

    def _reset(self) -> TimeStep:
        return self._reset_fn()

    def _step(self, action: Nest) -> TimeStep:
        return self._step_fn(as_tensors(action, self._env.action_spec))

    def render(self) -> tf.Tensor:
        """Renders the environments, uint8 RGB `[B, H, W, 3]`; not in a graph."""
        state = carrying(self._values()[0])
        return tf.constant(
            np.stack([self._env.render(state, i) for i in range(self._env.num_envs)])
        )


def as_py_environment(
    env: Env, seed: int = 0, discount: float = 1.0, batched: bool | None = None
) -> PyEnvironment:
    """Makes a TF-Agents PyEnvironment from an environment.

    The first reset starts the episodes of `env.reset(seed)`; further resets start different ones,
    which also follow from the seed. `close` closes environments on the host.

    Args:
      env: The result of `make_env`, of any autoreset mode. Several environments on the host of
        another mode than NEXT_STEP are closed and created again with this mode.
      seed: The seed of the first reset; `seed(...)` sets another.
      discount: The discount of steps that do not terminate; above 0. It belongs to the task: agents
        multiply it by their gamma.
      batched: Whether actions and time steps have a batch axis; None for a batch axis only with
        several environments.

    Returns:
      The environment; `get_info()` has the items of `EnvState.info`.

    Raises:
      UserError: For an environment that TF-Agents cannot represent.
    """
    env = _checked(env, discount)
    if batched is None:
        batched = env.num_envs > 1
    if not batched and env.num_envs > 1:
        raise UserError(
            "as_py_environment: batched",
            expected="True for several environments",
            got=f"{batched!r} for {env.num_envs}",
            remedy="Leave it out, or create the environment with num_envs=1.",
        )
    kind = BatchedEnvironment if batched else SingleEnvironment
    return kind(make_player(env, seed, discount))


def as_tf_environment(env: Env, seed: int = 0, discount: float = 1.0) -> TFEnvironment:
    """Makes a TF-Agents TFEnvironment from an environment.

    A device environment becomes graph operations with its state in variables, so that a driver's
    loop needs no Python. An environment on the host becomes a TFPyEnvironment.

    Args:
      env: See `as_py_environment`.
      seed: See `as_py_environment`.
      discount: See `as_py_environment`.

    Raises:
      UserError: For an environment that TF-Agents cannot represent.
    """
    if isinstance(env, HostEnv):
        return TFPyEnvironment(as_py_environment(env, seed, discount, batched=True))
    return GraphEnvironment(_checked(env, discount), seed, discount)


def _checked(env: Any, discount: float) -> Env:
    """Returns an environment whose episodes begin in separate rows (NEXT_STEP)."""
    fits = isinstance(env, Env) and not isinstance(env.unwrapped, MultiAgentEnv)
    if not fits or env.autoreset is None:
        raise UserError(
            "environment for TF-Agents",
            expected="a single-agent environment from tfrl.make_env",
            got=repr(env) if not isinstance(env, Env) else f"a {type(env).__name__}",
            remedy="Register your task and create it with make_env; TF-Agents supports one agent "
            "per environment.",
        )
    if not 0 < discount <= 1:
        raise UserError(
            "discount",
            expected="a number above 0 and at most 1, since 0 marks a termination",
            got=repr(discount),
            remedy="Leave it out, and set the agent's gamma.",
        )
    if isinstance(env, HostEnv):
        if env.num_envs == 1 or env.autoreset is Autoreset.NEXT_STEP:
            return env
        # TF-Agents returns the first observation in a separate step, while other rows continue.
        other = env.copy(autoreset=Autoreset.NEXT_STEP)
        env.close()
        return other
    if on_host(env):
        raise UserError(
            f"{type(env.unwrapped).__name__} for TF-Agents",
            expected="an environment on the device, or a HostEnv",
            got="an environment that runs as a call from the graph",
            remedy="Create it with a suite such as gymnasium.",
        )
    return _next_step(env)


def _next_step(env: Env) -> Env:
    """Returns the environment with autoreset NEXT_STEP."""
    if env.autoreset is Autoreset.NEXT_STEP:
        return env
    outer: Any = env
    if isinstance(env, Episode):
        return outer.replace(mode=Autoreset.NEXT_STEP)
    if isinstance(env, Wrapper):
        return outer.replace(env=_next_step(env.env))
    raise UserError(
        f"autoreset of {type(env).__name__}",
        expected="NEXT_STEP, or an environment from make_env",
        got=env.autoreset and env.autoreset.name,
        remedy="Use the autoreset of make_env.",
    )
