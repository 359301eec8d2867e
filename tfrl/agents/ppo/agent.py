"""PPO: the plan of its one update, with the clipped or the penalised surrogate."""

import math
from typing import ClassVar

import tensorflow as tf

from tfrl import struct
from tfrl.agents.actor_critic.agent import ActorCritic
from tfrl.agents.actor_critic.batch import PolicyBatch
from tfrl.agents.core import algorithm
from tfrl.agents.ppo.losses import ppo_loss
from tfrl.checks import Bound
from tfrl.distributions import Distribution
from tfrl.errors import UserError
from tfrl.types import AgentState


@algorithm
@struct.logic_dataclass
class PPO(ActorCritic):
    """Proximal policy optimisation.

    `PPO(clip=None, kl_coef=1.0, kl_target=0.01)` is PPO-penalty: a penalty on KL[old || new]
    instead of the clip, with a weight that adapts after every update.

    Source: Schulman et al. 2017, https://arxiv.org/abs/1707.06347; implementation details: Huang et
    al. 2022, https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/.

    Attributes:
      clip: Half width of the ratio's interval; None for the surrogate without clip.
      value_clip: Half width of the interval around the old value, or None.
      target_kl: Stops the epochs of an update once a minibatch's approximate KL exceeds 1.5 times
        this, as in Stable-Baselines3; or None.
      kl_coef: Weight of the KL penalty; initial value if it adapts.
      kl_target: Target KL of an update: the weight doubles if the update's mean KL is above 1.5
        times this, and halves if it is below this divided by 1.5; None for a fixed weight.
    """

    clip: float | None = 0.2
    value_clip: float | None = None
    target_kl: float | None = None
    kl_coef: float = 0.0
    kl_target: float | None = None

    in_state: ClassVar[tuple[str, ...]] = (*ActorCritic.in_state, "clip")

    def __post_init__(self) -> None:
        """Checks that a clip or a penalty keeps the policy near the behaviour policy."""
        super().__post_init__()
        if self.clip is None and not self.kl_coef and self.target_kl is None:
            raise UserError(
                "PPO.clip",
                expected="a number, since there is no KL penalty",
                got="None",
                remedy="Set clip=0.2, or kl_coef=1.0 and kl_target=0.01 for PPO-penalty.",
            )

    def bounds(self) -> dict[str, Bound]:
        """Returns the bounds of every number."""
        return {
            **super().bounds(),
            "clip": Bound(0, optional=True),
            "value_clip": Bound(0, optional=True),
            "target_kl": Bound(0, closed=False, optional=True),
            # A weight of 0 could not adapt.
            "kl_coef": Bound(0, closed=self.kl_target is None),
            "kl_target": Bound(0, closed=False, optional=True),
        }

    def init(self, key: tf.Tensor) -> AgentState:
        """Makes fresh parameters (groups `policy` and `value`) and empty statistics."""
        state = super().init(key)
        if self.kl_target is None:
            return state
        coef = tf.constant(self.kl_coef, tf.float32)
        return state.replace(extra={**state.extra, "kl_coef": coef})

    def policy_loss(
        self, policy: Distribution, value: tf.Tensor, batch: PolicyBatch, state: AgentState
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The loss of `losses.ppo_loss`."""
        return ppo_loss(
            policy,
            value,
            batch,
            clip=math.inf if self.clip is None else self.setting(state, "clip"),
            value_clip=self.value_clip,
            value_coef=self.setting(state, "value_coef"),
            entropy_coef=state.extra["entropy_coef"],
            kl_coef=state.extra.get("kl_coef", self.kl_coef),
        )

    def on_update_metrics(self, state: AgentState, metrics: dict[str, tf.Tensor]) -> AgentState:
        """Adapts the penalty weight to the KL target.

        Source: Schulman et al. 2017, section 4.
        """
        if self.kl_target is None:
            return state
        kl, coef = metrics["approx_kl"], state.extra["kl_coef"]
        coef = tf.where(kl > 1.5 * self.kl_target, 2.0 * coef, coef)
        coef = tf.where(kl < self.kl_target / 1.5, 0.5 * coef, coef)
        # After many updates far from the target, the weight would leave float32.
        coef = tf.clip_by_value(coef, 1e-8, 1e8)
        return state.replace(extra={**state.extra, "kl_coef": coef})

    @property
    def may_stop(self) -> bool:
        """Whether there is a KL target."""
        return self.target_kl is not None

    def should_stop(self, metrics: dict[str, tf.Tensor]) -> tf.Tensor | None:
        """Stops once the approximate KL exceeds 1.5 times the target."""
        if self.target_kl is None:
            return None
        return metrics["approx_kl"] > 1.5 * self.target_kl
