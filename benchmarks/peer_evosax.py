"""evosax's OpenES on gymnax's Pendulum: generations per second (JAX, CPU).

  python benchmarks/peer_evosax.py --population=128

The sizes of `benchmarks.evolution`: a 2 x 16 tanh network, one episode of 200 steps per member.
Runs in the peers' environment, without tfrl and TensorFlow; prints one JSON line.
"""

import argparse
import json
import statistics
import time

import gymnax
import jax
import jax.numpy as jnp
import optax
from evosax.algorithms import Open_ES

STEPS = 200


def policy(params, obs):
    """A tanh network; the torque is within +-2."""
    for kernel, bias in params:
        obs = jnp.tanh(obs @ kernel + bias)
    return 2.0 * obs


def main() -> None:
    """Measures whole generations, ten in one compiled call."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--population", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds per measurement")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    env, env_params = gymnax.make("Pendulum-v1")
    sizes = [(3, 16), (16, 16), (16, 1)]
    solution = [(jnp.zeros(size), jnp.zeros(size[1])) for size in sizes]
    search = Open_ES(
        args.population,
        solution,
        optimizer=optax.adam(0.05),
        std_schedule=optax.constant_schedule(0.1),
    )

    def episode(params, key):
        obs, state = env.reset(key, env_params)

        def step(carry, _):
            obs, state, total = carry
            # `step_env` does not reset at an end: each member plays one whole episode.
            obs, state, reward, *_ = env.step_env(key, state, policy(params, obs), env_params)
            return (obs, state, total + reward), None

        return jax.lax.scan(step, (obs, state, 0.0), None, STEPS)[0][2]

    @jax.jit
    def generations(state, key):
        def one(carry, _):
            state, key = carry
            key, ask, reset, tell = jax.random.split(key, 4)
            population, state = search.ask(ask, state, search.default_params)
            keys = jax.random.split(reset, args.population)
            fitness = -jax.vmap(episode)(population, keys)  # evosax minimises
            state, _ = search.tell(tell, population, fitness, state, search.default_params)
            return (state, key), fitness.mean()

        return jax.lax.scan(one, (state, key), None, 10)

    key = jax.random.PRNGKey(0)
    state = search.init(key, solution, search.default_params)
    (state, key), _ = jax.block_until_ready(generations(state, key))
    rates = []
    for _ in range(args.rounds):
        done, start = 0, time.perf_counter()
        while time.perf_counter() - start < args.seconds:
            (state, key), _ = jax.block_until_ready(generations(state, key))
            done += 10
        rates.append(done / (time.perf_counter() - start))
    print(json.dumps({"generations_per_second": statistics.median(rates)}))


if __name__ == "__main__":
    main()
