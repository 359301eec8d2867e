"""Copies of one PettingZoo parallel environment on the host, stepped row by row in NumPy."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import specs
from tfrl.envs.adapters.gymnasium_returns import check_end, number
from tfrl.envs.env_calls import RunningCall, env_error
from tfrl.envs.multi_agent import AGENT_FLAGS
from tfrl.errors import UserError
from tfrl.types import Nest


class ParallelCopies:
    """The copies and what they showed last; it changes with every call.

    Each call of a row raises the row's token. A step brings the token that its state was made with,
    so that a state that the copies have left behind is found out.

    Attributes:
      name: The environment's id, for messages.
      num_envs: How many copies (B).
      agent_ids: The `possible_agents`.
      obs_spec: `{agent_id: nest of specs}`.
      action_spec: `{agent_id: nest of specs}`.
      max_cycles: The steps after which the environment truncates by itself, or None.
    """

    def __init__(
        self, name: str, make: Callable[..., Any], options: Mapping[str, Any], num_envs: int
    ):
        """Makes the copies.

        Args:
          name: The environment's id.
          make: `make(**options)` gives a parallel environment.
          options: Its arguments.
          num_envs: How many copies.
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
        self._over_at = np.zeros(num_envs, np.int64)  # the token with which an episode ended
        self._live: list[set[str]] = [set() for _ in range(num_envs)]
        self._obs = {
            a: tf.nest.map_structure(
                lambda s: np.zeros([num_envs, *s.shape], s.dtype.as_numpy_dtype), spec
            )
            for a, spec in self.obs_spec.items()
        }

    def resized(self, num_envs: int) -> "ParallelCopies":
        """Returns other copies of the same environment."""
        return ParallelCopies(self.name, self._make, self._options, num_envs)

    def reset(self, seeds: np.ndarray, rows: np.ndarray) -> Nest:
        """Starts episodes in the rows [B] with their seeds [B]; returns the nest of a state."""
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
                raise env_error(error, thing, f"Repeat it: reset(seed={seed}).") from error
            self._live[i] = set(self._envs[i].agents)
            self._see(i, obs)
            self._tokens[i] += 1
        return self._shown(record)

    def step(self, tokens: np.ndarray, *actions: np.ndarray) -> Nest:
        """Steps the copies whose episodes are not over; returns the nest of a state.

        Args:
          tokens: int64 [B], of the state to step from.
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
            else:  # over, until it is reset
                record["ends"]["termination"][i] = True
            ended_now = was_live and not self._live[i]
            self._tokens[i] += 1
            if ended_now:
                self._over_at[i] = self._tokens[i]
        return self._shown(record)

    def _step_row(self, i: int, actions: dict[str, list[np.ndarray]], record: Nest) -> None:
        live = self._live[i]
        given = {a: self._action(a, i, actions[a]) for a in self.agent_ids if a in live}
        obs, rewards, terminations, truncations = self._stepped(i, given)
        for a in given:
            flags = record["agents"][a]
            flags["active"][i] = True
            flags["termination"][i] = terminations.get(a, False)
            flags["truncation"][i] = truncations.get(a, False)
            record["reward"][a][i] = rewards.get(a, 0.0)
        self._see(i, {a: o for a, o in obs.items() if a in live})
        ended = {a for a in given if terminations.get(a, False) or truncations.get(a, False)}
        self._live[i] = set(self._envs[i].agents) - ended
        if not self._live[i]:
            ends = record["ends"]
            ends["truncation"][i] = any(truncations.get(a, False) for a in given)
            ends["termination"][i] = not all(truncations.get(a, False) for a in given)

    def _stepped(self, i: int, given: Mapping[str, Any]) -> tuple[Any, ...]:
        """Steps a copy; returns observations, and rewards and ends of the right types."""
        self._steps[i] += 1
        place = f"environment {i}, step {self._steps[i]}"
        try:
            with self._running:
                obs, rewards, terminations, truncations, _ = self._envs[i].step(given)
        except UserError:
            raise
        except Exception as error:
            remedy = f"Repeat it: reset(seed={self._seeds[i]}), then the same actions; the last "
            remedy += f"were {given}."
            raise env_error(error, f"step() of {self.name}, {place}", remedy) from error
        paid = {}
        for a in given:
            whose = f"{self.name}, {place}, agent {a}"
            paid[a] = number(f"reward of {whose}", rewards.get(a, 0.0))
            if not np.isfinite(paid[a]):
                raise UserError(
                    f"reward of {whose}",
                    expected="a finite number",
                    got=paid[a],
                    remedy="Find the division or the diverging simulation that it comes from.",
                )
            check_end(whose, terminations.get(a, False), truncations.get(a, False))
        return obs, paid, terminations, truncations

    def render(self, index: int) -> np.ndarray:
        """Draws a copy.

        Raises:
          NotImplementedError: Without render_mode='rgb_array'.
        """
        if self._options.get("render_mode") != "rgb_array":
            raise NotImplementedError(f"{self.name} was made without render_mode='rgb_array'")
        return np.asarray(self._envs[index].render(), np.uint8)

    def _new(self) -> Any:
        try:
            return self._make(**self._options)
        except TypeError as error:
            raise UserError(
                f"make_env({self.name!r})",
                expected="the arguments of its parallel_env",
                got=f"{self._options} ({error})",
                remedy="See the environment's documentation.",
            ) from error

    def _action(self, agent: str, i: int, leaves: list[np.ndarray]) -> Any:
        packed = tf.nest.pack_sequence_as(self.action_spec[agent], [x[i] for x in leaves])
        return tf.nest.map_structure(lambda x: x.item() if x.ndim == 0 else x, packed)

    def _see(self, i: int, obs: Mapping[str, Nest]) -> None:
        """Keeps what the agents of a copy see; one that sees nothing keeps what it saw."""
        for a, seen in obs.items():
            stored = tf.nest.flatten(self._obs[a])
            for array, x in zip(stored, tf.nest.flatten(seen), strict=True):
                array[i] = x
                if array.dtype.kind == "f" and not np.isfinite(array[i]).all():
                    raise UserError(
                        f"observation of {self.name}, environment {i}, step {self._steps[i]}, "
                        f"agent {a}",
                        expected="finite numbers",
                        got=str(array[i][~np.isfinite(array[i])][:3].tolist()),
                        remedy="Find the division or the diverging simulation that it comes from.",
                    )

    def _check(self, tokens: np.ndarray) -> None:
        # A row that is over may stay at the state of its end while others go on.
        live = np.array([bool(agents) for agents in self._live])
        behind = np.where(live, tokens != self._tokens, tokens < self._over_at).nonzero()[0]
        if behind.size:
            raise UserError(
                self.name,
                expected="a step from the state that it returned last",
                got=f"an older state, or one of another process, in rows {behind.tolist()}",
                remedy="A host environment cannot be rewound to a snapshot or a checkpoint; go on "
                "from a new reset.",
            )

    def _record(self) -> Nest:
        """The results of no step, to be filled in."""
        no = lambda: np.zeros(self.num_envs, bool)  # noqa: E731
        return {
            "reward": {a: np.zeros(self.num_envs, np.float32) for a in self.agent_ids},
            "ends": {"termination": no(), "truncation": no()},
            "agents": {a: {flag: no() for flag in AGENT_FLAGS} for a in self.agent_ids},
        }

    def _shown(self, record: Nest) -> Nest:
        copied = tf.nest.map_structure(np.copy, (self._tokens, self._obs))
        return {"token": copied[0], "obs": copied[1], **record}
