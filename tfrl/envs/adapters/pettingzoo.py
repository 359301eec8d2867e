"""PettingZoo's parallel environments as device environments: the suite `pettingzoo`."""

import importlib
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import extras, seeding, specs, struct
from tfrl.envs import host
from tfrl.envs.adapters.pettingzoo_copies import ParallelCopies
from tfrl.envs.core import Autoreset, Env
from tfrl.envs.env_calls import HostErrors
from tfrl.envs.multi_agent import AGENT_FLAGS, MultiAgentEnv
from tfrl.envs.registry import WrapperFn, finish
from tfrl.errors import UserError
from tfrl.loading import import_code
from tfrl.types import EnvState, Nest


@struct.logic_dataclass
class PettingZoo(MultiAgentEnv):
    """Steps copies of a PettingZoo parallel environment by calls from the graph to the host.

    It behaves as any other environment with several agents, but for what the host does not allow:

    * XLA cannot compile it: give compile='graph' to what steps it. One process, one replica.
    * A snapshot or a checkpoint does not hold the copies' state, and cannot rewind them: a step
      from an older state, or from one of another process, is an error. Go on from a new `reset`.

    An agent is shown its last observation again after its end. Copy i is seeded at each reset by a
    number drawn for it from the key.

    Source: https://pettingzoo.farama.org/api/parallel/.

    Attributes:
      copies: The environments on the host.
    """

    copies: ParallelCopies
    on_host = True

    @property
    def agent_ids(self) -> tuple[str, ...]:
        """The environment's `possible_agents`."""
        return self.copies.agent_ids

    @property
    def obs_spec(self) -> dict[str, Nest]:
        """One nest an agent."""
        return self.copies.obs_spec

    @property
    def action_spec(self) -> dict[str, Nest]:
        """One nest an agent."""
        return self.copies.action_spec

    @property
    def num_envs(self) -> int:
        """How many copies there are."""
        return self.copies.num_envs

    def with_num_envs(self, num_envs: int) -> Env:
        """Returns an environment of as many new copies."""
        return PettingZoo(copies=self.copies.resized(num_envs))

    def reset(self, key: tf.Tensor | host.RowsKey) -> EnvState:
        """Starts an episode in every copy, or in the rows of a `RowsKey`."""
        host.check_place(self.copies.name)
        rows = tf.ones([self.num_envs], tf.bool)
        if isinstance(key, host.RowsKey):
            key, rows = key.key, key.rows
        seeds = seeding.randint(key, [self.num_envs], 0, 2**31 - 1)
        return self._call(self.copies.reset, [seeds, rows])

    def step(self, state: EnvState, action: dict[str, Nest]) -> EnvState:
        """Takes one step in every copy whose episode is not over."""
        host.check_place(self.copies.name)
        actions = [x for a in self.agent_ids for x in tf.nest.flatten(action[a])]
        return self._call(self.copies.step, [state.env_state["token"], *actions])

    def _call(self, fn: Callable[..., Any], inputs: list[tf.Tensor]) -> EnvState:
        """Calls the host; the flat arrays that come back become a state."""
        size, ids = self.num_envs, self.agent_ids
        flag = specs.TensorSpec([size], tf.bool)
        form = {
            "token": specs.TensorSpec([size], tf.int64),
            "obs": specs.add_batch(self.obs_spec, size),
            "reward": {a: specs.TensorSpec([size], tf.float32) for a in ids},
            "ends": {"termination": flag, "truncation": flag},
            "agents": {a: dict.fromkeys(AGENT_FLAGS, flag) for a in ids},
        }
        leaves = tf.nest.flatten(form)

        def on_the_host(*arrays: np.ndarray) -> list[np.ndarray]:
            try:
                found = tf.nest.flatten(fn(*arrays))
            except UserError as error:
                HostErrors.last = error
                raise
            return [
                np.ascontiguousarray(x, s.dtype.as_numpy_dtype)
                for x, s in zip(found, leaves, strict=True)
            ]

        # Stateful: such calls run once each, in the order in which they were traced.
        values = tf.numpy_function(on_the_host, inputs, [s.dtype for s in leaves], stateful=True)
        values = [tf.ensure_shape(v, s.shape) for v, s in zip(values, leaves, strict=True)]
        got = tf.nest.pack_sequence_as(form, values)
        return EnvState(
            env_state={"token": got["token"]},
            obs=got["obs"],
            reward=got["reward"],
            termination=got["ends"]["termination"],
            truncation=got["ends"]["truncation"],
            info={"agents": got["agents"]},
        )

    def render(self, state: EnvState, index: int = 0) -> np.ndarray:
        """Draws copy `index` as it is now; with the argument render_mode='rgb_array' only."""
        return self.copies.render(index)


# Packages of PettingZoo's own environments.
_OWN = ("pettingzoo", "mpe2")


def _module(name: str, path: str) -> types.ModuleType:
    try:
        if path.split(".")[0] in _OWN:
            return importlib.import_module(path)
        return import_code(path, f"environment {name}")
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise  # something that the environment itself needs
        raise UserError(
            name,
            expected="the path of a module that is installed",
            got=f"no module named {error.name}",
            remedy="PettingZoo's own begin with pettingzoo. Install others beside it, for example: "
            "pip install --no-deps mpe2 (with dependencies, pip would put pygame-ce in the place "
            "of tf-agents' pygame).",
        ) from error


def make_pettingzoo(
    task: str,
    *,
    num_envs: int,
    autoreset: Autoreset,
    max_episode_steps: int | None,
    wrappers: Sequence[WrapperFn] = (),
    outer_wrappers: Sequence[WrapperFn] = (),
    **kwargs: Any,
) -> Env:
    """Makes `pettingzoo:<module path>`, for example `pettingzoo:mpe2.simple_spread_v3`.

    Args:
      task: The path of a module with a function `parallel_env`.
      num_envs: How many copies.
      autoreset: Any mode but SAME_STEP_CACHED.
      max_episode_steps: As of `make_env`; the task's own limit is its `max_cycles`, if it has it.
      wrappers: Below the autoreset.
      outer_wrappers: Above the autoreset.
      **kwargs: Arguments of `parallel_env`.

    Raises:
      UserError: If the extra `multiagent` is not installed, the module is no parallel environment,
        refuses the arguments, or cannot do what the mode asks.
    """
    name = f"pettingzoo:{task}"
    extras.require("pettingzoo", "multiagent")
    module = _module(name, task)
    make = getattr(module, "parallel_env", None)
    if make is None:
        raise UserError(
            name,
            expected="a module with a function parallel_env",
            got=f"{task} without one",
            remedy="Give the path of the environment's module, such as mpe2.simple_spread_v3.",
        )
    host.refuse_cached(name, autoreset)
    copies = ParallelCopies(name, make, kwargs, num_envs)
    return finish(
        PettingZoo(copies=copies),
        autoreset=autoreset,
        max_episode_steps=max_episode_steps,
        task_limit=copies.max_cycles,
        wrappers=wrappers,
        outer_wrappers=outer_wrappers,
    )
