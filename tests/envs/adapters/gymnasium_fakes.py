"""Gymnasium environments whose episodes are known, and a loop over single ones as an oracle."""

import copy
import os
import sys
import time

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

HERE = __name__
# Termination, truncation, both at once; lengths down to 1.
ENDS = ("T3", "U2", "B1", "T1", "U4", "B2", "U1")


class Scripted(gymnasium.Env):
    """Episode k ends after a known number of steps, by T(ermination), U (truncation) or B(oth).

    An observation is [a random number of the episode, the episode, its age], in an array that is
    written again and again; the reward is the age + 10 times the action.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}

    def __init__(self, ends=ENDS, render_mode=None):
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.render_mode = render_mode
        self._ends = ends
        self._see = np.zeros(3, np.float32)
        self._episode = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._episode = seed % 5 if seed is not None else self._episode + 1
        self._age = 0
        self._see[:] = [self.np_random.random(), self._episode, 0]
        return self._see, {"age": 0, "start": self._see[0]}

    def step(self, action):
        self._age += 1
        self._see[2] = self._age
        end = self._ends[self._episode % len(self._ends)]
        over = self._age == int(end[1:])
        info = {"age": self._age + 0.5, "text": "no number"}
        reward = self._age + 10.0 * action
        return self._see, reward, over and end[0] in "TB", over and end[0] in "UB", info

    def render(self):
        return np.full((4, 6, 3), self._age, np.uint8)

    def loaded(self, module):
        """Whether the process that runs the environment has loaded a module."""
        return module in sys.modules


class ScriptedVector(VectorEnv):
    """Steps Scripted environments itself; environment i has the seed + i."""

    def __init__(self, num_envs=1, max_episode_steps=None, mode="NEXT_STEP"):
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode[mode] if mode else None}
        if mode is None:
            self.metadata = {}
        self._mode = mode
        self._envs = [Scripted() for _ in range(num_envs)]
        self.single_observation_space = self._envs[0].observation_space
        self.single_action_space = self._envs[0].action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._obs = np.zeros((num_envs, 3), np.float32)  # given out again and again
        self._over = np.zeros(num_envs, bool)

    def reset(self, *, seed=None, options=None):
        rows = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        for i in np.flatnonzero(rows):
            self._obs[i], _ = self._envs[i].reset(seed=None if seed is None else seed + int(i))
        self._over = np.where(rows, False, self._over)
        return self._obs, {}

    def step(self, actions):
        reward, flags = np.zeros(self.num_envs), np.zeros((2, self.num_envs), bool)
        final = np.zeros_like(self._obs)
        for i, env in enumerate(self._envs):
            if self._mode == "NEXT_STEP" and self._over[i]:
                self._obs[i], _ = env.reset()
                continue
            assert self._mode != "DISABLED" or not self._over[i]
            self._obs[i], reward[i], flags[0, i], flags[1, i], _ = env.step(actions[i])
            if self._mode == "SAME_STEP" and flags[:, i].any():
                final[i] = self._obs[i]
                self._obs[i], _ = env.reset()
        self._over = flags.any(0)
        infos = {"final_obs": final} if self._mode == "SAME_STEP" and self._over.any() else {}
        return self._obs, reward, flags[0], flags[1], infos


class Spacious(gymnasium.Env):
    """Has whatever spaces it is given, samples observations and checks actions."""

    def __init__(self, observation, action, masked=False, forget=False):
        # Arguments are shared by the environments of a batch; spaces draw numbers.
        self.observation_space, self.action_space = copy.deepcopy((observation, action))
        self._masked, self._forget = masked, forget
        self.taken = []

    def _answer(self):
        info = {"action_mask": self._mask()} if self._masked else {}
        return self.observation_space.sample(), info

    def _mask(self):
        return mask_of(self.action_space, self._age)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._age = 0
        return self._answer()

    def step(self, action):
        assert self.action_space.contains(action), action
        self.taken.append(action)
        self._age += 1
        obs, info = self._answer()
        if self._forget:
            info = {}
        return obs, 1.0, self._age == 3, False, info


def mask_of(space, age):
    """The mask of a Spacious environment, in the form of `space.sample`."""
    if isinstance(space, spaces.Dict):
        return {k: mask_of(s, age) for k, s in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(mask_of(s, age) for s in space.spaces)
    if isinstance(space, spaces.MultiDiscrete):
        return tuple((np.arange(n) == (age + i) % n).astype(np.int8)
                     for i, n in enumerate(space.nvec))  # fmt: skip
    n = int(space.n) if isinstance(space, spaces.Discrete) else int(np.prod(space.shape))
    return (np.arange(n) == age % n).astype(np.int8)


class Broken(Scripted):
    """Does what a test asks of it at the second step, or when it is made in a worker."""

    def __init__(self, how="raise", only=None, main=None):
        if how == "import" and os.getpid() != main:
            raise ImportError("no such simulator")
        super().__init__(ends=("T100",))
        self._how, self._only = how, only

    def reset(self, *, seed=None, options=None):
        self._seed = seed if seed is not None else getattr(self, "_seed", None)
        return super().reset(seed=seed, options=options)

    def step(self, action):
        answer = super().step(action)
        if self._age == 2 and (self._only is None or self._seed == self._only):
            if self._how == "raise":
                raise Odd("boom", code=3)
            if self._how == "die":
                os._exit(9)
            if self._how == "hang":
                time.sleep(600)
        return answer


class Odd(Exception):
    """Cannot be made again from its message, nor pickled."""

    def __init__(self, message, *, code):
        super().__init__(f"{message} {code}")
        self.kept = lambda: None


def register():
    """Registers all of them; again is no harm."""
    tasks = {
        "Scripted-v0": dict(entry_point=f"{HERE}:Scripted"),
        "Spacious-v0": dict(entry_point=f"{HERE}:Spacious", disable_env_checker=True),
        "Broken-v0": dict(entry_point=f"{HERE}:Broken"),
        "Limited-v0": dict(
            entry_point=f"{HERE}:Scripted", kwargs={"ends": ("T9",)}, max_episode_steps=4
        ),
    }
    for mode in ("NEXT_STEP", "SAME_STEP", "DISABLED", None):
        tasks[f"Native{(mode or 'none').title().replace('_', '')}-v0"] = dict(
            entry_point=f"{HERE}:Scripted", vector_entry_point=native(mode)
        )
    for name, arguments in tasks.items():
        if f"tfrl_fakes/{name}" not in gymnasium.registry:
            gymnasium.register(f"tfrl_fakes/{name}", **arguments)


def native(mode):
    """A vector entry point of a mode."""

    def make(num_envs):
        return ScriptedVector(num_envs, mode=mode)

    return make


def by_hand(make, seeds, actions, mode):
    """Steps single environments, and yields what `HostEnv` has to show at every step.

    Args:
      make: Makes one environment.
      seeds: One for each.
      actions: `[T, B]`.
      mode: The autoreset.
    """
    size = len(seeds)
    envs = [make() for _ in seeds]
    obs = [np.copy(e.reset(seed=int(s))[0]) for e, s in zip(envs, seeds, strict=True)]
    rows = [dict(obs=o, final_obs=o, reward=0.0, termination=False, truncation=False,
                 autoreset=False, episode_return=0.0, episode_length=0) for o in obs]  # fmt: skip
    yield {k: np.stack([r[k] for r in rows]) for k in rows[0]}
    for action in actions:
        for i in range(size):
            rows[i] = _row(envs[i], rows[i], action[i], mode)
        yield {k: np.stack([r[k] for r in rows]) for k in rows[0]}


def _row(env, before, action, mode):
    over = before["termination"] or before["truncation"]
    if over and mode == "DISABLED":
        return {**before, "reward": 0.0, "autoreset": True}
    if over and mode == "NEXT_STEP":
        obs = np.copy(env.reset()[0])
        return dict(obs=obs, final_obs=obs, reward=0.0, termination=False, truncation=False,
                    autoreset=True, episode_return=0.0, episode_length=0)  # fmt: skip
    obs, reward, termination, truncation, _ = env.step(action)
    final = obs = np.copy(obs)
    if mode == "SAME_STEP" and (termination or truncation):
        obs = np.copy(env.reset()[0])
    kept = not over
    return dict(
        obs=obs,
        final_obs=final,
        reward=reward,
        termination=bool(termination),
        truncation=bool(truncation),
        autoreset=False,
        episode_return=reward + kept * before["episode_return"],
        episode_length=1 + kept * before["episode_length"],
    )
