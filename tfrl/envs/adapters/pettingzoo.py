"""PettingZoo's parallel environments as device environments: the suite `pettingzoo`."""

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import extras, seeding, specs, struct
from tfrl.envs import host
from tfrl.envs.core import Autoreset, Env
from tfrl.envs.env_calls import HostErrors, RunningCall, env_error
from tfrl.envs.gymnasium_values import check_end, number
from tfrl.envs.multi_agent import AGENT_FLAGS, MultiAgentEnv
from tfrl.envs.registry import WrapperFn, finish, import_task
from tfrl.errors import UserError
from tfrl.loading import trust
from tfrl.types import EnvState, Nest


class ParallelCopies:
    """Copies of an environment with their last observations; mutable.

    Each call of a row increments the row's token. A step passes the token of its state, so that a
    stale state is detected.

    Attributes:
      name: The environment's id, for messages.
      num_envs: Number of copies (B).
      agent_ids: The `possible_agents`.
      obs_spec: `{agent_id: nest of specs}`.
      action_spec: `{agent_id: nest of specs}`.
      max_cycles: The environment's own time limit in steps, or None.
    """

    def __init__(
        self, name: str, make: Callable[..., Any], options: Mapping[str, Any], num_envs: int
    ):
        """Creates the copies.

        Args:
          name: The environment's id.
          make: `make(**options)` returns a parallel environment.
          options: Its arguments.
          num_envs: Number of copies.
        """
        self.name, self.num_envs = name, num_envs
        self._make, self._options = make, dict(options)
        self._envs = [self._new() for _ in range(num_envs)]
        first = self._envs[0]
        self.agent_ids: tuple[str, ...] = tuple(first.possible_agents)
        self.obs_spec = {a: specs.to_spec(first.observation_space(a)) for a in self.agent_ids}
        self.action_spec = {a: specs.to_spec(first.action_space(a)) for a in self.agent_ids}
        self.max_cycles: int | None = getattr(first.unwrapped, "max_cycles", None)
        self._running = RunningCall(name)
        self._seeds, self._steps = [0] * num_envs, [0] * num_envs
        self._tokens = np.zeros(num_envs, np.int64)
        self._over_at = np.zeros(num_envs, np.int64)  # the token at the end of an episode
        self._live: list[set[str]] = [set() for _ in range(num_envs)]
        self._obs = {
            a: tf.nest.map_structure(
                lambda s: np.zeros([num_envs, *s.shape], s.dtype.as_numpy_dtype), spec
            )
            for a, spec in self.obs_spec.items()
        }

    def resized(self, num_envs: int) -> "ParallelCopies":
        """Returns new copies of the same environment."""
        return ParallelCopies(self.name, self._make, self._options, num_envs)

    def reset(self, seeds: np.ndarray, rows: np.ndarray) -> Nest:
        """Starts episodes in rows [B] with seeds [B]; returns the nest of a state."""
        record = self._record()
        for i in np.flatnonzero(rows):
            seed = int(seeds[i])
            self._seeds[i], self._steps[i] = seed, 0
            try:
                with self._running:
                    obs, _ = self._envs[i].reset(seed=seed)
            except UserError:
                raise
            except Exception as error:
                thing = f"reset() of {self.name}, environment {i}"
                raise env_error(error, thing, f"Reproduce it with reset(seed={seed}).") from error
            self._live[i] = set(self._envs[i].agents)
            self._see(i, obs)
            self._tokens[i] += 1
        return self._shown(record)

    def step(self, tokens: np.ndarray, *actions: np.ndarray) -> Nest:
        """Steps the copies whose episodes are not over; returns the nest of a state.

        Args:
          tokens: int64 [B], the tokens of the state to step from.
          *actions: The leaves of all agents' actions [B, ...], agent after agent.
        """
        self._check(tokens)
        record = self._record()
        parts = iter(actions)
        by_agent = {
            a: [next(parts) for _ in tf.nest.flatten(self.action_spec[a])] for a in self.agent_ids
        }
        for i in range(self.num_envs):
            was_live = bool(self._live[i])
            if was_live:
                self._step_row(i, by_agent, record)
            else:  # ended, until a reset
                record["ends"]["termination"][i] = True
            ended_now = was_live and not self._live[i]
            self._tokens[i] += 1
            if ended_now:
                self._over_at[i] = self._tokens[i]
        return self._shown(record)

    def _step_row(self, i: int, actions: dict[str, list[np.ndarray]], record: Nest) -> None:
        live = self._live[i]
        row = {a: self._action(a, i, actions[a]) for a in self.agent_ids if a in live}
        obs, rewards, terminations, truncations = self._stepped(i, row)
        for a in row:
            flags = record["agents"][a]
            flags["active"][i] = True
            flags["termination"][i] = terminations.get(a, False)
            flags["truncation"][i] = truncations.get(a, False)
            record["reward"][a][i] = rewards.get(a, 0.0)
        self._see(i, {a: o for a, o in obs.items() if a in live})
        ended = {a for a in row if terminations.get(a, False) or truncations.get(a, False)}
        self._live[i] = set(self._envs[i].agents) - ended
        if not self._live[i]:
            ends = record["ends"]
            ends["truncation"][i] = any(truncations.get(a, False) for a in row)
            ends["termination"][i] = not all(truncations.get(a, False) for a in row)

    def _stepped(self, i: int, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Steps a copy; returns observations, rewards and end flags of the right types."""
        self._steps[i] += 1
        place = f"environment {i}, step {self._steps[i]}"
        try:
            with self._running:
                obs, rewards, terminations, truncations, _ = self._envs[i].step(row)
        except UserError:
            raise
        except Exception as error:
            remedy = f"Reproduce it with reset(seed={self._seeds[i]}) and the same actions; "
            remedy += f"the last were {row}."
            raise env_error(error, f"step() of {self.name}, {place}", remedy) from error
        paid = {}
        for a in row:
            whose = f"{self.name}, {place}, agent {a}"
            paid[a] = number(f"reward of {whose}", rewards.get(a, 0.0))
            if not np.isfinite(paid[a]):
                raise UserError(f"reward of {whose}", expected="a finite number", got=paid[a])
            check_end(whose, terminations.get(a, False), truncations.get(a, False))
        return obs, paid, terminations, truncations

    def render(self, index: int) -> np.ndarray:
        """Renders a copy.

        Raises:
          NotImplementedError: Without render_mode='rgb_array'.
        """
        if self._options.get("render_mode") != "rgb_array":
            raise NotImplementedError(f"{self.name} was created without render_mode='rgb_array'")
        return np.asarray(self._envs[index].render(), np.uint8)

    def _new(self) -> Any:
        try:
            return self._make(**self._options)
        except TypeError as error:
            raise UserError(
                f"make_env({self.name!r})",
                expected="the arguments of its parallel_env",
                got=f"{self._options} ({error})",
            ) from error

    def _action(self, agent: str, i: int, leaves: list[np.ndarray]) -> Any:
        packed = tf.nest.pack_sequence_as(self.action_spec[agent], [x[i] for x in leaves])
        return tf.nest.map_structure(lambda x: x.item() if x.ndim == 0 else x, packed)

    def _see(self, i: int, obs: Mapping[str, Nest]) -> None:
        """Stores the observations of a copy's agents; a missing one keeps its last value."""
        for a, value in obs.items():
            stored = tf.nest.flatten(self._obs[a])
            for array, x in zip(stored, tf.nest.flatten(value), strict=True):
                array[i] = x
                if array.dtype.kind == "f" and not np.isfinite(array[i]).all():
                    raise UserError(
                        f"observation of {self.name}, environment {i}, step {self._steps[i]}, "
                        f"agent {a}",
                        expected="finite numbers",
                        got=str(array[i][~np.isfinite(array[i])][:3].tolist()),
                    )

    def _check(self, tokens: np.ndarray) -> None:
        # An ended row may stay in its final state while others continue.
        live = np.array([bool(agents) for agents in self._live])
        stale = np.where(live, tokens != self._tokens, tokens < self._over_at).nonzero()[0]
        if stale.size:
            raise UserError(
                self.name,
                expected="a step from the latest state",
                got=f"an older state, or one from another process, in rows {stale.tolist()}",
                remedy="Continue from a new reset: a host environment cannot be rewound to a "
                "snapshot or checkpoint.",
            )

    def _record(self) -> Nest:
        """Empty results of a step, to be filled in."""
        no = lambda: np.zeros(self.num_envs, bool)  # noqa: E731
        return {
            "reward": {a: np.zeros(self.num_envs, np.float32) for a in self.agent_ids},
            "ends": {"termination": no(), "truncation": no()},
            "agents": {a: {flag: no() for flag in AGENT_FLAGS} for a in self.agent_ids},
        }

    def _shown(self, record: Nest) -> Nest:
        copied = tf.nest.map_structure(np.copy, (self._tokens, self._obs))
        return {"token": copied[0], "obs": copied[1], **record}


@struct.logic_dataclass
class PettingZoo(MultiAgentEnv):
    """Steps copies of a PettingZoo parallel environment by calls from the graph to the host.

    It behaves like other multi-agent environments, with two limits of host environments:

    * XLA cannot compile it: use compile='graph'. It supports one process with one replica.
    * Snapshots and checkpoints do not hold the copies' state and cannot rewind them: a step from an
      older state, or from another process's state, is an error. Continue with a new `reset`.

    After its end, an agent's observation stays the last one. At each reset, copy i gets a seed
    drawn from the key.

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
        """Number of copies."""
        return self.copies.num_envs

    def with_num_envs(self, num_envs: int) -> Env:
        """Returns an environment with this number of new copies."""
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
        """Calls the host, and packs the returned flat arrays into a state."""
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
                outputs = tf.nest.flatten(fn(*arrays))
            except UserError as error:
                HostErrors.last = error
                raise
            return [
                np.ascontiguousarray(x, s.dtype.as_numpy_dtype)
                for x, s in zip(outputs, leaves, strict=True)
            ]

        # Stateful calls run once each, in tracing order.
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
        """Renders copy `index`; needs the argument render_mode='rgb_array'."""
        return self.copies.render(index)


# Packages of PettingZoo's own environments.
_OWN = ("pettingzoo", "mpe2")


def _module(name: str, path: str) -> types.ModuleType:
    if path.split(".")[0] in _OWN:
        trust(path)
    return import_task(
        name,
        path,
        "Use a module path such as pettingzoo.butterfly.pistonball_v6. Install third-party "
        "packages without dependencies, for example: pip install --no-deps mpe2 (otherwise pip "
        "replaces tf-agents' pygame by pygame-ce).",
    )


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
      num_envs: Number of copies.
      autoreset: Any mode but SAME_STEP_CACHED.
      max_episode_steps: See `make_env`; the task's own limit is its `max_cycles`, if any.
      wrappers: Inside the autoreset.
      outer_wrappers: Outside the autoreset.
      **kwargs: Arguments of `parallel_env`.

    Raises:
      UserError: If the extra `multiagent` is not installed, the module has no parallel environment,
        refuses the arguments, or does not support the mode.
    """
    name = f"pettingzoo:{task}"
    extras.require("pettingzoo", "multiagent")
    module = _module(name, task)
    make = getattr(module, "parallel_env", None)
    if make is None:
        raise UserError(
            name,
            expected="a module with a function parallel_env",
            got=f"{task} without this function",
            remedy="Use the path of the environment's module, such as mpe2.simple_spread_v3.",
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
