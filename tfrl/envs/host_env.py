"""`HostEnv`: environments of Python and C++ on the host, in the shape of device environments."""

import copy as copy_lib
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl.envs.action_masks import MASK, first_valid
from tfrl.envs.backend import Backend, Step, check_action, check_finite, is_finite
from tfrl.envs.core import Autoreset, Env, Wrapper
from tfrl.envs.env_calls import RunningCall
from tfrl.envs.host_rewards import HostReward, host_reward
from tfrl.errors import UserError
from tfrl.types import EnvState, Nest

Wrapping = Callable[[Any], Any]

_ONE = np.int32(1)  # NumPy takes longer for Python's
_FOLLOWS = {
    Autoreset.NEXT_STEP: (Autoreset.NEXT_STEP,),
    Autoreset.SAME_STEP: (Autoreset.SAME_STEP,),
    Autoreset.DISABLED: (Autoreset.NEXT_STEP, Autoreset.SAME_STEP),
}


class HostEnv(Env):
    """A batch of environments on the host that answers in NumPy, as device environments answer.

    `reset` and `step` return `EnvState`s with the same fields and the same `info` as those of
    `tfrl.make_env`: the true successor at every step, both end flags, rows that exist only because
    of an autoreset, returns and lengths. So `rollout`, `Evaluator`, `EpisodeCollector` and
    `OnPolicyWorkflow` take it like any other. What the host does not allow:

    * It is stepped in Python; nothing that steps it can be compiled.
    * It has one state, the newest: a step from an older one is an error. A checkpoint does not hold
      it; a resumed run begins new episodes.

    Use it in a `with` statement, or call `close`.
    """

    on_host = True

    @property
    def halves(self) -> "tuple[HostEnv, ...]":
        """The batches that are stepped in turn; here one, see `tfrl.envs.host_halves`."""
        return (self,)

    def states_of(self, state: EnvState) -> list[EnvState]:
        """Parts a state into those of `halves`."""
        return [state]

    def __init__(
        self, backend: Backend, autoreset: Autoreset | str, rewards: Sequence[HostReward] = ()
    ):
        """Puts episode statistics and the autoreset contract on a backend.

        Args:
          backend: The environments.
          autoreset: NEXT_STEP, SAME_STEP or DISABLED; the first two only where the backend has
            that very mode.
          rewards: What maps the rewards, above the statistics of episodes; see `wrapped`.

        Raises:
          UserError: For a mode that the backend cannot do.
        """
        self.backend = backend
        self._mode = Autoreset.parse(autoreset)
        if backend.autoreset not in _FOLLOWS.get(self._mode, ()):
            own = [m.name for m, need in _FOLLOWS.items() if backend.autoreset in need]
            raise UserError(
                f"autoreset of {backend.name}",
                expected=" or ".join(own),
                got=self._mode.name,
                remedy="The state of a host environment cannot be restored."
                if self._mode is Autoreset.SAME_STEP_CACHED
                else f"Give autoreset={own[0]!r}.",
            )
        size = backend.num_envs
        self._returns = np.zeros(size, np.float32)
        self._lengths = np.zeros(size, np.int32)
        self._ended = np.zeros(size, bool)  # in the last step
        self._frozen: EnvState | None = None  # what the rows that are over show, under DISABLED
        self._below: Nest = None  # what they would show
        self._token = 0
        self._running = RunningCall(backend.name)
        self._rewards = tuple(rewards)
        # Compiled policies that act in it, made by `tfrl.rollout`.
        self.policies: dict[Any, Any] = {}
        self._finalizer = weakref.finalize(self, backend.close)

    # What it is.

    def logic(self) -> Any:
        """Returns what functions that are compiled for these environments may depend on."""
        return [half.form() for half in self.halves]

    def form(self) -> Any:
        """Returns what all environments of the same task, made alike, have in common."""
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
        """How many environments there are."""
        return self.backend.num_envs

    @property
    def max_episode_steps(self) -> int | None:
        """Steps after which an episode is truncated, or None."""
        return self.backend.max_episode_steps

    @property
    def info_fields(self) -> tuple[str, ...]:
        """Names in `info` whose values at the ends of episodes are metrics of a run."""
        return self.backend.info_fields

    @property
    def autoreset(self) -> Autoreset:
        """The autoreset mode."""
        return self._mode

    @property
    def render_fps(self) -> float:
        """Frames per second of its pictures."""
        return self.backend.render_fps

    def with_num_envs(self, num_envs: int) -> "HostEnv":
        """Returns this, or other environments of the same task if the number differs."""
        return self if num_envs == self.num_envs else self.copy(num_envs)

    def copy(
        self,
        num_envs: int | None = None,
        render: bool = False,
        autoreset: Autoreset | str | None = None,
    ) -> "HostEnv":
        """Returns other environments of the same task.

        Args:
          num_envs: How many; as many as here if None.
          render: Whether they can be drawn.
          autoreset: Their mode; that of these if None and such can be had.
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
        """Returns other environments of the same task, in which one may fail, see `Backend`."""
        with self._running:
            backend = self.backend.tolerant()
        return HostEnv(backend, self._mode, copy_lib.deepcopy(self._rewards))

    def wrapped(self, wrappers: Iterable[Wrapping]) -> "HostEnv":
        """Returns these environments with reward wrappers of device environments around them.

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
                    expected="functions that wrap the environment that they are given",
                    got=f"one that returns {outer!r}",
                    remedy="Return RewardScale(env=env, scale=...), for example.",
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
          key: An int seed, or int32 [2] as for device environments. Environment i begins with a
            seed of its own that follows from it, whatever the number of environments.
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
        """Starts a step, which `receive` ends; meanwhile the caller may do something else."""
        token = state.env_state["token"]
        if int(token) != self._token:
            self._check_open()
            raise UserError(
                self.backend.name,
                expected="a step from the state that it returned last",
                got="an older state, or one of another process",
                remedy="A host environment cannot be rewound to a snapshot or a checkpoint; go on "
                "from a new reset.",
            )
        with self._running:
            self.backend.send(self._allowed(action))

    def _allowed(self, action: Nest) -> Nest:
        """Actions for rows that go on unseen after their end, which the agent knows nothing of."""
        below, frozen = self._below, self._frozen
        if frozen is None or not isinstance(below, Mapping) or MASK not in below:
            return action
        over = frozen.termination | frozen.truncation
        return first_valid(self.action_spec, below[MASK], action, over) if over.any() else action

    def receive(self) -> EnvState:
        """Returns the state after the step that `send` began."""
        with self._running:
            step = self.backend.receive()
        reward = np.asarray(step.reward, np.float32)
        fresh = self._ended  # rows that ended at the last step
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
        """Refuses numbers that are not finite, but where nobody sees them."""
        if is_finite(step):
            return
        unseen = self._ended & (self._mode is Autoreset.DISABLED)
        # The reward of a row that was reset in this step is no reward.
        unpaid = unseen
        if self.backend.autoreset is Autoreset.NEXT_STEP:
            unpaid = self._ended
        begins = self._ended & (self._mode is not Autoreset.DISABLED)
        lengths = np.where(begins, 0, self._lengths)
        check_finite(self.backend.name, step, unpaid, unseen, lengths + 1)

    def _state(self, step: Step, first: np.ndarray, reward: np.ndarray | None = None) -> EnvState:
        """Makes the state of an answer; `first` are rows that exist because of an autoreset."""
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
        """Freezes rows after their end; below, unseen, they go on."""
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
        """Returns these environments, or copies that pay the rewards of the task."""
        if not self._rewards:
            return self
        copy = self.copy()
        copy._rewards = ()
        return copy

    # What outlives episodes.

    def kept_state(self) -> dict[str, dict[str, np.ndarray]]:
        """Returns what a checkpoint has to hold of the environments: statistics of rewards."""
        states = {str(i): paid.state() for i, paid in enumerate(self._rewards)}
        return {name: state for name, state in states.items() if state}

    def load_kept_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `kept_state` returned; after `reset`, which forgets it."""
        for name, own in state.items():
            self._rewards[int(name)].load(own)

    # The rest.

    def render(self, state: EnvState | None = None, index: int = 0) -> np.ndarray:
        """Draws environment `index` as it is now; made by `copy(render=True)` only."""
        with self._running:
            return self.backend.render(index)

    def _check_open(self) -> None:
        if not self._finalizer.alive:
            raise UserError(
                self.backend.name,
                expected="environments that are open",
                got="a reset or a step after close()",
                remedy="Make others with make_env, or env.copy().",
            )

    def close(self) -> None:
        """Frees the environments; a second call does nothing."""
        self.policies.clear()
        self._token += 1  # no state is the newest any more
        self._finalizer()

    def __enter__(self) -> "HostEnv":
        """Returns itself."""
        return self

    def __exit__(self, *_: Any) -> None:
        """Closes it."""
        self.close()


def row_seeds(key: Any, num_envs: int) -> np.ndarray:
    """Returns a seed for each environment, distinct, int64 `[B]` in [0, 2^31).

    Seed i depends on the key and on i only.

    Args:
      key: An int seed, or a key int32 [2].
      num_envs: How many (B).
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
    """Takes rows `[B]` of the nest `a` and the others of `b`."""

    def select(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.where(rows.reshape(rows.shape + (1,) * (np.ndim(x) - 1)), x, y)

    return tf.nest.map_structure(select, a, b)
