"""PPO on CartPole-v1 as an `RLTask`: an environment, a model, its actions, and a loss.

    python examples/task_ppo.py --seed=0
    python bin/train.py --gin_file=examples/task_ppo.gin --root_dir=runs/task_ppo

Schulman et al. 2017, Proximal Policy Optimization Algorithms, https://arxiv.org/abs/1707.06347.
"""

import functools
import time

import gin
import gymnasium
import numpy as np
import tensorflow as tf
from absl import app, flags

from tfrl.tasks import RLTask, RLTaskConfig, TaskWorkflow

DISCOUNT, GAE_LAMBDA = 0.99, 0.95
CLIP, VALUE_COST, ENTROPY_COST = 0.2, 0.5, 0.005


@gin.configurable(module="examples")
class PPOTask(RLTask):
    """PPO on clips of one sample; advantages are computed from whole trajectories."""

    # Not a method of this module, because the module imports TensorFlow: see
    # `RLTask.get_environment`.
    get_environment = staticmethod(
        functools.partial(gymnasium.make, "CartPole-v1", render_mode="rgb_array")
    )

    def get_model(self):
        """Two networks of two layers: logits of the actions, and the value."""
        obs = tf.keras.Input([4])

        def network(size, gain):
            x = obs
            for _ in range(2):
                x = tf.keras.layers.Dense(64, "tanh", kernel_initializer=_orthogonal(2.0**0.5))(x)
            return tf.keras.layers.Dense(size, kernel_initializer=_orthogonal(gain))(x)

        return tf.keras.Model(obs, [network(2, 0.01), network(1, 1.0)])

    def get_optimizer(self):
        """Adam with a global-norm gradient clip."""
        return tf.keras.optimizers.Adam(1e-3, epsilon=1e-5, global_clipnorm=0.5)

    def get_actions(self, model, states, optimal):
        """Greedy or sampled actions, with the old policy's values for the loss."""
        logits, values = _call(model, states)
        log_probs = tf.nn.log_softmax(logits)
        actions = tf.argmax(logits, -1) if optimal else tf.random.categorical(logits, 1)[:, 0]
        log_prob = tf.gather(log_probs, actions, batch_dims=1)
        return actions, {"log_prob": log_prob, "value": values[:, 0]}

    def postprocess_trajectory(self, model, trajectory):
        """Adds advantages (GAE, https://arxiv.org/abs/1506.02438) and value targets."""
        last_value = _call(model, trajectory.last_obs[None])[1].numpy()[0, 0]
        values = np.append(trajectory.extras["value"], last_value)
        # After a termination the value is 0; a cut bootstraps from the last observation.
        next_values = np.where(trajectory.termination, 0.0, values[1:])
        deltas = trajectory.reward + DISCOUNT * next_values - values[:-1]
        advantages, running = np.zeros_like(deltas), 0.0
        for t in reversed(range(len(trajectory))):
            advantages[t] = running = deltas[t] + DISCOUNT * GAE_LAMBDA * running
        advantages = advantages.astype(np.float32)
        extras = {"advantage": advantages, "target": advantages + values[:-1]}
        return trajectory.replace(extras={**trajectory.extras, **extras})

    def compute_loss(self, model, batch, state, output):
        """The clipped objective, the value loss and the entropy bonus."""
        logits, values = output  # [B, 1, 2], [B, 1, 1]
        old = batch.extras
        log_probs = tf.nn.log_softmax(logits)
        log_ratio = tf.gather(log_probs, batch.action, batch_dims=2) - old["log_prob"]
        ratio = tf.exp(log_ratio)
        advantage = old["advantage"]
        advantage -= tf.reduce_mean(advantage)
        advantage /= tf.math.reduce_std(advantage) + 1e-8
        clipped = tf.clip_by_value(ratio, 1.0 - CLIP, 1.0 + CLIP)
        policy_loss = -tf.reduce_mean(tf.minimum(ratio * advantage, clipped * advantage))
        value_loss = tf.reduce_mean(tf.square(values[..., 0] - old["target"]))
        entropy = -tf.reduce_mean(tf.reduce_sum(tf.exp(log_probs) * log_probs, -1))
        loss = policy_loss + VALUE_COST * value_loss - ENTROPY_COST * entropy
        kl = tf.reduce_mean(ratio - 1.0 - log_ratio)
        return loss, {"value_loss": value_loss, "entropy": entropy, "kl": kl}


def _orthogonal(gain):
    return tf.keras.initializers.Orthogonal(gain)


@functools.lru_cache(maxsize=4)
def _compiled(model):
    return tf.function(model, reduce_retracing=True)


def _call(model, states):
    """The compiled model, because a call of the Keras model takes milliseconds."""
    return _compiled(model)(tf.convert_to_tensor(states))


def config(**changes):
    """The settings of the example; a CartPole step is faster than a message to another process."""
    numbers = {
        "num_env_workers": 8,
        "force_sync": True,
        "min_action_batch_size": 8,
        "num_collect_steps": 2048,
        "on_policy": True,
        "batch_size": 256,
        "num_update_steps": 64,
        "max_steps": 500,
    }
    return RLTaskConfig(**{**numbers, **changes})


def main(_):
    """Trains without a run folder, and evaluates."""
    seed, started = flags.FLAGS.seed, time.monotonic()
    workflow = TaskWorkflow(task=PPOTask(config(env_seed=seed)))
    state = workflow.learn(
        workflow.setup(seed), total_env_steps=flags.FLAGS.env_steps, recorders=("console",)
    )
    result = workflow.final_evaluation(state, 100)
    seconds = time.monotonic() - started
    print(f"seed {seed}: {result.mean:.1f} +- {result.std:.1f} after {seconds:.0f} s")
    workflow.close()


if __name__ == "__main__":
    flags.DEFINE_integer("seed", 0, "Seed of model, environments and actions.")
    flags.DEFINE_integer("env_steps", 80_000, "Env steps of training.")
    app.run(main)
