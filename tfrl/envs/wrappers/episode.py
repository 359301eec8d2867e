"""The episode layer of a bare environment: time limit, episode statistics and autoreset.

They are one wrapper because they share tensor operations: in graph mode the cost of a step is its
number of operations.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.envs.action_masks import MASK, split_mask
from tfrl.envs.core import Autoreset, Wrapper, carrying, where_rows
from tfrl.envs.host import on_host, reset_rows
from tfrl.errors import UserError
from tfrl.types import EnvState, Nest

# The items of `info` that the layer adds.
EPISODE_INFO = ("final_obs", "autoreset", "episode_return", "episode_length")


@struct.dataclass
class EpisodeState(struct.Struct):
    """The state of the layer; fields that the mode does not need are None.

    Attributes:
      inner: The bare environment's `env_state`.
      episode_return: float32 [B] (or a nest as the reward), over the episode so far.
      episode_length: int32 [B], steps of the episode so far.
      key: int32 [2], for the next start states (NEXT_STEP, SAME_STEP).
      ended: bool [B], whether the last row ended the episode (NEXT_STEP).
      start: The first start state (SAME_STEP_CACHED).
      last: The visible part of the last state, to freeze (DISABLED).
    """

    inner: Nest
    episode_return: Nest
    episode_length: tf.Tensor
    key: tf.Tensor | None = None
    ended: tf.Tensor | None = None
    start: EnvState | None = None
    last: EnvState | None = None


@struct.logic_dataclass
class Episode(Wrapper):
    """Adds time limit, episode statistics and autoreset to a bare environment.

    A step at which the episode's length reaches the limit is truncated; if the task terminates at
    the same step, both flags are True, as in Gymnasium's TimeLimit. `reset` and `step` return
    states of one structure whose `info` has, in addition to the task's items:

    * `final_obs`: the true successor, at every row (after `reset`: the observation);
    * `autoreset`: bool [B], autoreset rows and frozen rows;
    * `episode_return`, `episode_length`: over the episode, this row included.

    Under NEXT_STEP the row after an end is the start of the next episode: reward 0, flags False,
    totals 0, `final_obs` equal to `obs`. Under DISABLED the rows after an end keep observation,
    flags and totals, with reward 0.

    Attributes:
      env: A bare environment.
      mode: The behaviour at an episode end: a mode of `Autoreset`, or its name.
      limit: Steps after which an episode is truncated, None for no limit.
      info: Names of scalars in `info` whose values at episode ends are metrics of a run.
    """

    mode: Autoreset | str
    limit: int | None = None
    info: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Checks the environment, the mode and the limit."""
        Autoreset.parse(self.mode)
        if self.env.autoreset is not None:
            raise UserError(
                "autoreset",
                expected="a bare environment",
                got=f"an environment with autoreset {self.env.autoreset.name}",
                remedy="Add the layer only once; tfrl.make_env already adds it.",
            )
        checks.at_least("max_episode_steps", self.limit, 1, optional=True)

    @property
    def info_fields(self) -> tuple[str, ...]:
        """Names in `info` whose values at episode ends are metrics of a run."""
        return self.info

    @property
    def autoreset(self) -> Autoreset:
        """The autoreset mode."""
        return Autoreset.parse(self.mode)

    @property
    def max_episode_steps(self) -> int | None:
        """Steps after which an episode is truncated, or None."""
        return self.limit

    def inner_state(self, state: EnvState) -> EnvState:
        """Returns the bare environment's state."""
        return state.replace(env_state=state.env_state.inner)

    def reset(self, key: tf.Tensor) -> EnvState:
        """Starts an episode in every environment."""
        start_key, next_key = tf.unstack(seeding.split(key, 2))
        fresh = self.env.reset(start_key)
        state = EpisodeState(
            inner=fresh.env_state,
            episode_return=tf.nest.map_structure(tf.zeros_like, fresh.reward),
            episode_length=tf.zeros([self.num_envs], tf.int32),
        )
        if self.autoreset in (Autoreset.NEXT_STEP, Autoreset.SAME_STEP):
            state = state.replace(key=next_key)
        if self.autoreset is Autoreset.NEXT_STEP:
            state = state.replace(ended=_false(self.num_envs))
        if self.autoreset is Autoreset.SAME_STEP_CACHED:
            state = state.replace(start=carrying(fresh.env_state).replace(obs=fresh.obs))
        if self.autoreset is Autoreset.DISABLED:
            state = state.replace(last=_shown(fresh))
        first = _with_info(fresh, state, final_obs=fresh.obs, autoreset=_false(self.num_envs))
        return first.replace(env_state=state)

    def step(self, state: EnvState, action: Nest) -> EnvState:
        """Takes one step in every environment, with the mode's behaviour at an end."""
        return _STEPS[self.autoreset](self, state.env_state, action)

    def _take(self, state: EpisodeState, action: Nest) -> tuple[EnvState, EpisodeState]:
        """Steps the task; returns its state with the time limit applied, and the totals."""
        new = self.env.step(carrying(state.inner), action)
        length = state.episode_length + 1
        if self.limit is not None:
            new = new.replace(truncation=tf.logical_or(new.truncation, length >= self.limit))
        totals = EpisodeState(
            inner=new.env_state,
            episode_return=tf.nest.map_structure(tf.add, state.episode_return, new.reward),
            episode_length=length,
        )
        return new, totals


def _next_key(key: tf.Tensor) -> tf.Tensor:
    # Philox scrambles a seed, so adjacent seeds give independent streams, and one addition
    # suffices. The first key is random (`reset` splits), so the sequences of two runs do not
    # overlap.
    return key + tf.constant([1, 0], tf.int32)


def _false(num_envs: int) -> tf.Tensor:
    return tf.zeros([num_envs], tf.bool)


def _ended(state: EnvState) -> tf.Tensor:
    return tf.logical_or(state.termination, state.truncation)


def _zero_where(mask: tf.Tensor, nest: Nest) -> Nest:
    # Full zeros, since broadcasting a scalar takes longer than the select.
    return where_rows(mask, tf.nest.map_structure(tf.zeros_like, nest), nest)


def _with_info(
    state: EnvState, totals: EpisodeState, *, final_obs: Nest, autoreset: tf.Tensor
) -> EnvState:
    info = {
        **state.info,
        "final_obs": final_obs,
        "autoreset": autoreset,
        "episode_return": totals.episode_return,
        "episode_length": totals.episode_length,
    }
    return state.replace(info=info)


def _restart(
    env: Episode, new: EnvState, totals: EpisodeState, fresh: EnvState, **kept: Nest
) -> EnvState:
    """Puts `fresh` into the rows that ended, except the results of their step."""
    ended = _ended(new)
    inner, obs = where_rows(ended, (fresh.env_state, fresh.obs), (new.env_state, new.obs))
    state = _with_info(new, totals, final_obs=new.obs, autoreset=_false(env.num_envs))
    mask = split_mask(obs)[1]
    if MASK in state.info and mask is not None:  # the mask belongs to `obs`
        state = state.replace(info={**state.info, MASK: mask})
    carried = EpisodeState(
        inner=inner,
        episode_return=_zero_where(ended, totals.episode_return),
        episode_length=_zero_where(ended, totals.episode_length),
        **kept,
    )
    return state.replace(env_state=carried, obs=obs)


def _same_step(env: Episode, state: EpisodeState, action: Nest) -> EnvState:
    new, totals = env._take(state, action)
    key: Any = state.key
    fresh = reset_rows(env.env, key, _ended(new))
    return _restart(env, new, totals, fresh, key=_next_key(key))


def _same_step_cached(env: Episode, state: EpisodeState, action: Nest) -> EnvState:
    new, totals = env._take(state, action)
    start: Any = state.start
    return _restart(env, new, totals, start, start=start)


def _next_step(env: Episode, state: EpisodeState, action: Nest) -> EnvState:
    new, totals = env._take(state, action)
    # `first` are rows with ignored actions: they start an episode.
    key: Any
    first: Any
    key, first = state.key, state.ended
    new = where_rows(first, reset_rows(env.env, key, first), new)
    # The length of a first row is 0, below every limit; its flags are those of the reset.
    totals = totals.replace(
        inner=new.env_state,
        episode_return=_zero_where(first, totals.episode_return),
        episode_length=_zero_where(first, totals.episode_length),
        key=_next_key(key),
        ended=_ended(new),
    )
    return _with_info(new, totals, final_obs=new.obs, autoreset=first).replace(env_state=totals)


def _disabled(env: Episode, state: EpisodeState, action: Nest) -> EnvState:
    new, totals = env._take(state, action)
    last: Any = state.last
    frozen = _ended(last)
    # Host environments continue, unused, since their state cannot be frozen.
    inner = new.env_state if on_host(env.env) else state.inner
    before = (inner, state.episode_return, state.episode_length, last)
    after = (new.env_state, totals.episode_return, totals.episode_length, _shown(new))
    inner, episode_return, episode_length, shown = where_rows(frozen, before, after)
    carried = EpisodeState(
        inner=inner, episode_return=episode_return, episode_length=episode_length, last=shown
    )
    new = shown.replace(env_state=carried, reward=_zero_where(frozen, new.reward))
    return _with_info(new, carried, final_obs=new.obs, autoreset=frozen)


def _shown(state: EnvState) -> EnvState:
    """The repeated part of a frozen row: everything except the task's state and the reward."""
    return state.replace(env_state=None, reward=None)


_STEPS: dict[Autoreset, Callable[[Episode, EpisodeState, Nest], EnvState]] = {
    Autoreset.NEXT_STEP: _next_step,
    Autoreset.SAME_STEP: _same_step,
    Autoreset.SAME_STEP_CACHED: _same_step_cached,
    Autoreset.DISABLED: _disabled,
}
