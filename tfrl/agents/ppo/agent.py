"""PPO: acting, advantages, and the plan of its one update."""

from typing import Any

import tensorflow as tf

from tfrl import networks, ops, seeding, struct
from tfrl.agents.core import Agent, Update
from tfrl.agents.ppo.losses import PPOBatch, ppo_loss
from tfrl.agents.ppo.networks import default_policy, default_value
from tfrl.errors import UserError
from tfrl.ops import statistics
from tfrl.ops.schedules import make_schedule
from tfrl.types import ActionOutput, AgentState, Nest, Trajectory


@struct.logic_dataclass
class PPO(Agent):
    """Proximal policy optimisation for discrete and continuous actions.

    Source: Schulman et al. 2017, https://arxiv.org/abs/1707.06347; details as examined by Huang et
    al. 2022, https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/.

    Attributes:
      obs_spec: The nest of specs of one observation.
      action_spec: The nest of specs of one action.
      policy: The policy network; None for a tanh MLP of `hidden` units (a CNN for images).
      value: The value network; None for the same.
      hidden: Units of the default networks' layers.
      discount: gamma.
      gae_lambda: lambda of the advantage estimator.
      clip: Half width of the ratio's interval.
      value_clip: Half width of the interval around the old value, or None.
      value_coef: Weight of the value loss.
      entropy_coef: Weight of the entropy bonus: a number, or a schedule over env steps.
      normalize_advantage: Whether advantages are normalised in each minibatch.
      normalize_obs: Whether observations are normalised by running statistics.
      obs_clip: Bound of a normalised observation.
      target_kl: Stops the epochs of an update once a minibatch's approximate KL exceeds 1.5 times
        this, as Stable-Baselines3 does; or None.
    """

    obs_spec: Nest
    action_spec: Nest
    policy: networks.PolicyNetwork | None = None
    value: networks.ValueNetwork | None = None
    hidden: tuple[int, ...] = (64, 64)
    discount: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    value_clip: float | None = None
    value_coef: float = 0.5
    entropy_coef: Any = 0.0
    normalize_advantage: bool = True
    normalize_obs: bool = False
    obs_clip: float = 10.0
    target_kl: float | None = None
    policy_network: networks.PolicyNetwork = struct.derived()
    value_network: networks.ValueNetwork = struct.derived()

    def __post_init__(self) -> None:
        """Checks numbers and fills in the default networks."""
        for name, low, high in (("discount", 0, 1), ("gae_lambda", 0, 1), ("clip", 0, None)):
            number = getattr(self, name)
            if not number >= low or (high is not None and number > high):
                raise UserError(
                    f"PPO.{name}",
                    expected=f"a number of at least {low}"
                    + (f" and at most {high}" if high is not None else ""),
                    got=number,
                    remedy="Typical values: discount 0.99, gae_lambda 0.95, clip 0.2.",
                )
        make_schedule(self.entropy_coef)
        self.policy_network = self.policy or default_policy(
            self.obs_spec, self.action_spec, tuple(self.hidden)
        )
        self.value_network = self.value or default_value(self.obs_spec, tuple(self.hidden))

    # State.

    def init(self, key: tf.Tensor) -> AgentState:
        """Makes fresh parameters (groups `policy` and `value`) and empty statistics."""
        keys = seeding.streams(key, ["policy", "value"])
        return AgentState(
            params={
                "policy": self.policy_network.init(keys["policy"], self.obs_spec),
                "value": self.value_network.init(keys["value"], self.obs_spec),
            },
            normalizer=statistics.init(self.obs_spec) if self.normalize_obs else None,
            extra={"entropy_coef": make_schedule(self.entropy_coef)(tf.constant(0, tf.int64))},
        )

    def normalized(self, state: AgentState, obs: Nest) -> Nest:
        """Returns observations as the networks see them."""
        if not self.normalize_obs:
            return obs
        return statistics.normalize(state.normalizer, obs, clip=self.obs_clip)

    # Acting.

    def compute_actions(
        self, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Samples actions; `extras["log_prob"]` is their float32 log-probability `[B]`."""
        policy = self.policy_network.apply(state.params["policy"], self.normalized(state, obs))
        action, log_prob = policy.sample_and_log_prob(key)
        return ActionOutput(action=action, carry=carry, extras={"log_prob": log_prob})

    def evaluate_actions(
        self, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Takes the mode of the policy."""
        policy = self.policy_network.apply(state.params["policy"], self.normalized(state, obs))
        return ActionOutput(action=policy.mode(), carry=carry)

    # Learning.

    @property
    def updates(self) -> tuple[Update, ...]:
        """One update of both networks."""
        return (Update(name="ppo", groups=("policy", "value"), loss=self.loss),)

    def learner_batch(
        self, state: AgentState, trajectory: Trajectory
    ) -> tuple[PPOBatch, dict[str, tf.Tensor]]:
        """Values both ends of every step, and estimates advantages at the true successors."""
        params = state.params["value"]
        obs = self.normalized(state, trajectory.obs)
        next_obs = self.normalized(state, trajectory.next_obs)
        both = tf.nest.map_structure(lambda *x: tf.concat(x, 0), obs, next_obs)  # [2 T, B, ...]
        value, next_value = tf.split(self.value_network.apply(params, both), 2)
        advantage, target = ops.gae(
            reward=trajectory.reward,
            value=value,
            next_value=next_value,
            termination=trajectory.termination,
            truncation=trajectory.truncation,
            discount=self.discount,
            lambda_=self.gae_lambda,
            mask=trajectory.valid,
        )
        batch = PPOBatch(
            obs=obs,
            action=trajectory.action,
            log_prob=trajectory.policy_extras["log_prob"],
            advantage=advantage,
            value_target=target,
            value=value,
            mask=trajectory.valid,
        )
        metrics = {
            "explained_variance": ops.explained_variance(value, target, trajectory.valid),
            "value_mean": ops.masked_mean(value, trajectory.valid),
        }
        return tf.nest.map_structure(_flat, batch), metrics

    def loss(
        self, params: dict[str, Any], state: AgentState, batch: PPOBatch, key: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The loss of `losses.ppo_loss` at the given parameters."""
        return ppo_loss(
            self.policy_network.apply(params["policy"], batch.obs),
            self.value_network.apply(params["value"], batch.obs),
            batch,
            clip=self.clip,
            value_clip=self.value_clip,
            value_coef=self.value_coef,
            entropy_coef=state.extra["entropy_coef"],
            normalize_advantage=self.normalize_advantage,
        )

    def observe(self, state: AgentState, trajectory: Trajectory) -> AgentState:
        """Merges the observations into the statistics, to be used from the next rollout on."""
        if not self.normalize_obs:
            return state
        merged = statistics.update(state.normalizer, trajectory.obs, mask=trajectory.valid)
        return state.replace(normalizer=merged)

    def before_update(self, state: AgentState, timesteps: tf.Tensor) -> AgentState:
        """Sets the entropy coefficient of this update."""
        schedule = make_schedule(self.entropy_coef)
        return state.replace(extra={"entropy_coef": schedule(timesteps)})

    def should_stop(self, metrics: dict[str, tf.Tensor]) -> tf.Tensor | None:
        """Stops once the approximate KL is more than 1.5 times the target."""
        if self.target_kl is None:
            return None
        return metrics["approx_kl"] > 1.5 * self.target_kl


def _flat(x: tf.Tensor) -> tf.Tensor:
    return tf.reshape(x, [x.shape[0] * x.shape[1], *x.shape[2:]])  # [T, B, ...] -> [T * B, ...]
