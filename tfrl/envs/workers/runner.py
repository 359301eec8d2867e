"""Runs and checks the episodes of one environment, in any process or thread."""

import math
import traceback
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from tfrl import checks
from tfrl.envs.gymnasium_values import (
    RESET,
    STEP,
    check_end,
    check_layout,
    number,
    observation_fits,
)
from tfrl.envs.workers.protocol import Failure, Phase, RunnerSettings, WorkerState, raised
from tfrl.errors import UserError


def episode_seed(seed: int, worker_id: int, episode: int) -> int:
    """Returns the seed of a worker's episode.

    The first 31 bits of `numpy.random.SeedSequence(seed, spawn_key=(worker_id, episode))`: 31 bits,
    as simulators in C and C++ commonly take an int.

    Args:
      seed: The pool's seed, non-negative.
      worker_id: The worker, from 0.
      episode: The number of the worker's episode, from 0.

    Returns:
      An int in [0, 2**31).
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(worker_id, episode))
    return int(sequence.generate_state(1)[0]) >> 1


def check_seed(seed: Any) -> int:
    """Returns a pool's seed as an int, or raises a UserError."""
    return checks.at_least("seed of the environment workers", seed, 0)


def check_reset(returned: Any) -> tuple[Any, dict[str, Any]]:
    """Returns (obs, info) of a reset; raises a UserError for other values."""
    check_layout("reset() of the environment", returned, RESET)
    return returned


def check_step(returned: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    """Returns a step's results with plain reward and flags, or raises a UserError."""
    check_layout("step() of the environment", returned, STEP)
    obs, reward, terminated, truncated, info = returned
    check_end("the environment", terminated, truncated)
    reward = number("reward of the environment", reward)
    if not math.isfinite(reward):
        raise UserError("reward of the environment", expected="a finite number", got=str(reward))
    return obs, reward, bool(terminated), bool(truncated), info


EnvFactory = Callable[[], gymnasium.Env]


class EnvironmentFailed(Exception):
    """Carries the record of a failure."""

    def __init__(self, failure: Failure):
        super().__init__(failure)
        self.failure = failure


class Reporting:
    """Turns an environment's exceptions, SystemExit too, into `EnvironmentFailed`.

    A KeyboardInterrupt passes unchanged.
    """

    def __init__(self, phase: Phase, worker_id: int, place: tuple[int, int, int] = (0, -1, 0)):
        """Takes the phase and place for the record of a failure."""
        self._where = (phase, worker_id, place)

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception | SystemExit):
            text = "".join(traceback.format_exception(error))
            raise EnvironmentFailed(raised(error, text, *self._where)) from error


class EpisodeRunner:
    """Creates an environment and runs its episodes one after another.

    Every failure raises `EnvironmentFailed`; then only `close` may be called.
    """

    def __init__(self, env_factory: EnvFactory, settings: RunnerSettings):
        """Calls the factory.

        Args:
          env_factory: Returns a gymnasium.Env.
          settings: The worker's.
        """
        self._settings = settings
        # Generation, episode and step of the current episode.
        self._place = (0, -1, 0)
        with Reporting(Phase.FACTORY, settings.worker_id):
            self.env = checked_env(env_factory(), "env_factory()")
            self._check_obs = observation_fits(self.env.observation_space, "obs", True)

    def reset(self, generation: int, episode: int) -> WorkerState:
        """Starts an episode; returns its first state."""
        settings = self._settings
        self._place = (generation, episode, 0)
        seed = episode_seed(settings.seed, settings.worker_id, episode)
        with Reporting(Phase.RESET, settings.worker_id, self._place):
            obs, info = check_reset(self.env.reset(seed=seed))
            obs = self._check_obs(obs)
        return WorkerState(
            settings.worker_id, *self._place, obs, 0.0, terminated=False, truncated=False, info=info
        )

    def step(self, action: Any) -> WorkerState:
        """Takes an action in the current episode; returns the next state."""
        generation, episode, step = self._place
        self._place = (generation, episode, step + 1)
        worker_id, limit = self._settings.worker_id, self._settings.max_episode_steps
        with Reporting(Phase.STEP, worker_id, self._place):
            obs, reward, terminated, truncated, info = check_step(self.env.step(action))
            obs = self._check_obs(obs)
        if limit is not None and step + 1 >= limit and not terminated:
            truncated = True
        return WorkerState(worker_id, *self._place, obs, reward, terminated, truncated, info)

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()


def checked_env(env: Any, thing: str) -> gymnasium.Env:
    """Returns a factory's environment; raises a UserError if it is no `gymnasium.Env`."""
    if isinstance(env, gymnasium.Env):
        return env
    vector = isinstance(env, gymnasium.vector.VectorEnv)
    raise UserError(
        thing,
        expected="a gymnasium.Env",
        got=f"{'the vector environment ' * vector}{type(env).__name__}",
        remedy="Return a single environment: the pool runs one per worker."
        if vector
        else "Derive it from gymnasium.Env (reset(seed=, options=), step with 5 values).",
    )


def check_factory(env_factory: Any) -> EnvFactory:
    """Returns the factory; raises a UserError for an environment, a name or a class."""
    if callable(env_factory) and not isinstance(env_factory, gymnasium.Env):
        return env_factory
    if isinstance(env_factory, str):
        remedy = f"Pass functools.partial(gymnasium.make, {env_factory!r})."
    else:
        remedy = "Pass a function that creates the environment, since each worker calls it."
    raise UserError(
        "env_factory",
        expected="a function without arguments that returns a gymnasium.Env",
        got=f"{env_factory!r} of type {type(env_factory).__name__}",
        remedy=remedy,
    )


def check_max_episode_steps(limit: Any) -> int | None:
    """Returns the limit; raises a UserError unless it is None or a positive integer."""
    name = "max_episode_steps of the environment workers"
    return checks.at_least(name, limit, 1, optional=True)
