"""The package `minatar`, played with given random outcomes beside a game of tfrl.

The package draws from `game.random`. In its place stands `Scripted`, which answers its calls, in
the order in which the rules make them, out of the uniform numbers that the game of tfrl is given.
"""

import numpy as np
import tensorflow as tf
from minatar import Environment

from tfrl.envs.core import where_rows

NAMES = {
    "Asterix": "asterix",
    "Breakout": "breakout",
    "Freeway": "freeway",
    "Seaquest": "seaquest",
    "SpaceInvaders": "space_invaders",
}


class Scripted:
    """Stands in for a `numpy.random.RandomState`: every call takes the next answer."""

    def __init__(self):
        self.answers = []

    def _next(self, kind):
        expected, answer = self.answers.pop(0)
        assert expected == kind, (expected, kind)
        return answer

    def rand(self, size=None):
        answer = self._next("rand")
        assert np.shape(answer) == (() if size is None else (size,))
        return answer

    def randint(self, low, high=None, size=None):
        low, high = (0, low) if high is None else (low, high)
        answer = self._next("randint")
        assert np.shape(answer) == (() if size is None else (size,))
        # The same choice among any number of values.
        return low + np.floor(answer * np.float32(high - low)).astype(int)


def speeds_of(draws):
    """What makes the package's Freeway draw the speeds that tfrl makes of uniform `draws` [8].

    tfrl: -5 -4 -3 -2 -1 1 2 3 4 5 for each tenth. The package: a size and a sign.
    """
    tenth = np.floor(draws * np.float32(10)).astype(int)
    size = np.where(tenth < 5, 5 - tenth, tenth - 4)
    return [("randint", (size - 0.5) / 5), ("rand", np.where(tenth < 5, 0.25, 0.75))]


def start_answers(name, draws):
    """The answers for a reset, from float32 draws of one environment."""
    if name == "Breakout":
        return [("randint", draws[0])]
    return speeds_of(draws) if name == "Freeway" else []


def step_answers(name, game, draws):
    """The answers for a step: as many as its rules will ask for.

    Args:
      name: Of the game.
      game: The package's game before the step.
      draws: float32, of one environment.
    """
    pairs = list(zip(("rand", "rand", "randint"), draws[:3], strict=False))
    if name == "Asterix" and game.spawn_timer == 0:
        return pairs if None in game.entities else pairs[:2]
    if name == "Seaquest":
        diver = [("rand", draws[3]), ("randint", draws[4])] if game.d_spawn_timer == 0 else []
        return (pairs if game.e_spawn_timer == 0 else []) + diver
    return []


class Oracle:
    """One game of the package, without sticky actions: `start` and `play` as those of tfrl."""

    def __init__(self, name, ramping=True):
        self.name = name
        self.environment = Environment(
            NAMES[name], sticky_action_prob=0.0, difficulty_ramping=ramping
        )
        self.game = self.environment.env
        self.game.random = self.random = Scripted()

    def start(self, draws):
        self.random.answers = start_answers(self.name, draws)
        self.game.reset()
        assert not self.random.answers
        return self.environment.state()

    def play(self, action, draws):
        """Returns observation, reward and whether the game is over."""
        self.random.answers = step_answers(self.name, self.game, draws)
        if self.name == "Freeway" and action == 2 and self.game.move_timer == 0:
            self.random.answers = speeds_of(draws) if self.game.pos == 1 else []
        reward, over = self.game.act(action)
        assert not self.random.answers
        return self.environment.state(), reward, over


def compare(env, actions, draws, starts, play_on=False, prepare=None, jit_compile=False):
    """Plays the package's game, then tfrl's with the same actions and draws; all must be equal.

    Args:
      env: A game of tfrl with B environments.
      actions: A function of (step, the package's games) that gives int [B], of all six.
      draws: float32 [T, B, num_draws].
      starts: float32 [T + 1, B, num_start_draws], for the reset after each step.
      play_on: Whether to go on with a game that is over, as if it were not.
      prepare: A pair of functions, that change the package's game in place and return tfrl's
        game [B] changed in the same way, at the start.
      jit_compile: Whether XLA compiles tfrl's game.

    Returns:
      The rewards [T, B] and ends [T, B], and the package's games at the end.
    """
    oracles = [Oracle(type(env).__name__, env.difficulty_ramping) for _ in range(env.num_envs)]
    change_theirs, change_ours = prepare or (lambda game: None, lambda game: game)
    first = [o.start(d) for o, d in zip(oracles, starts[0], strict=True)]
    if prepare is not None:
        for oracle in oracles:
            change_theirs(oracle.game)
        first = [o.environment.state() for o in oracles]
    rows = []
    for t in range(len(draws)):
        action = np.asarray(actions(t, [o.game for o in oracles]), np.int32)
        played = [o.play(int(a), d) for o, a, d in zip(oracles, action, draws[t], strict=True)]
        seen, reward, over = (np.array(column) for column in zip(*played, strict=True))
        begun = seen.copy()  # the observation after a reset
        for i in np.flatnonzero(over):
            if play_on:
                oracles[i].game.terminal = False
            else:
                begun[i] = oracles[i].start(starts[t + 1, i])
        rows.append((action, seen, reward.astype(np.float32), over, begun))
    action, seen, reward, over, begun = (np.stack(column) for column in zip(*rows, strict=True))

    resets = np.zeros_like(over) if play_on else over
    run = tf.function(_play_all, autograph=False, jit_compile=jit_compile)
    ours = run(env, change_ours, *map(tf.constant, (action, draws, starts, resets)))
    theirs = (np.stack(first), seen, reward, over, begun)
    for name, a, b in zip(("first", "obs", "reward", "over", "begun"), ours, theirs, strict=True):
        differs = np.argwhere(a.numpy() != b)
        assert not len(differs), f"{name} differs, first at {differs[0].tolist()}"
    return reward, over, [o.game for o in oracles]


def _play_all(env, prepare, action, draws, starts, resets):
    """tfrl's game: first observation, and of each step observation, reward, end, and next start."""
    game = prepare(env.start(starts[0]))
    board = [env.num_envs, 10, 10, len(env.channels)]
    kinds = ((tf.bool, board), (tf.float32, board[:1]), (tf.bool, board[:1]), (tf.bool, board))
    length = draws.shape[0]
    arrays = [tf.TensorArray(d, length, element_shape=s) for d, s in kinds]

    def body(t, game, arrays):
        game, reward, over = env.play(game, action[t], draws[t])
        seen = env.observe(game)
        fresh = env.start(starts[t + 1])
        game = where_rows(resets[t], fresh, game)
        row = (seen, tf.cast(reward, tf.float32), over, env.observe(game))
        return t + 1, game, [a.write(t, x) for a, x in zip(arrays, row, strict=True)]

    _, _, arrays = tf.while_loop(
        lambda t, *_: t < length, body, (0, game, arrays), maximum_iterations=length
    )
    return env.observe(game), *(a.stack() for a in arrays)


def uniforms(seed, env, steps):
    """Draws for `compare`: (draws, starts)."""
    rng = np.random.default_rng(seed)
    size = [steps, env.num_envs, env.num_draws]
    starts = [steps + 1, env.num_envs, env.num_start_draws]
    return rng.random(size, np.float32), rng.random(starts, np.float32)


def random_actions(seed, number, weights=None):
    """A policy for `compare`: the six actions with given weights."""
    rng = np.random.default_rng(seed)
    return lambda t, games: rng.choice(6, number, p=weights)


def package_episodes(name, choices, episodes, limit, seed=0):
    """Plays the package with its own chance and sticky actions: returns and lengths [episodes].

    Args:
      name: Of the game.
      choices: The actions among which it chooses at random.
      episodes: How many.
      limit: Frames after which an episode is cut.
      seed: Of all chance.
    """
    rng = np.random.default_rng(seed)
    environment = Environment(NAMES[name])
    environment.seed(seed)
    rows = []
    for _ in range(episodes):
        environment.reset()
        environment.last_action = 0
        total, length, over = 0.0, 0, False
        while not over and length < limit:
            reward, over = environment.act(int(rng.choice(choices)))
            total, length = total + reward, length + 1
        rows.append((total, length))
    return np.array(rows, np.float64).T
