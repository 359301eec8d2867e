"""gymnax: env steps per second of random actions (JAX, CPU), for `benchmarks.device_tasks`.

  python benchmarks/peer_gymnax.py --env=Breakout-MinAtar --num_envs=64

Runs in the peers' environment, without tfrl and TensorFlow; prints one JSON line.
"""

import argparse
import json
import statistics
import time

import gymnax
import jax

HORIZON = 128  # steps of one compiled call, as in `benchmarks.device_tasks`


def main() -> None:
    """Measures rollouts with uniformly random actions and gymnax's autoreset."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", default="Breakout-MinAtar")
    parser.add_argument("--num_envs", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds per measurement")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    env, params = gymnax.make(args.env)
    reset = jax.vmap(env.reset, in_axes=(0, None))
    step = jax.vmap(env.step, in_axes=(0, 0, 0, None))
    sample = jax.vmap(env.action_space(params).sample)

    @jax.jit
    def rollout(state, key):
        def one(carry, _):
            state, key = carry
            key, act, go = jax.random.split(key, 3)
            action = sample(jax.random.split(act, args.num_envs))
            obs, state, reward, *ends, _ = step(
                jax.random.split(go, args.num_envs), state, action, params
            )
            return (state, key), (obs, reward, ends)

        (state, key), rows = jax.lax.scan(one, (state, key), None, HORIZON)
        return state, key, rows

    key = jax.random.PRNGKey(0)
    _, state = jax.jit(reset)(jax.random.split(key, args.num_envs), params)
    state, key, _ = jax.block_until_ready(rollout(state, key))
    rates = []
    for _ in range(args.rounds):
        steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < args.seconds:
            state, key, _ = jax.block_until_ready(rollout(state, key))
            steps += HORIZON * args.num_envs
        rates.append(steps / (time.perf_counter() - start))
    rate = statistics.median(rates)
    print(json.dumps({"env_steps_per_second": rate, "env": args.env, "num_envs": args.num_envs}))


if __name__ == "__main__":
    main()
