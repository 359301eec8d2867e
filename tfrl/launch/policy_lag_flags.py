"""The flags --synchronous and --max_policy_lag of learners."""

from absl import flags

flags.DEFINE_enum(
    "synchronous",
    "auto",
    ["auto", "true", "false"],
    "Whether on-policy collectors wait for the update from their rollout. auto: they wait unless "
    "the agent corrects for the policy lag, as IMPALA does.",
)
flags.DEFINE_integer(
    "max_policy_lag",
    None,
    "On-policy: maximum of learner steps between acting and learning; older rollouts are dropped.",
    lower_bound=0,
)
