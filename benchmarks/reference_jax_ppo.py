"""A hand-written single-file PPO in pure JAX: the reference of `benchmarks.jax_envs`.

It imports neither tfrl nor TensorFlow. It does the work of `benchmarks.reference_ppo`: true
successors with both end flags and their values V(next_obs), GAE, shuffled minibatches, clipped
losses, a global-norm clip, Adam, a finite guard and the metrics of a row. Environments are Brax's
with cached start states, as in its autoreset, and gymnax's with a new start state per episode.
"""

import functools
import math
import time

import jax
import jax.numpy as jnp

GAMMA, LAMBDA, CLIP, VALUE_COEF, ENTROPY_COEF, MAX_NORM, RATE = (
    0.99, 0.95, 0.2, 0.5, 0.01, 0.5, 2.5e-4,
)  # fmt: skip


def brax_env(name, num_envs):
    """Returns reset, step, limit, sizes of observation and action, and whether it is discrete."""
    import brax.envs

    env = brax.envs.get_environment(name, backend="spring")

    def reset(key):
        state = jax.vmap(env.reset)(jax.random.split(key, num_envs))
        return state, state.obs

    def step(state, action, key):
        state = jax.vmap(env.step)(state, action)
        return state, state.obs, state.reward, state.done > 0

    return reset, step, 1000, env.observation_size, env.action_size, False


def gymnax_env(name, num_envs):
    """As `brax_env`; removes gymnax's time limit, so that truncations are separate."""
    import gymnax

    env, params = gymnax.make(name)
    limit = params.max_steps_in_episode
    params = params.replace(max_steps_in_episode=2**31 - 1)

    def reset(key):
        obs, state = jax.vmap(env.reset_env, (0, None))(jax.random.split(key, num_envs), params)
        return state, obs

    def step(state, action, key):
        keys = jax.random.split(key, num_envs)
        stepped = jax.vmap(env.step_env, (0, 0, 0, None))(keys, state, action, params)
        obs, state, reward, done, _ = stepped
        return state, obs, reward, done

    size = math.prod(env.observation_space(params).shape)
    return reset, step, limit, size, env.num_actions, True


ENVS = {"jax/brax": brax_env, "jax/gymnax": gymnax_env}


def make(env_id, num_envs):
    """Returns the environment of an id, such as `jax/brax:ant`, and whether starts are cached."""
    suite, _, name = env_id.partition(":")
    return *ENVS[suite](name, num_envs), suite == "jax/brax"


def select(mask, a, b):
    """Takes rows of `a` where `mask` [B] is True, else of `b`."""
    return jax.tree_util.tree_map(
        lambda x, y: jnp.where(mask.reshape([-1] + [1] * (y.ndim - 1)), x, y), a, b
    )


def advance(env, start, carry, action, key):
    """One step with time limit, statistics and autoreset: the next carry and the row."""
    reset, step, limit, *_, cached = env
    state, obs, steps, ret = carry
    step_key, reset_key = jax.random.split(key)
    state, nxt, reward, term = step(state, action, step_key)
    steps, ret = steps + 1, ret + reward
    trunc = steps >= limit
    done = term | trunc
    fresh = start if cached else reset(reset_key)
    row = (obs, reward, term, trunc, nxt, jnp.where(done, ret, 0.0))
    state, obs = select(done, fresh, (state, nxt))
    return (state, obs, jnp.where(done, 0, steps), jnp.where(done, 0.0, ret)), row


def start_of(env, key):
    """The first start states, and their carry."""
    start = env[0](key)
    zeros = jnp.zeros(start[1].shape[:1])
    return start, (*start, zeros.astype(int), zeros)


def random_play(env_id, num_envs, length):
    """Returns a function `(carry, key) -> (carry, key, rows)` of random play, and its arguments."""
    env = make(env_id, num_envs)
    size, discrete = env[4], env[5]
    start, carry = jax.jit(functools.partial(start_of, env))(jax.random.PRNGKey(0))

    @jax.jit
    def play(start, carry, key):
        def body(carry, key):
            action_key, step_key = jax.random.split(key)
            if discrete:
                action = jax.random.randint(action_key, [num_envs], 0, size)
            else:
                action = jax.random.uniform(action_key, [num_envs, size], minval=-1.0)
            return advance(env, start, carry, action, step_key)

        key, own = jax.random.split(key)
        carry, rows = jax.lax.scan(body, carry, jax.random.split(own, length))
        return carry, key, rows[:4]

    return functools.partial(play, start), (carry, jax.random.PRNGKey(1))


def _net(p, x):
    x = jnp.tanh(x @ p[0] + p[1])
    x = jnp.tanh(x @ p[2] + p[3])
    return x @ p[4] + p[5]


class JaxPPO:
    """Holds the state; `run(n)` does n iterations in one call."""

    def __init__(
        self, env_id, num_envs, horizon, epochs, minibatches, seed=0, hidden=64, rate=RATE
    ):
        """Makes parameters and start states."""
        self.rate = rate
        self.env = make(env_id, num_envs)
        self.b, self.horizon, self.epochs, self.minibatches = num_envs, horizon, epochs, minibatches
        size, actions, self.discrete = self.env[3], self.env[4], self.env[5]
        orthogonal = jax.nn.initializers.orthogonal
        keys = iter(jax.random.split(jax.random.PRNGKey(seed), 8))

        def net(out, scale):
            sizes = [(size, hidden, 2**0.5), (hidden, hidden, 2**0.5), (hidden, out, scale)]
            layers = [[orthogonal(s)(next(keys), (n, m)), jnp.zeros(m)] for n, m, s in sizes]
            return [x for layer in layers for x in layer]

        params = {"pi": net(actions, 0.01), "vf": net(1, 1.0)}
        if not self.discrete:
            params["log_std"] = jnp.zeros(actions)
        zeros = jax.tree_util.tree_map(jnp.zeros_like, params)
        start, carry = jax.jit(functools.partial(start_of, self.env))(next(keys))
        self.state = (params, zeros, zeros, jnp.zeros(()), start, carry, next(keys))
        self._run = jax.jit(self._loop, static_argnums=1)

    def _log_prob(self, params, obs, action):
        """Log-probability and entropy."""
        out = _net(params["pi"], obs)
        if self.discrete:
            logp = jax.nn.log_softmax(out)
            chosen = jnp.take_along_axis(logp, action[:, None], 1)[:, 0]
            return chosen, -jnp.sum(jnp.exp(logp) * logp, 1)
        log_std = params["log_std"]
        z = (action - out) * jnp.exp(-log_std)
        entropy = jnp.sum(log_std + 0.5 * math.log(2 * math.pi * math.e))
        logp = -0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi)
        return jnp.sum(logp, 1), jnp.broadcast_to(entropy, z.shape[:1])

    def _sample(self, params, obs, key):
        out = _net(params["pi"], obs)
        if self.discrete:
            return jax.random.categorical(key, out)
        return out + jnp.exp(params["log_std"]) * jax.random.normal(key, out.shape)

    def _rollout(self, params, start, carry, key):
        def body(carry, key):
            action_key, step_key = jax.random.split(key)
            obs = carry[1].reshape(self.b, -1)
            action = self._sample(params, obs, action_key)
            logp = self._log_prob(params, obs, action)[0]
            taken = action if self.discrete else jnp.clip(action, -1.0, 1.0)
            carry, row = advance(self.env, start, carry, taken, step_key)
            return carry, (*row, action, logp)

        carry, rows = jax.lax.scan(body, carry, jax.random.split(key, self.horizon))
        obs, reward, term, trunc, nxt, final, action, logp = rows
        both = jnp.stack([obs, nxt]).reshape(2 * self.horizon * self.b, -1)
        value, next_value = _net(params["vf"], both).reshape(2, self.horizon, self.b)
        delta = reward + GAMMA * (1.0 - term) * next_value - value
        keep = GAMMA * LAMBDA * (1.0 - (term | trunc))

        def back(acc, row):
            acc = row[0] + row[1] * acc
            return acc, acc

        adv = jax.lax.scan(back, jnp.zeros(self.b), (delta, keep), reverse=True)[1]
        data = (obs, action, logp, adv, adv + value)
        data = [x.reshape(self.horizon * self.b, *x.shape[2:]) for x in data]
        data[0] = data[0].reshape(len(data[0]), -1)
        return carry, data, (final.sum(), (term | trunc).sum())

    def _loss(self, params, obs, action, old_lp, adv, target):
        lp, entropy = self._log_prob(params, obs, action)
        log_ratio = lp - old_lp
        ratio = jnp.exp(log_ratio)
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        pg = -jnp.minimum(ratio * adv, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * adv).mean()
        value = _net(params["vf"], obs)[:, 0]
        vl = 0.5 * ((value - target) ** 2).mean()
        kl, ent = (ratio - 1.0 - log_ratio).mean(), entropy.mean()
        frac = (jnp.abs(ratio - 1.0) > CLIP).mean()
        ev = 1.0 - (target - value).var() / target.var()
        return pg + VALUE_COEF * vl - ENTROPY_COEF * ent, (pg, vl, ent, kl, frac, ev)

    def _minibatch(self, carry, batch):
        params, m, v, t = carry
        (loss, metrics), grads = jax.value_and_grad(self._loss, has_aux=True)(params, *batch)
        map_ = jax.tree_util.tree_map
        norm = jnp.sqrt(sum((g**2).sum() for g in jax.tree_util.tree_leaves(grads)))
        finite = jnp.isfinite(norm) & jnp.isfinite(loss)
        grads = map_(lambda g: g * jnp.minimum(1.0, MAX_NORM / norm), grads)
        t1 = t + 1
        m1 = map_(lambda a, g: 0.9 * a + 0.1 * g, m, grads)
        v1 = map_(lambda a, g: 0.999 * a + 0.001 * g**2, v, grads)
        rate = self.rate * jnp.sqrt(1 - 0.999**t1) / (1 - 0.9**t1)
        new = map_(lambda p, a, b: p - rate * a / (jnp.sqrt(b) + 1e-5), params, m1, v1)
        kept = map_(lambda a, b: jnp.where(finite, a, b), (new, m1, v1, t1), carry)
        return kept, jnp.stack([loss, norm, finite, *metrics])

    def _iteration(self, state, _):
        params, m, v, t, start, carry, key = state
        key, roll_key, *epoch_keys = jax.random.split(key, 2 + self.epochs)
        carry, data, stats = self._rollout(params, start, carry, roll_key)

        def epoch(learner, key):
            order = jax.random.permutation(key, self.horizon * self.b)
            batches = [x[order].reshape(self.minibatches, -1, *x.shape[1:]) for x in data]
            return jax.lax.scan(self._minibatch, learner, tuple(batches))

        learner, rows = jax.lax.scan(epoch, (params, m, v, t), jnp.stack(epoch_keys))
        metrics = jnp.concatenate([rows.mean((0, 1)), jnp.stack(stats)])
        return (*learner, start, carry, key), metrics

    def _loop(self, state, iterations):
        return jax.lax.scan(self._iteration, state, None, iterations)

    def run(self, iterations):
        """Runs `iterations` and returns the metric rows."""
        self.state, rows = self._run(self.state, iterations)
        return jax.device_get(rows)


def rate(ppo, iterations):
    """Returns env steps per second of a number of compiled iterations."""
    start = time.perf_counter()
    ppo.run(iterations)
    return iterations * ppo.horizon * ppo.b / (time.perf_counter() - start)
