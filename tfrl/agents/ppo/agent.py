"""PPO: acting, advantages, and the plan of its one update."""

import math
import numbers
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfrl import networks, ops, seeding, struct
from tfrl.agents.core import PARAM_UPDATES, Agent, Update
from tfrl.agents.ppo.losses import PPOBatch, ppo_loss
from tfrl.agents.ppo.networks import check_network, default_policy, default_value
from tfrl.errors import UserError
from tfrl.ops import statistics
from tfrl.ops.schedules import make_schedule
from tfrl.types import ActionOutput, AgentState, Nest, Trajectory

# Bounds of every number: least, greatest, and whether the least itself is allowed.
_BOUNDS: dict[str, tuple[float, float, bool]] = {
    "discount": (0, 1, True),
    "gae_lambda": (0, 1, True),
    "clip": (0, math.inf, True),
    "value_clip": (0, math.inf, True),
    "value_coef": (0, math.inf, True),
    "obs_clip": (0, math.inf, False),
    "target_kl": (0, math.inf, False),
}
_OPTIONAL = ("value_clip", "target_kl")
_TORSO = "torso=KerasNetwork(model_fn=make_model, spec=env.obs_spec)"


@struct.logic_dataclass
class PPO(Agent):
    """Proximal policy optimisation for discrete and continuous actions.

    Source: Schulman et al. 2017, https://arxiv.org/abs/1707.06347; details as examined by Huang et
    al. 2022, https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/.

    Layers of a `KerasNetwork` that differ in training (BatchNormalization, Dropout) are in training
    mode in the loss only; acting, the values for the advantages and evaluation run them in
    inference mode. With such layers the ratio of the first minibatch is therefore not exactly 1.

    Attributes:
      obs_spec: The nest of specs of one observation.
      action_spec: The nest of specs of one action.
      policy: The policy network; None for a tanh MLP of `hidden` units (a CNN for images).
      value: The value network; None for the same.
      hidden: Units of the default networks' layers.
      obs_key: The item of a Dict observation that the default networks take ("a/b" for a nested
        one); None for all of it.
      value_obs_key: The item that the default value network takes instead, such as the "state" of
        a centralised critic (MAPPO: Yu et al. 2022, https://arxiv.org/abs/2103.01955); None for
        the same as the policy.
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
    obs_key: str | None = None
    value_obs_key: str | None = None
    policy_network: networks.PolicyNetwork = struct.derived()
    value_network: networks.ValueNetwork = struct.derived()

    def __post_init__(self) -> None:
        """Checks numbers and fills in the default networks."""
        for name in _BOUNDS:
            _check_number(name, getattr(self, name))
        make_schedule(self.entropy_coef)
        hidden = tuple(self.hidden)
        if self.policy is not None:
            head = f"PolicyNetwork({_TORSO}, distribution=make_distribution(env.action_spec))"
            check_network("policy", self.policy, head)
        if self.value is not None:
            check_network("value", self.value, f"ValueNetwork({_TORSO})")
        self.policy_network = self.policy or default_policy(
            self.obs_spec, self.action_spec, hidden, self.obs_key
        )
        value_key = _value_key(self)
        self.value_network = self.value or default_value(self.obs_spec, hidden, value_key)

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
        """Samples actions; `extras["log_prob"]` is their float32 log-probability `[B]`.

        It is `log_prob` of the emitted action, as in the loss: where a squashed policy saturates,
        that of `sample_and_log_prob` differs, and the ratio would not start at 1.
        """
        policy = self.policy_network.apply(state.params["policy"], self.normalized(state, obs))
        action = policy.sample(key)
        return ActionOutput(
            action=action, carry=carry, extras={"log_prob": policy.log_prob(action)}
        )

    def evaluate_actions(
        self, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Takes the mode of the policy."""
        policy = self.policy_network.apply(state.params["policy"], self.normalized(state, obs))
        return ActionOutput(action=policy.mode(), carry=carry)

    def compute_values(self, state: AgentState, obs: Nest) -> tf.Tensor:
        """Returns V(o), float32 `[...]`, of observations `[..., *obs_spec shape]`.

        Args:
          state: The agent's state; its statistics normalise the observations.
          obs: A nest that matches `obs_spec`, with any leading axes.
        """
        return self.value_network.apply(state.params["value"], self.normalized(state, obs))

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

    def prepare_minibatch(
        self, state: AgentState, batch: Nest, all_reduce_sum: Callable[[Nest], Nest]
    ) -> Nest:
        """Normalises the advantages over the valid rows of the minibatch, those of all replicas."""
        if not self.normalize_advantage:
            return batch
        advantage = ops.normalize_advantage(
            batch.advantage, getattr(batch, "mask", None), all_reduce=all_reduce_sum
        )
        return batch.replace(advantage=advantage)

    def loss(
        self, params: dict[str, Any], state: AgentState, batch: PPOBatch, key: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The loss of `losses.ppo_loss` at the given parameters, networks in training mode."""
        keys = seeding.streams(key, ["policy", "value"])
        policy, policy_params = self.policy_network.apply_training(
            params["policy"], batch.obs, keys["policy"]
        )
        value, value_params = self.value_network.apply_training(
            params["value"], batch.obs, keys["value"]
        )
        loss, metrics = ppo_loss(
            policy,
            value,
            batch,
            clip=self.clip,
            value_clip=self.value_clip,
            value_coef=self.value_coef,
            entropy_coef=state.extra["entropy_coef"],
        )
        after = {"policy": policy_params, "value": value_params}
        after = {g: p for g, p in after.items() if networks.split_leaves(p)[1]}
        return loss, {**metrics, PARAM_UPDATES: after} if after else metrics

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

    @property
    def may_stop(self) -> bool:
        """Whether there is a target for the KL."""
        return self.target_kl is not None

    def should_stop(self, metrics: dict[str, tf.Tensor]) -> tf.Tensor | None:
        """Stops once the approximate KL is more than 1.5 times the target."""
        if self.target_kl is None:
            return None
        return metrics["approx_kl"] > 1.5 * self.target_kl


def _value_key(ppo: PPO) -> str | None:
    """The item that the default value network takes; one is chosen for no other network."""
    if ppo.value_obs_key is None:
        return ppo.obs_key
    if ppo.value is not None:
        raise UserError(
            "PPO.value_obs_key",
            expected="None where a value network is given",
            got=repr(ppo.value_obs_key),
            remedy="Let the network choose: "
            "ObservationTorso(obs_spec=..., body=..., obs_key='state').",
        )
    return ppo.value_obs_key


def _check_number(name: str, number: Any) -> None:
    if number is None and name in _OPTIONAL:
        return
    low, high, closed = _BOUNDS[name]
    real = isinstance(number, numbers.Real) and not isinstance(number, bool)
    if real and math.isfinite(number) and low <= number <= high and (closed or number > low):
        return
    expected = f"a number of at least {low}" if closed else f"a number above {low}"
    raise UserError(
        f"PPO.{name}",
        expected=expected
        + (f" and at most {high}" if math.isfinite(high) else "")
        + (" or None" if name in _OPTIONAL else ""),
        got=repr(number),
        remedy="Give one finite number; only entropy_coef takes a schedule. Typical: discount "
        "0.99, gae_lambda 0.95, clip 0.2, value_coef 0.5, obs_clip 10, target_kl 0.02.",
    )


def _flat(x: tf.Tensor) -> tf.Tensor:
    return tf.reshape(x, [x.shape[0] * x.shape[1], *x.shape[2:]])  # [T, B, ...] -> [T * B, ...]
