"""TF-Agents' agents as agents of this library, from plain numbers, for gin files.

TF-Agents is imported only when an agent is created, since the import takes seconds.
"""

from typing import Any

import tensorflow as tf

from tfrl import keras
from tfrl.errors import UserError
from tfrl.ops.schedules import make_schedule
from tfrl.types import Nest


def _adam(rate: Any, counter: tf.Variable) -> Any:
    """Returns TensorFlow's fused Adam; its rate may follow the training steps."""
    schedule = make_schedule(rate)
    constant = isinstance(rate, int | float)
    return tf.compat.v1.train.AdamOptimizer(rate if constant else lambda: schedule(counter))


class _Rate(keras.api.optimizers.schedules.LearningRateSchedule):
    """A schedule of this library for Keras' optimizers."""

    def __init__(self, rate: Any):
        self._schedule = make_schedule(rate)

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        return tf.cast(self._schedule(step), tf.float32)

    def get_config(self) -> dict[str, Any]:
        return {"rate": self._schedule}


def _keras_adam(rate: Any) -> Any:
    """Returns Keras' Adam, which PPO requires."""
    rate = rate if isinstance(rate, int | float) else _Rate(rate)
    return keras.api.optimizers.Adam(rate, jit_compile=False)


def _following(value: Any, counter: tf.Variable) -> Any:
    """Returns a number, or a function without arguments that follows the training steps."""
    schedule = make_schedule(value)
    return value if isinstance(value, int | float) else lambda: schedule(counter)


def _counter() -> tf.Variable:
    return tf.Variable(0, dtype=tf.int64, trainable=False, name="train_step")


def _module(make: Any, obs_spec: Nest, action_spec: Nest, n_step: int | None = None) -> Any:
    from tfrl.compat.tf_agents import from_tf_agent

    return from_tf_agent(make, obs_spec=obs_spec, action_spec=action_spec, n_step=n_step)


def make_dqn(
    obs_spec: Nest,
    action_spec: Nest,
    hidden: tuple[int, ...] = (64, 64),
    learning_rate: Any = 1e-3,
    discount: float = 0.99,
    n_step: int = 1,
    epsilon: Any = 0.1,
    double: bool = False,
    tau: float = 1.0,
    target_every: int = 500,
    obs_scale: tuple[float, ...] | None = None,
    grad_clip: float | None = None,
    loss: str = "huber",
) -> Any:
    """Makes a `DqnAgent`, or with `double` a `DdqnAgent`.

    Args:
      obs_spec: The nest of specs of one observation.
      action_spec: The spec of one Discrete action.
      hidden: Units of the layers of the Q-network.
      learning_rate: Adam's learning rate: a number, or a schedule over training steps.
      discount: gamma.
      n_step: Steps of an item.
      epsilon: The share of random actions: a number, or a schedule over training steps.
      double: Whether the online network chooses the action that the target network evaluates.
      tau: The step size of Polyak updates of the target network; 1 for a copy.
      target_every: Training steps between updates of the target network.
      obs_scale: Factors of the observation's elements for the network; None for no scaling.
        TF-Agents' DQN has no running statistics.
      grad_clip: The greatest norm of each gradient; None for no clipping.
      loss: The loss of a TD error: "huber", TF-Agents' default, or "squared". Huber is linear
        beyond an error of 1, so its minimum is near the median and ignores rare large errors; the
        minimum of "squared" is the mean.

    Raises:
      UserError: For another loss.
    """
    if loss not in ("huber", "squared"):
        raise UserError(
            "TFAgentsDQN.loss",
            expected="'huber' or 'squared'",
            got=repr(loss),
            remedy="Pass 'huber' for TF-Agents' default.",
        )

    def make(time_step_spec: Any, action_spec: Any) -> Any:
        from tf_agents.agents.dqn import dqn_agent
        from tf_agents.networks.q_network import QNetwork
        from tf_agents.utils import common

        counter = _counter()
        kind = dqn_agent.DdqnAgent if double else dqn_agent.DqnAgent
        scaled = None if obs_scale is None else keras.api.layers.Rescaling(list(obs_scale))
        return kind(
            time_step_spec,
            action_spec,
            q_network=QNetwork(
                time_step_spec.observation,
                action_spec,
                preprocessing_layers=scaled,
                fc_layer_params=hidden,
            ),
            optimizer=_adam(learning_rate, counter),
            epsilon_greedy=_following(epsilon, counter),
            n_step_update=n_step,
            target_update_tau=tau,
            target_update_period=target_every,
            td_errors_loss_fn=getattr(common, f"element_wise_{loss}_loss"),
            gamma=discount,
            gradient_clipping=grad_clip,
            train_step_counter=counter,
        )

    return _module(make, obs_spec, action_spec)


def make_categorical_dqn(
    obs_spec: Nest,
    action_spec: Nest,
    hidden: tuple[int, ...] = (64, 64),
    learning_rate: Any = 1e-3,
    discount: float = 0.99,
    n_step: int = 1,
    epsilon: Any = 0.1,
    num_atoms: int = 51,
    min_q: float = -20.0,
    max_q: float = 20.0,
    tau: float = 1.0,
    target_every: int = 500,
    grad_clip: float | None = None,
) -> Any:
    """Makes a `CategoricalDqnAgent` (C51).

    Args:
      obs_spec: See `make_dqn`.
      action_spec: See `make_dqn`.
      hidden: See `make_dqn`.
      learning_rate: See `make_dqn`.
      discount: See `make_dqn`.
      n_step: See `make_dqn`.
      epsilon: See `make_dqn`.
      num_atoms: Atoms of the distribution of returns.
      min_q: The return of the first atom.
      max_q: The return of the last atom.
      tau: See `make_dqn`.
      target_every: See `make_dqn`.
      grad_clip: See `make_dqn`.
    """

    def make(time_step_spec: Any, action_spec: Any) -> Any:
        from tf_agents.agents.categorical_dqn.categorical_dqn_agent import CategoricalDqnAgent
        from tf_agents.networks.categorical_q_network import CategoricalQNetwork

        counter = _counter()
        network = CategoricalQNetwork(
            time_step_spec.observation,
            action_spec,
            num_atoms=num_atoms,
            fc_layer_params=hidden,
        )
        return CategoricalDqnAgent(
            time_step_spec,
            action_spec,
            categorical_q_network=network,
            optimizer=_adam(learning_rate, counter),
            min_q_value=min_q,
            max_q_value=max_q,
            epsilon_greedy=_following(epsilon, counter),
            n_step_update=n_step,
            target_update_tau=tau,
            target_update_period=target_every,
            gamma=discount,
            gradient_clipping=grad_clip,
            train_step_counter=counter,
        )

    return _module(make, obs_spec, action_spec)


def make_sac(
    obs_spec: Nest,
    action_spec: Nest,
    hidden: tuple[int, ...] = (256, 256),
    learning_rate: Any = 3e-4,
    discount: float = 0.99,
    n_step: int = 1,
    tau: float = 0.005,
    target_entropy: float | None = None,
    grad_clip: float | None = None,
) -> Any:
    """Makes a `SacAgent` with a learned temperature.

    Args:
      obs_spec: The nest of specs of one observation.
      action_spec: A Box of floats.
      hidden: Units of the layers of the actor, and of the critics over observation and action.
      learning_rate: The learning rate of the three Adam optimizers: a number, or a schedule over
        training steps.
      discount: gamma.
      n_step: Steps of an item.
      tau: The step size of Polyak updates of the target networks in each training step.
      target_entropy: The target of the policy's entropy; None for minus half the number of action
        elements.
      grad_clip: The greatest norm of each gradient; None for no clipping.
    """

    def make(time_step_spec: Any, action_spec: Any) -> Any:
        from tf_agents.agents.sac import sac_agent, tanh_normal_projection_network
        from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork

        counter = _counter()
        projection = tanh_normal_projection_network.TanhNormalProjectionNetwork
        return sac_agent.SacAgent(
            time_step_spec,
            action_spec,
            critic_network=_critic(time_step_spec, action_spec, hidden),
            actor_network=ActorDistributionNetwork(
                time_step_spec.observation,
                action_spec,
                fc_layer_params=hidden,
                continuous_projection_net=projection,
            ),
            actor_optimizer=_adam(learning_rate, counter),
            critic_optimizer=_adam(learning_rate, counter),
            alpha_optimizer=_adam(learning_rate, counter),
            target_update_tau=tau,
            gamma=discount,
            target_entropy=target_entropy,
            gradient_clipping=grad_clip,
            train_step_counter=counter,
        )

    return _module(make, obs_spec, action_spec, n_step)


def make_td3(
    obs_spec: Nest,
    action_spec: Nest,
    hidden: tuple[int, ...] = (256, 256),
    learning_rate: Any = 1e-3,
    discount: float = 0.99,
    n_step: int = 1,
    exploration_std: float = 0.1,
    tau: float = 0.005,
    actor_every: int = 2,
    grad_clip: float | None = None,
) -> Any:
    """Makes a `Td3Agent`.

    Args:
      obs_spec: See `make_sac`.
      action_spec: See `make_sac`.
      hidden: See `make_sac`.
      learning_rate: The learning rate of both Adam optimizers: a number, or a schedule over
        training steps.
      discount: See `make_sac`.
      n_step: See `make_sac`.
      exploration_std: The standard deviation of the noise of `compute_actions`.
      tau: The step size of Polyak updates of the target networks.
      actor_every: Training steps between updates of the actor and of the target networks.
      grad_clip: See `make_sac`.
    """

    def make(time_step_spec: Any, action_spec: Any) -> Any:
        from tf_agents.agents.td3.td3_agent import Td3Agent

        counter = _counter()
        return Td3Agent(
            time_step_spec,
            action_spec,
            actor_network=_actor(time_step_spec, action_spec, hidden),
            critic_network=_critic(time_step_spec, action_spec, hidden),
            actor_optimizer=_adam(learning_rate, counter),
            critic_optimizer=_adam(learning_rate, counter),
            exploration_noise_std=exploration_std,
            target_update_tau=tau,
            target_update_period=actor_every,
            actor_update_period=actor_every,
            gamma=discount,
            gradient_clipping=grad_clip,
            train_step_counter=counter,
        )

    return _module(make, obs_spec, action_spec, n_step)


def make_ddpg(
    obs_spec: Nest,
    action_spec: Nest,
    hidden: tuple[int, ...] = (256, 256),
    learning_rate: Any = 1e-3,
    discount: float = 0.99,
    n_step: int = 1,
    noise_std: float = 0.2,
    noise_damping: float = 0.15,
    tau: float = 0.005,
    grad_clip: float | None = None,
) -> Any:
    """Makes a `DdpgAgent`, which explores by Ornstein-Uhlenbeck noise.

    Args:
      obs_spec: See `make_sac`.
      action_spec: See `make_sac`.
      hidden: See `make_sac`.
      learning_rate: The learning rate of both Adam optimizers: a number, or a schedule over
        training steps.
      discount: See `make_sac`.
      n_step: See `make_sac`.
      noise_std: The standard deviation of the noise's steps.
      noise_damping: The rate at which the noise returns to 0, from 0 to 1.
      tau: See `make_sac`.
      grad_clip: See `make_sac`.
    """

    def make(time_step_spec: Any, action_spec: Any) -> Any:
        from tf_agents.agents.ddpg.ddpg_agent import DdpgAgent

        counter = _counter()
        return DdpgAgent(
            time_step_spec,
            action_spec,
            actor_network=_actor(time_step_spec, action_spec, hidden),
            critic_network=_critic(time_step_spec, action_spec, hidden),
            actor_optimizer=_adam(learning_rate, counter),
            critic_optimizer=_adam(learning_rate, counter),
            ou_stddev=noise_std,
            ou_damping=noise_damping,
            target_update_tau=tau,
            gamma=discount,
            gradient_clipping=grad_clip,
            train_step_counter=counter,
        )

    return _module(make, obs_spec, action_spec, n_step)


def make_ppo(
    obs_spec: Nest,
    action_spec: Nest,
    hidden: tuple[int, ...] = (64, 64),
    learning_rate: Any = 3e-4,
    discount: float = 0.99,
    gae_lambda: float = 0.95,
    clip: float = 0.2,
    num_epochs: int = 10,
    entropy_coef: float = 0.0,
    value_coef: float = 0.5,
    normalize_obs: bool = True,
    normalize_rewards: bool = True,
    grad_clip: float = 0.5,
) -> Any:
    """Makes a `PPOClipAgent`.

    Args:
      obs_spec: The nest of specs of one observation.
      action_spec: The nest of specs of one action.
      hidden: Units of the tanh layers of actor and value network.
      learning_rate: Adam's learning rate: a number, or a schedule over training steps (`num_epochs`
        per rollout).
      discount: gamma.
      gae_lambda: lambda of the advantages.
      clip: The most that the ratio of probabilities may differ from 1.
      num_epochs: Gradient steps, each on a whole rollout.
      entropy_coef: The weight of the entropy.
      value_coef: The weight of the value loss.
      normalize_obs: Whether observations are normalised by running statistics.
      normalize_rewards: Whether rewards are normalised by running statistics.
      grad_clip: The greatest global norm of the gradients; 0 for no clipping.
    """

    def make(time_step_spec: Any, action_spec: Any) -> Any:
        from tf_agents.agents.ppo.ppo_clip_agent import PPOClipAgent

        counter = _counter()
        return PPOClipAgent(
            time_step_spec,
            action_spec,
            optimizer=_keras_adam(learning_rate),
            actor_net=_actor_distribution(time_step_spec, action_spec, hidden),
            value_net=_value(time_step_spec, hidden),
            importance_ratio_clipping=clip,
            lambda_value=gae_lambda,
            discount_factor=discount,
            entropy_regularization=entropy_coef,
            value_pred_loss_coef=value_coef,
            num_epochs=num_epochs,
            use_gae=True,
            use_td_lambda_return=True,
            normalize_observations=normalize_obs,
            normalize_rewards=normalize_rewards,
            gradient_clipping=grad_clip,
            train_step_counter=counter,
        )

    return _module(make, obs_spec, action_spec)


def make_reinforce(
    obs_spec: Nest,
    action_spec: Nest,
    hidden: tuple[int, ...] = (64, 64),
    learning_rate: Any = 1e-3,
    discount: float = 0.99,
    baseline: bool = True,
    normalize_returns: bool = True,
    entropy_coef: float | None = None,
    grad_clip: float | None = None,
) -> Any:
    """Makes a `ReinforceAgent`. It uses a rollout up to its last end of an episode, if any.

    Args:
      obs_spec: See `make_ppo`.
      action_spec: See `make_ppo`.
      hidden: Units of the tanh layers of actor and baseline.
      learning_rate: Adam's learning rate: a number, or a schedule over training steps (one per
        rollout).
      discount: gamma.
      baseline: Whether a value network is the baseline.
      normalize_returns: Whether returns are normalised over the batch.
      entropy_coef: The weight of the entropy; None for none.
      grad_clip: The greatest norm of each gradient; None for no clipping.
    """

    def make(time_step_spec: Any, action_spec: Any) -> Any:
        from tf_agents.agents.reinforce.reinforce_agent import ReinforceAgent

        counter = _counter()
        return ReinforceAgent(
            time_step_spec,
            action_spec,
            actor_network=_actor_distribution(time_step_spec, action_spec, hidden),
            value_network=_value(time_step_spec, hidden) if baseline else None,
            value_estimation_loss_coef=0.2,
            optimizer=_adam(learning_rate, counter),
            gamma=discount,
            normalize_returns=normalize_returns,
            entropy_regularization=entropy_coef,
            gradient_clipping=grad_clip,
            train_step_counter=counter,
        )

    return _module(make, obs_spec, action_spec)


def _critic(time_step_spec: Any, action_spec: Any, hidden: tuple[int, ...]) -> Any:
    from tf_agents.agents.ddpg.critic_network import CriticNetwork

    return CriticNetwork((time_step_spec.observation, action_spec), joint_fc_layer_params=hidden)


def _actor(time_step_spec: Any, action_spec: Any, hidden: tuple[int, ...]) -> Any:
    from tf_agents.agents.ddpg.actor_network import ActorNetwork

    return ActorNetwork(time_step_spec.observation, action_spec, fc_layer_params=hidden)


def _actor_distribution(time_step_spec: Any, action_spec: Any, hidden: tuple[int, ...]) -> Any:
    from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork

    return ActorDistributionNetwork(
        time_step_spec.observation,
        action_spec,
        fc_layer_params=hidden,
        activation_fn=keras.api.activations.tanh,
    )


def _value(time_step_spec: Any, hidden: tuple[int, ...]) -> Any:
    from tf_agents.networks.value_network import ValueNetwork

    return ValueNetwork(
        time_step_spec.observation,
        fc_layer_params=hidden,
        activation_fn=keras.api.activations.tanh,
    )
