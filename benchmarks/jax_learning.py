"""Returns of a plain JAX loop with the settings of `ppo/brax_base.gin`; needs the extra `jax`.

  python -m benchmarks.jax_learning --env=jax/brax:hopper --seeds=3

The loop is `benchmarks.reference_jax_ppo` with the gin file's additions: observations normalised by
statistics of the earlier rollouts, clipped at 10; rewards divided by the standard deviation of a
running discounted return; the value clip. The training uses no code of tfrl. Ends with one JSON
line per seed, the mean return of whole greedy episodes, and one line of all seeds with its
interval.
"""

import argparse
import functools
import time

import jax
import jax.numpy as jnp

from benchmarks import measure
from benchmarks import reference_jax_ppo as reference

NUM_ENVS, HORIZON, EPOCHS, MINIBATCHES, HIDDEN, RATE = 256, 32, 4, 32, 256, 3e-4
VALUE_CLIP, OBS_CLIP, EPSILON = 0.2, 10.0, 1e-8


def moments(shape, count):
    """Returns (rows, mean, sum of squared deviations)."""
    return jnp.array(count), jnp.zeros(shape), jnp.full(shape, count)


def merged(known, rows):
    """Adds rows [N, ...] to moments, by Chan et al. 1983."""
    n, mean, m2 = known
    k, own = len(rows), rows.mean(0)
    delta, total = own - mean, n + k
    m2 = m2 + jnp.square(rows - own).sum(0) + delta**2 * n * k / total
    return total, mean + delta * k / total, m2


class NormalizedPPO(reference.JaxPPO):
    """PPO on normalised observations and rewards."""

    def __init__(self, env_id, seed):
        """Creates parameters, start states and moments."""
        sizes = (NUM_ENVS, HORIZON, EPOCHS, MINIBATCHES)
        super().__init__(env_id, *sizes, seed=seed, hidden=HIDDEN, rate=RATE)
        of_obs, of_returns = moments([self.env[3]], 0.0), moments([], 1e-4)
        self.state = (*self.state, (of_obs, of_returns, jnp.zeros(self.b)))

    def _normalized(self, of_obs, obs):
        n, mean, m2 = of_obs
        deviation = jnp.where(n > 0, jnp.sqrt(m2 / jnp.maximum(n, 1.0)), 1.0)
        return jnp.clip((obs - mean) / jnp.maximum(deviation, 1e-6), -OBS_CLIP, OBS_CLIP)

    def _play(self, params, start, carry, known, key):
        of_obs, of_returns, returns = known

        def body(both, key):
            carry, of_returns, returns = both
            action_key, step_key = jax.random.split(key)
            obs = self._normalized(of_obs, carry[1])
            action = self._sample(params, obs, action_key)
            logp = self._log_prob(params, obs, action)[0]
            carry, row = reference.advance(
                self.env, start, carry, jnp.clip(action, -1.0, 1.0), step_key
            )
            _, reward, term, trunc, _, _ = row
            returns = returns * reference.GAMMA + reward
            of_returns = merged(of_returns, returns)
            paid = reward * jax.lax.rsqrt(of_returns[2] / of_returns[0] + EPSILON)
            returns = jnp.where(term | trunc, 0.0, returns)
            return (carry, of_returns, returns), (*row, action, logp, paid)

        keys = jax.random.split(key, self.horizon)
        (carry, *after), rows = jax.lax.scan(body, (carry, of_returns, returns), keys)
        obs, _, term, trunc, nxt, final, action, logp, paid = rows
        ends = self._normalized(of_obs, jnp.stack([obs, nxt]))
        value, next_value = reference._net(params["vf"], ends)[..., 0]
        delta = paid + reference.GAMMA * (1.0 - term) * next_value - value
        keep = reference.GAMMA * reference.LAMBDA * (1.0 - (term | trunc))

        def back(acc, row):
            acc = row[0] + row[1] * acc
            return acc, acc

        adv = jax.lax.scan(back, jnp.zeros(self.b), (delta, keep), reverse=True)[1]
        data = (ends[0], action, logp, adv, adv + value, value)
        data = [x.reshape(self.horizon * self.b, *x.shape[2:]) for x in data]
        of_obs = merged(of_obs, obs.reshape(-1, obs.shape[-1]))
        return carry, data, (of_obs, *after), (final.sum(), (term | trunc).sum())

    def _loss(self, params, obs, action, old_lp, adv, target, old_value):
        lp, _ = self._log_prob(params, obs, action)
        ratio = jnp.exp(lp - old_lp)
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        clipped = jnp.clip(ratio, 1 - reference.CLIP, 1 + reference.CLIP)
        pg = -jnp.minimum(ratio * adv, clipped * adv).mean()
        value = reference._net(params["vf"], obs)[:, 0]
        held = old_value + jnp.clip(value - old_value, -VALUE_CLIP, VALUE_CLIP)
        vl = 0.5 * jnp.maximum((value - target) ** 2, (held - target) ** 2).mean()
        return pg + reference.VALUE_COEF * vl, (pg, vl)

    def _iteration(self, state, _):
        params, m, v, t, start, carry, key, known = state
        key, roll_key, *epoch_keys = jax.random.split(key, 2 + self.epochs)
        carry, data, known, stats = self._play(params, start, carry, known, roll_key)

        def epoch(learner, key):
            order = jax.random.permutation(key, self.horizon * self.b)
            batches = [x[order].reshape(self.minibatches, -1, *x.shape[1:]) for x in data]
            return jax.lax.scan(self._minibatch, learner, tuple(batches))

        learner, _ = jax.lax.scan(epoch, (params, m, v, t), jnp.stack(epoch_keys))
        return (*learner, start, carry, key, known), jnp.stack(stats)

    def evaluate(self, env_id, episodes, key):
        """Returns the returns of greedy whole episodes, [episodes]."""
        env = reference.make(env_id, episodes)
        params, of_obs = self.state[0], self.state[-1][0]

        @jax.jit
        def play(params, of_obs, key):
            def body(both, key):
                (state, obs), alive, total = both
                action = reference._net(params["pi"], self._normalized(of_obs, obs))
                state, obs, reward, term = env[1](state, jnp.clip(action, -1.0, 1.0), key)
                return ((state, obs), alive & ~term, total + alive * reward), None

            start = (env[0](key), jnp.ones(episodes, bool), jnp.zeros(episodes))
            return jax.lax.scan(body, start, jax.random.split(key, env[2]))[0][2]

        return play(params, of_obs, key)


def train(env_id, seed, steps, episodes):
    """Trains one seed; returns its figures."""
    start = time.perf_counter()
    ppo = NormalizedPPO(env_id, seed)
    iterations = -(-steps // (NUM_ENVS * HORIZON))
    curve = []
    for done in range(0, iterations, 100):
        rows = ppo.run(min(100, iterations - done))
        returns, ends = rows.sum(0)
        curve.append(round(float(returns / max(ends, 1)), 1))
    eval_returns = ppo.evaluate(env_id, episodes, jax.random.PRNGKey(1_000_000 + seed))
    return {
        "seed": seed,
        "env_steps": iterations * NUM_ENVS * HORIZON,
        "return_mean": float(eval_returns.mean()),
        "return_std": float(eval_returns.std()),
        "training_returns": curve,
        "seconds": time.perf_counter() - start,
    }


def main() -> None:
    """Parses the command line and trains."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", default="jax/brax:hopper")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first_seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10_000_000)
    parser.add_argument("--episodes", type=int, default=100)
    args = parser.parse_args()
    emit = functools.partial(measure.emit, benchmark="jax_learning", env=args.env)

    seeds = range(args.first_seed, args.first_seed + args.seeds)
    means = []
    for seed in seeds:
        figures = train(args.env, seed, args.steps, args.episodes)
        means.append(figures["return_mean"])
        emit(**figures)

    from tfrl.evaluation import bootstrap_interval

    low, high = bootstrap_interval(means)
    emit(seeds=list(seeds), return_mean=sum(means) / len(means), low=low, high=high)


if __name__ == "__main__":
    main()
