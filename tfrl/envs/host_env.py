"""`HostEnv`: Python and C++ environments on the host, with the interface of device environments."""

import copy as copy_lib
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl.envs.action_masks import MASK, first_valid
from tfrl.envs.backend import Backend, Step, check_action, check_finite, is_finite
from tfrl.envs.core import Autoreset, Env, Wrapper
from tfrl.envs.env_calls import LOST, RunningCall
from tfrl.envs.host_rewards import HostReward, host_reward
from tfrl.errors import UserError
from tfrl.types import EnvState, Nest

Wrapping = Callable[[Any], Any]

_ONE = np.int32(1)  # faster in NumPy than a Python int
_FOLLOWS = {
    Autoreset.NEXT_STEP: (Autoreset.NEXT_STEP,),
    Autoreset.SAME_STEP: (Autoreset.SAME_STEP,),
    Autoreset.DISABLED: (Autoreset.NEXT_STEP, Autoreset.SAME_STEP),
}


def tolerant(env: Env) -> Env:
    """Returns host environments of the same task with tolerated failures; others unchanged."""
    return env.tolerant() if isinstance(env, HostEnv) else env


class HostEnv(Env):
    """A batch of host environments with the interface of device environments, in NumPy.

    `reset` and `step` return `EnvState`s with the fields and `info` of `tfrl.make_env`: the true
    successor at every step, both end flags, autoreset rows, returns and lengths. So `rollout`,
    `Evaluator`, `EpisodeCollector` and `OnPolicyWorkflow` accept it. There are two limits:

    * Python steps it; code that steps it cannot be compiled.
    * It has only the newest state: a step from an older one is an error. Checkpoints do not contain
      it; a resumed run begins new episodes.

    Use it in a `with` statement, or call `close`.
    """

    on_host = True

    @property
    def halves(self) -> "tuple[HostEnv, ...]":
        """The batches that step in turn; here one, see `tfrl.envs.host_halves`."""
        return (self,)

    def states_of(self, state: EnvState) -> list[EnvState]:
        """Splits a state into the states of `halves`."""
        return [state]

    def __init__(
        self, backend: Backend, autoreset: Autoreset | str, rewards: Sequence[HostReward] = ()
    ):
        """Adds episode statistics and autoreset to a backend.

        Args:
          backend: The environments.
          autoreset: NEXT_STEP, SAME_STEP or DISABLED; the first two only if the backend has this
            mode.
          rewards: Maps of the rewards, above the episode statistics; see `wrapped`.

        Raises:
          UserError: For a mode that the backend does not support.
        """
        self.backend = backend
        self._mode = Autoreset.parse(autoreset)
        if backend.autoreset not in _FOLLOWS.get(self._mode, ()):
            own = [m.name for m, need in _FOLLOWS.items() if backend.autoreset in need]
            raise UserError(
                f"autoreset of {backend.name}",
                expected=" or ".join(own),
                got=self._mode.name,
                remedy="Choose a different mode: a host environment cannot restore its state."
                if self._mode is Autoreset.SAME_STEP_CACHED
                else f"Pass autoreset={own[0]!r}.",
            )
        size = backend.num_envs
        self._returns = np.zeros(size, np.float32)
        self._lengths = np.zeros(size, np.int32)
        self._ended = np.zeros(size, bool)  # in the last step
        self._frozen: EnvState | None = None  # the frozen part of ended rows, under DISABLED
        self._below: Nest = None  # the unfrozen observations
        self._token = 0
        self._running = RunningCall(backend.name)
        self._rewards = tuple(rewards)
        # Cached policies of `tfrl.rollout`.
        self.policies: dict[Any, Any] = {}
        self._finalizer = weakref.finalize(self, backend.close)

    # Properties.

    def logic(self) -> Any:
        """Returns the key of compiled functions for these environments."""
        return [half.form() for half in self.halves]

    def form(self) -> Any:
        """Returns a key that is equal for environments of the same task and arguments."""
        backend = self.backend
        names = ("name", "num_envs", "obs_spec", "action_spec", "autoreset", "max_episode_steps")
        own = [getattr(backend, name) for name in (*names, "info_spec", "clips_actions")]
        return type(backend), own, self._mode, [type(reward) for reward in self._rewards]

    @property
    def obs_spec(self) -> Nest:
        """The nest of specs of one observation."""
        return self.backend.obs_spec

    @property
    def action_spec(self) -> Nest:
        """The nest of specs of one action."""
        return self.backend.action_spec

    @property
    def num_envs(self) -> int:
        """The number of environments."""
        return self.backend.num_envs

    @property
    def max_episode_steps(self) -> int | None:
        """Steps after which an episode is truncated, or None."""
        return self.backend.max_episode_steps

    @property
    def info_fields(self) -> tuple[str, ...]:
        """Names in `info` whose values at episode ends are metrics of a run."""
        return self.backend.info_fields

    @property
    def rewards(self) -> tuple[HostReward, ...]:
        """The maps of the rewards, from the innermost on."""
        return self._rewards

    @property
    def reports_lost(self) -> bool:
        """Whether `LOST` in `info` marks episodes that an environment's failure has ended."""
        return LOST in self.backend.info_spec

    @property
    def autoreset(self) -> Autoreset:
        """The autoreset mode."""
        return self._mode

    @property
    def render_fps(self) -> float:
        """Frames per second for rendering."""
        return self.backend.render_fps

    def with_num_envs(self, num_envs: int) -> "HostEnv":
        """Returns itself, or new environments of the same task if the number differs."""
        return self if num_envs == self.num_envs else self.copy(num_envs)

    def copy(
        self,
        num_envs: int | None = None,
        render: bool = False,
        autoreset: Autoreset | str | None = None,
    ) -> "HostEnv":
        """Returns other environments of the same task.

        Args:
          num_envs: Their number; unchanged if None.
          render: Whether they can render.
          autoreset: Their mode; if None, the same if possible.
        """
        asked = None if autoreset is None else Autoreset.parse(autoreset)
        own = None if asked is Autoreset.DISABLED else asked
        with self._running:
            backend = self.backend.copy(num_envs or self.num_envs, render, own)
        if autoreset is None:
            fits = backend.autoreset in _FOLLOWS[self._mode]
            autoreset = self._mode if fits else backend.autoreset
        return HostEnv(backend, autoreset, copy_lib.deepcopy(self._rewards))

    def tolerant(self) -> "HostEnv":
        """Returns new environments of the same task with tolerated failures, see `Backend`."""
        with self._running:
            backend = self.backend.tolerant()
        return HostEnv(backend, self._mode, copy_lib.deepcopy(self._rewards))

    def wrapped(self, wrappers: Iterable[Wrapping]) -> "HostEnv":
        """Returns these environments with reward wrappers of device environments.

        Args:
          wrappers: Functions `Env -> Env` that wrap in `RewardScale`, `RewardClip` or
            `RewardNormalize`, from the innermost on.

        Raises:
          UserError: For another wrapper.
        """
        rewards = list(self._rewards)
        for wrap in wrappers:
            outer = wrap(self)
            if not isinstance(outer, Wrapper) or outer.env is not self:
                raise UserError(
                    "outer_wrappers",
                    expected="functions that wrap their argument, an environment",
                    got=f"a function that returns {outer!r}",
                    remedy="Return a wrapper such as RewardScale(env=env, scale=...).",
                )
            rewards.append(host_reward(outer))
        self._rewards = tuple(rewards)
        return self

    def __repr__(self) -> str:
        """Its id and size."""
        return f"HostEnv({self.backend.name}, num_envs={self.num_envs}, {self._mode.name})"

    # Episodes.

    def reset(self, key: Any) -> EnvState:
        """Starts an episode in every environment.

        Args:
          key: An int seed, or int32 [2] as for device environments. Environment i gets a seed
            derived from it and i, independent of the number of environments.
        """
        return self.begin(row_seeds(key, self.num_envs))

    def begin(self, seeds: np.ndarray) -> EnvState:
        """Starts an episode in every environment with its seed, int64 `[B]`."""
        self._check_open()
        with self._running:
            step = self.backend.reset(seeds)
        self._returns[:], self._lengths[:], self._ended[:] = 0, 0, False
        self._frozen = None
        for paid in self._rewards:
            paid.reset(self.num_envs)
        if not is_finite(step):
            check_finite(self.backend.name, step, self._ended, self._ended, self._lengths)
        return self._state(step, np.zeros(self.num_envs, bool))

    def step(self, state: EnvState, action: Nest) -> EnvState:
        """Takes one step in every environment.

        Raises:
          UserError: For an action out of its spec, a state that is not the newest, or after
            `close`.
        """
        check_action(self.backend.name, self.action_spec, action, self.num_envs)
        self.send(state, action)
        return self.receive()

    def send(self, state: EnvState, action: Nest) -> None:
        """Starts a step, which `receive` ends; the caller can do other work in between."""
        token = state.env_state["token"]
        if int(token) != self._token:
            self._check_open()
            raise UserError(
                self.backend.name,
                expected="a step from the latest state",
                got="an older state, or one from another process",
                remedy="Continue from a new reset: a host environment cannot be rewound to a "
                "snapshot or checkpoint.",
            )
        with self._running:
            self.backend.send(self._allowed(action))

    def _allowed(self, action: Nest) -> Nest:
        """Valid actions for ended rows that continue unused."""
        below, frozen = self._below, self._frozen
        if frozen is None or not isinstance(below, Mapping) or MASK not in below:
            return action
        over = frozen.termination | frozen.truncation
        return first_valid(self.action_spec, below[MASK], action, over) if over.any() else action

    def receive(self) -> EnvState:
        """Returns the state after the step started by `send`."""
        with self._running:
            step = self.backend.receive()
        reward = np.asarray(step.reward, np.float32)
        fresh = self._ended  # rows that ended in the last step
        self._check_values(step)
        if self._mode is Autoreset.DISABLED:
            return self._disabled(step, reward)
        some = np.count_nonzero(fresh)  # faster than `any`
        if some and self.backend.autoreset is Autoreset.NEXT_STEP:
            reward = reward.copy()
            reward[fresh] = 0.0
            self._returns += reward
            self._lengths += _ONE
            self._returns[fresh], self._lengths[fresh] = 0.0, 0
            return self._state(step, fresh, reward)
        if some and self.backend.autoreset is Autoreset.SAME_STEP:
            self._returns[fresh], self._lengths[fresh] = 0.0, 0
        self._returns += reward
        self._lengths += _ONE
        return self._state(step, np.zeros(self.num_envs, bool), reward)

    def _check_values(self, step: Step) -> None:
        """Rejects non-finite numbers, except in unused rows."""
        if is_finite(step):
            return
        unseen = self._ended & (self._mode is Autoreset.DISABLED)
        # The reward of a row reset in this step is ignored.
        unpaid = unseen
        if self.backend.autoreset is Autoreset.NEXT_STEP:
            unpaid = self._ended
        begins = self._ended & (self._mode is not Autoreset.DISABLED)
        lengths = np.where(begins, 0, self._lengths)
        check_finite(self.backend.name, step, unpaid, unseen, lengths + 1)

    def _state(self, step: Step, first: np.ndarray, reward: np.ndarray | None = None) -> EnvState:
        """Makes the state from a backend step; `first` marks autoreset rows."""
        self._token += 1
        termination, truncation = step.termination, step.truncation
        self._ended = termination | truncation
        if reward is None:
            reward = np.zeros(self.num_envs, np.float32)
        else:
            for paid in self._rewards:
                reward = paid.pay(reward, ~first, self._ended)
        info = {name: x for paid in self._rewards for name, x in paid.info().items()}
        return EnvState(
            env_state={"token": np.int64(self._token)},
            obs=step.obs,
            reward=reward,
            termination=termination,
            truncation=truncation,
            info={
                **step.info,
                "final_obs": step.obs if step.final_obs is None else step.final_obs,
                "autoreset": first,
                "episode_return": self._returns.copy(),
                "episode_length": self._lengths.copy(),
                **info,
            },
        )

    def _disabled(self, step: Step, reward: np.ndarray) -> EnvState:
        """Freezes rows after their end; the backend's rows continue unused."""
        before, self._below = self._frozen, step.obs
        over = np.zeros(self.num_envs, bool)
        if before is not None:
            over = before.termination | before.truncation
        self._returns = np.where(over, self._returns, self._returns + reward).astype(np.float32)
        self._lengths = np.where(over, self._lengths, self._lengths + 1).astype(np.int32)
        obs_now = step.obs if step.final_obs is None else step.final_obs
        shown = Step(obs_now, reward, step.termination, step.truncation, None, step.info)
        reward = np.where(over, 0.0, reward).astype(np.float32)
        state = self._state(shown, over, reward)
        if before is not None and over.any():
            info = {n: state.info[n] for n in (*step.info, "final_obs")}
            kept = {n: before.info[n] for n in info}
            now = (state.obs, state.termination, state.truncation, info)
            then = (before.obs, before.termination, before.truncation, kept)
            obs, termination, truncation, info = where(over, then, now)
            state = state.replace(
                obs=obs,
                termination=termination,
                truncation=truncation,
                info={**state.info, **info},
            )
        self._frozen = state
        return state

    def with_task_rewards(self) -> "HostEnv":
        """Returns these environments, or copies with the task's rewards."""
        if not self._rewards:
            return self
        copy = self.copy()
        copy._rewards = ()
        return copy

    # State across episodes.

    def kept_state(self) -> dict[str, dict[str, np.ndarray]]:
        """Returns the environments' state for a checkpoint: reward statistics."""
        states = {str(i): paid.state() for i, paid in enumerate(self._rewards)}
        return {name: state for name, state in states.items() if state}

    def load_kept_state(self, state: Mapping[str, Any]) -> None:
        """Restores the result of `kept_state`; call it after `reset`, which clears it."""
        for name, own in state.items():
            self._rewards[int(name)].load(own)

    # Other methods.

    def render(self, state: EnvState | None = None, index: int = 0) -> np.ndarray:
        """Renders environment `index` now; requires `copy(render=True)`."""
        with self._running:
            return self.backend.render(index)

    def _check_open(self) -> None:
        if not self._finalizer.alive:
            raise UserError(
                self.backend.name,
                expected="open environments",
                got="a reset or a step after close()",
                remedy="Create new environments with make_env or env.copy().",
            )

    def close(self) -> None:
        """Closes the environments; a second call does nothing."""
        self.policies.clear()
        self._token += 1  # all states are outdated now
        self._finalizer()

    def __enter__(self) -> "HostEnv":
        """Returns itself."""
        return self

    def __exit__(self, *_: Any) -> None:
        """Closes it."""
        self.close()


def task_name(env: Env) -> str:
    """Returns the name of an environment's task: the id on the host, else the class."""
    return env.backend.name if isinstance(env, HostEnv) else type(env.unwrapped).__name__


def row_seeds(key: Any, num_envs: int) -> np.ndarray:
    """Returns a seed for each environment, distinct, int64 `[B]` in [0, 2^31).

    Seed i depends only on the key and i.

    Args:
      key: An int seed, or a key int32 [2].
      num_envs: B.
    """
    entropy = [int(x) & 0xFFFFFFFF for x in np.ravel(np.asarray(key))]
    seeds: list[int] = []
    taken: set[int] = set()
    for i in range(num_envs):
        words = np.random.SeedSequence(entropy, spawn_key=(i,)).generate_state(8)
        seed = next(s for s in (int(w) >> 1 for w in words) if s not in taken)
        taken.add(seed)
        seeds.append(seed)
    return np.array(seeds, np.int64)


def where(rows: np.ndarray, a: Nest, b: Nest) -> Nest:
    """Takes rows where `rows` [B] is True from `a`, others from `b`."""

    def select(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.where(rows.reshape(rows.shape + (1,) * (np.ndim(x) - 1)), x, y)

    return tf.nest.map_structure(select, a, b)
