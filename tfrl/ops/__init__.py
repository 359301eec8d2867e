"""Pure tensor mathematics of reinforcement learning, time-major and mask-aware."""

from tfrl.ops._rows import take_action
from tfrl.ops.multistep import (
    VTrace,
    discounted_returns,
    gae,
    lambda_returns,
    n_step_returns,
    retrace,
    vtrace,
)
from tfrl.ops.permutation import permutation
from tfrl.ops.policy_losses import (
    PPOClipExtra,
    entropy_loss,
    kl_k1,
    kl_k2,
    kl_k3,
    log_ratio,
    policy_gradient_loss,
    ppo_clip_loss,
)
from tfrl.ops.q_losses import (
    double_q_learning_loss,
    expected_sarsa_loss,
    mask_action_values,
    q_learning_loss,
)
from tfrl.ops.ranking import centered_ranks
from tfrl.ops.reduce import (
    explained_variance,
    masked_mean,
    masked_mean_std,
    masked_sum,
    normalize_advantage,
    valid_count,
)
from tfrl.ops.schedules import (
    ConstantSchedule,
    CosineSchedule,
    ExponentialSchedule,
    LinearSchedule,
    PiecewiseLinearSchedule,
    Schedule,
    check_schedule,
    make_schedule,
)
from tfrl.ops.statistics import RunningStatistics
from tfrl.ops.value_losses import (
    TDExtra,
    clipped_value_loss,
    huber,
    quantile_huber_loss,
    td_loss,
    value_loss,
)

__all__ = [
    "ConstantSchedule",
    "CosineSchedule",
    "ExponentialSchedule",
    "LinearSchedule",
    "PPOClipExtra",
    "PiecewiseLinearSchedule",
    "RunningStatistics",
    "Schedule",
    "TDExtra",
    "VTrace",
    "centered_ranks",
    "check_schedule",
    "clipped_value_loss",
    "discounted_returns",
    "double_q_learning_loss",
    "entropy_loss",
    "expected_sarsa_loss",
    "explained_variance",
    "gae",
    "huber",
    "kl_k1",
    "kl_k2",
    "kl_k3",
    "lambda_returns",
    "log_ratio",
    "make_schedule",
    "mask_action_values",
    "masked_mean",
    "masked_mean_std",
    "masked_sum",
    "n_step_returns",
    "normalize_advantage",
    "permutation",
    "policy_gradient_loss",
    "ppo_clip_loss",
    "q_learning_loss",
    "quantile_huber_loss",
    "retrace",
    "take_action",
    "td_loss",
    "valid_count",
    "value_loss",
    "vtrace",
]
