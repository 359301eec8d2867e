"""Policies of TF-Agents as pure functions of values."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tf_agents.policies.ou_noise_policy import OUNoisePolicy
from tf_agents.trajectories import TimeStep

from tfrl.compat.tf_agents.from_tf_agent_draws import drawn_from
from tfrl.compat.tf_agents.from_tf_agent_logic import Logic
from tfrl.compat.tf_agents.trajectories import FIRST, MID, observation
from tfrl.types import ActionOutput, AgentState, Nest

# What is stored with a step of a policy that has policy info.
INFO = "info"


def initial_carry(logic: Logic, batch_size: int) -> dict[str, Any] | None:
    """Returns what a policy carries from step to step as an episode begins; None for nothing.

    Args:
      logic: The agent.
      batch_size: B.

    Returns:
      `fresh`, bool `[B]`; the policy states of the two policies; the noise of DDPG.
    """
    carry: dict[str, Any] = {}
    for name, policy in _policies(logic).items():
        state = tf.nest.flatten(policy.get_initial_state(batch_size))
        if state:
            carry[name] = [tf.convert_to_tensor(x) for x in state]
    noisy = _noisy(logic.agent.collect_policy)
    if noisy is not None:
        carry["noise"] = [
            tf.zeros([batch_size, *s.shape], s.dtype) for s in tf.nest.flatten(noisy.action_spec)
        ]
    return {"fresh": tf.ones([batch_size], tf.bool), **carry} if carry else None


def _policies(logic: Logic) -> dict[str, Any]:
    return {"explore": logic.agent.collect_policy, "greedy": logic.policy}


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def act(
    logic: Logic,
    which: str,
    state: AgentState,
    obs: Nest,
    key: tf.Tensor,
    carry: dict[str, Any] | None,
    specs: tuple[Nest, Nest],
) -> ActionOutput:
    """Acts by the values of a state; a pure function, to be called in a graph.

    The policy sees a time step with reward 0 and discount 1, FIRST where an episode begins if it
    carries anything, else always MID.

    Args:
      logic: The agent.
      which: "explore" or "greedy".
      state: Values.
      obs: A nest `[B, ...]`.
      key: int32 [2].
      carry: Like `initial_carry`.
      specs: Those of one observation and of one action.
    """
    obs_spec, action_spec = specs
    policy = _policies(logic)[which]
    leaf = tf.nest.flatten(obs)[0]
    batch = leaf.shape[0] or tf.shape(leaf)[0]  # exported policies take any size
    kinds = tf.fill([batch], MID)
    if carry is not None:
        kinds = tf.where(carry["fresh"], FIRST, MID)
    time_step = TimeStep(
        step_type=kinds,
        reward=tf.zeros([batch]),
        discount=tf.ones([batch]),
        observation=observation(obs, obs_spec),
    )
    memory: Any = ()
    if carry is not None and which in carry:
        memory = tf.nest.pack_sequence_as(policy.policy_state_spec, carry[which])
    after = None if carry is None else {**carry, "fresh": tf.zeros([batch], tf.bool)}
    noisy = _noisy(policy) if which == "explore" else None
    with logic.variables.read_as(state), drawn_from(key), _noise(noisy, carry, after):
        step = policy.action(time_step, memory)
    logic.variables.check_untouched(logic.agent)
    if after is not None and which in after:
        after[which] = tf.nest.flatten(step.state)
    leaves = [
        tf.cast(x, s.dtype)
        for x, s in zip(tf.nest.flatten(step.action), tf.nest.flatten(action_spec), strict=True)
    ]
    return ActionOutput(
        action=tf.nest.pack_sequence_as(action_spec, leaves),
        carry=after,
        extras={INFO: tf.nest.flatten(step.info)} if tf.nest.flatten(step.info) else None,
    )


def no_info(logic: Logic, batch_size: int) -> dict[str, Any] | None:
    """Returns extras of zeros, for steps that the policy has not played."""
    info = tf.nest.flatten(logic.agent.collect_policy.info_spec)
    zeros = [tf.zeros([batch_size, *s.shape], s.dtype) for s in info]
    return {INFO: zeros} if zeros else None


def _noisy(policy: Any) -> Any:
    """The policy with Ornstein-Uhlenbeck noise inside of others, if there is one."""
    while policy is not None and not isinstance(policy, OUNoisePolicy):
        policy = getattr(policy, "_wrapped_policy", None)
    return policy


class _Process:
    """TF-Agents' `OUProcess` with a value for every environment, in the place of its variable."""

    def __init__(self, value: tf.Tensor, damping: Any, stddev: Any):
        self.value, self._damping, self._stddev = value, damping, stddev

    def __call__(self) -> tf.Tensor:
        noise = tf.random.normal(tf.shape(self.value), stddev=self._stddev, dtype=self.value.dtype)
        self.value = (1.0 - self._damping) * self.value + noise
        return self.value


@contextlib.contextmanager
def _noise(
    policy: Any, carry: dict[str, Any] | None, after: dict[str, Any] | None
) -> Iterator[None]:
    """Gives a policy its noise out of the carry, which in TF-Agents is a variable of its own."""
    if policy is None or carry is None or after is None:
        yield
        return
    made = [_Process(x, policy._ou_damping, policy._ou_stddev) for x in carry["noise"]]
    # Past `tf.Module`, which would wrap a list.
    vars(policy)["_ou_process"] = tf.nest.pack_sequence_as(policy.action_spec, made)
    try:
        yield
    finally:
        vars(policy)["_ou_process"] = None
    after["noise"] = [process.value for process in made]
