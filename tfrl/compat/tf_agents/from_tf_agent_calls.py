"""The inputs of a TFAgent: time steps to act on, experience to train on."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
from tf_agents.agents.behavioral_cloning.behavioral_cloning_agent import BehavioralCloningAgent
from tf_agents.agents.categorical_dqn.categorical_dqn_agent import CategoricalDqnAgent
from tf_agents.policies.ou_noise_policy import OUNoisePolicy
from tf_agents.trajectories import TimeStep
from tf_agents.trajectories import Trajectory as Frames
from tf_agents.trajectories import Transition as FramePair

from tfrl import struct
from tfrl.agents.off_policy.agent import transition_of
from tfrl.agents.rows import check_rows
from tfrl.compat.tf_agents.from_tf_agent_logic import Logic
from tfrl.compat.tf_agents.from_tf_agent_variables import drawn_from
from tfrl.compat.tf_agents.trajectories import (
    FIRST,
    MID,
    observation,
    to_trajectory,
    to_transitions,
)
from tfrl.errors import UserError
from tfrl.learners.batches import counted, field
from tfrl.types import ActionOutput, AgentState, Nest, Sequences, Trajectory, Transition

# The policy extra that stores policy info.
INFO = "info"


def initial_carry(logic: Logic, batch_size: int) -> dict[str, Any] | None:
    """Returns the initial carry of a policy; None without one.

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


@tf.autograph.experimental.do_not_convert
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

    The policy gets a time step with reward 0 and discount 1. It is FIRST at the start of an
    episode for a policy with a carry, else always MID.

    Args:
      logic: The agent.
      which: "explore" or "greedy".
      state: The values of the state.
      obs: A nest `[B, ...]`.
      key: int32 [2].
      carry: A carry like `initial_carry`.
      specs: The specs of one observation and of one action.
    """
    obs_spec, action_spec = specs
    policy = _policies(logic)[which]
    leaf = tf.nest.flatten(obs)[0]
    batch = leaf.shape[0] or tf.shape(leaf)[0]  # exported policies have an open batch size
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
    """Returns extras of zeros, for actions that the policy has not chosen."""
    info = tf.nest.flatten(logic.agent.collect_policy.info_spec)
    zeros = [tf.zeros([batch_size, *s.shape], s.dtype) for s in info]
    return {INFO: zeros} if zeros else None


def _noisy(policy: Any) -> Any:
    """Returns the inner policy with Ornstein-Uhlenbeck noise, or None."""
    while policy is not None and not isinstance(policy, OUNoisePolicy):
        policy = getattr(policy, "_wrapped_policy", None)
    return policy


class _Process:
    """TF-Agents' `OUProcess` with a value per environment instead of a variable."""

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
    """Makes a policy use noise from the carry; in TF-Agents the noise is a variable."""
    if policy is None or carry is None or after is None:
        yield
        return
    processes = [_Process(x, policy._ou_damping, policy._ou_stddev) for x in carry["noise"]]
    # Bypasses `tf.Module`, which would wrap a list.
    vars(policy)["_ou_process"] = tf.nest.pack_sequence_as(policy.action_spec, processes)
    try:
        yield
    finally:
        vars(policy)["_ou_process"] = None
    after["noise"] = [process.value for process in processes]


# The column of a batch with experience in TF-Agents' form.
EXPERIENCE = "experience"


def experience_of(logic: Logic, batch: Nest, gamma: float, n_step: int) -> Nest:
    """Converts a batch to the experience for the agent's `train`.

    Args:
      logic: The agent.
      batch: A `Transition` or `Sequences` of a replay buffer; a dict with the column
        `experience` in TF-Agents' form; or a dict of the columns of a Transition, of which
        behavioural cloning needs only `obs` and `action`.
      gamma: The factor of discounts in the agent's losses; gamma^n is an item's discount.
      n_step: Steps of an item.

    Raises:
      UserError: For sequences instead of items, or vice versa, and for missing columns.
    """
    if isinstance(batch, Mapping) and EXPERIENCE in batch:
        return batch[EXPERIENCE]
    sequences = isinstance(batch, Sequences)
    if sequences != (logic.form == "sequence") or logic.form == "rollout":
        raise UserError(
            f"the batch of {type(logic.agent).__name__}",
            expected=_wanted(logic.form),
            got="sequences" if sequences else f"{type(batch).__name__} of single items",
            remedy="Pass the expected batch, or a column 'experience' with the argument of its "
            "train().",
        )
    if sequences:
        steps = batch.steps
        info = (steps.policy_extras or {}).get(INFO)
        frames = frames_of(logic, steps, info, time_major=False)
        if isinstance(logic.agent, BehavioralCloningAgent):
            # It learns the action of every frame, and the last frame repeats an action.
            return tf.nest.map_structure(lambda x: x[:, :-1], frames)
        return frames
    if isinstance(batch, Mapping):
        batch = _items_of(logic, batch, gamma)
    obs, action = logic.agent.time_step_spec.observation, logic.agent.action_spec
    check_rows(type(logic.agent).__name__, batch, obs=obs, next_obs=obs, action=action)
    return _of_items(logic, batch, gamma, n_step)


def frames_of(
    logic: Logic, steps: Trajectory, info: Any, *, time_major: bool = True, first: Any = None
) -> Frames:
    """Converts steps to frames `[B, T + 1, ...]`, with the stored policy info."""
    spec = logic.agent.collect_policy.info_spec
    if info is None:
        lead = steps.reward.shape[:2]
        info = [tf.zeros([*lead, *s.shape], s.dtype) for s in tf.nest.flatten(spec)]
    plain = steps.replace(policy_extras=None)
    packed = tf.nest.pack_sequence_as(spec, info) if tf.nest.flatten(spec) else None
    return to_trajectory(plain, policy_info=packed, time_major=time_major, first=first)


def rollout_batch(logic: Logic, trajectory: Trajectory) -> dict[str, Frames]:
    """Converts a rollout `[T, B, ...]` to frames `[B, T + 1, ...]`, under `experience`.

    Raises:
      UserError: If episodes end without a row that shows the terminal observation.
    """
    if trajectory.valid is None:
        raise needs_boundaries(logic, "SAME_STEP")
    info = (trajectory.policy_extras or {}).get(INFO)
    return {EXPERIENCE: frames_of(logic, trajectory, info)}


def needs_boundaries(logic: Logic, got: str) -> UserError:
    """Returns the error for an autoreset mode without boundary frames."""
    return UserError(
        f"autoreset of the environments of {type(logic.agent).__name__}",
        expected="NEXT_STEP, whose rows after an episode's end are TF-Agents' boundary frames",
        got=got,
        remedy="Write make_env.autoreset = 'NEXT_STEP'.",
    )


def batch_spec(logic: Logic, obs_spec: Nest, action_spec: Nest, size: int = 2) -> Nest:
    """Returns the nest of specs of a batch of `size` rows for `experience_of`."""
    if logic.form in ("sequence", "rollout"):
        spec = logic.agent.collect_data_spec
        spec = tf.nest.map_structure(lambda s: tf.TensorSpec([size, 3, *s.shape], s.dtype), spec)
        return {EXPERIENCE: spec}

    def rows(spec: Nest) -> Nest:
        return tf.nest.map_structure(lambda s: tf.TensorSpec([size, *s.shape], s.dtype), spec)

    number = tf.TensorSpec([size], tf.float32)
    columns = {"obs": rows(obs_spec), "next_obs": rows(obs_spec), "action": rows(action_spec)}
    return {**columns, "reward": number, "discount": number}


def _wanted(form: str) -> str:
    return {
        "sequence": "tfrl.types.Sequences, since its train_sequence_length is None",
        "rollout": "its own rollouts",
    }.get(form, "single items, tfrl.types.Transition")


def _items_of(logic: Logic, columns: Mapping[str, Any], gamma: float) -> Transition:
    """Returns a Transition from columns; behavioural cloning needs only two of them."""
    name = type(logic.agent).__name__
    if not isinstance(logic.agent, BehavioralCloningAgent):
        return transition_of(name, columns)
    items = transition_of(name, columns, needed=("obs", "action"))
    size = tf.nest.flatten(items.action)[0].shape[0]
    usual = {
        "reward": tf.zeros([size]),
        "next_obs": items.obs,
        "discount": tf.fill([size], gamma),
    }
    return items.replace(**{n: x for n, x in usual.items() if getattr(items, n) is None})


def _of_items(logic: Logic, items: Transition, gamma: float, n_step: int) -> Nest:
    spec = logic.agent.collect_policy.info_spec
    info = ((items.extras or {}).get("policy_extras") or {}).get(INFO)
    if info is None:
        size = items.reward.shape[0]
        info = [tf.zeros([size, *s.shape], s.dtype) for s in tf.nest.flatten(spec)]
    pair = to_transitions(items.replace(extras=None), gamma)
    info = tf.nest.pack_sequence_as(spec, info)
    pair = pair._replace(action_step=pair.action_step._replace(info=info))
    if logic.form == "transition":
        return pair
    now, then = pair.time_step, pair.next_time_step
    frame = Frames(
        step_type=now.step_type,
        observation=now.observation,
        action=pair.action_step.action,
        policy_info=pair.action_step.info,
        next_step_type=then.step_type,
        reward=then.reward,
        discount=then.discount,
    )
    return frame if logic.form == "frame" else _as_frames(frame, pair, gamma, n_step)


def _as_frames(frame: Frames, pair: FramePair, gamma: float, n_step: int) -> Frames:
    """Makes frames `[N, n + 1, ...]`; their n steps have an item's reward and discount in all.

    The first step has the reward. The others have reward 0 and discount 1 / gamma, which cancels
    gamma.
    """
    nothing = frame.reward * 0.0
    mid = tf.fill(frame.step_type.shape, MID)
    between = frame._replace(
        step_type=mid, next_step_type=mid, reward=nothing, discount=nothing + 1.0 / gamma
    )
    last = frame._replace(
        step_type=pair.next_time_step.step_type,
        next_step_type=mid,
        observation=pair.next_time_step.observation,
        reward=nothing,
        discount=nothing + 1.0,
    )
    parts = [frame, *[between] * (n_step - 1), last]
    return tf.nest.map_structure(lambda *xs: tf.stack(xs, axis=1), *parts)


def weights_of(logic: Logic, batch: Nest) -> tf.Tensor | None:
    """Returns the weights of a batch, float32 `[N]` or `[N, T]`, or None.

    They are importance weights. Invalid rows have weight 0, and the weights of valid rows are
    scaled so that a loss is the mean over valid rows.

    Raises:
      UserError: For masks if there is not one row per item; for masks and importance weights if the
        loss takes no weights.
    """
    weights = field(batch, "weight")
    if weights is not None and isinstance(logic.agent, CategoricalDqnAgent):
        raise UserError(
            f"importance weights of {type(logic.agent).__name__}",
            expected="None, since its loss ignores weights",
            got=f"weights of shape {weights.shape}, as from prioritized replay",
            remedy="Sample uniformly, or use DqnAgent.",
        )
    if logic.form == "sequence" and isinstance(batch, Sequences):
        if not isinstance(logic.agent, BehavioralCloningAgent):
            return weights  # TF-Agents' step types mask the steps after an end
        counts = batch.steps.valid
        weights = None if weights is None else weights[:, tf.newaxis]
    else:
        counts = counted(batch)
        rows = not (isinstance(batch, Mapping) and EXPERIENCE in batch)
        rows &= not isinstance(logic.agent, CategoricalDqnAgent)  # it ignores weights
        if counts is not None and not (rows and counts.shape.rank == 1):
            raise UserError(
                f"the batch of {type(logic.agent).__name__}",
                expected="experience without masked items, or single items with a mask [N] for an "
                "agent whose loss takes weights",
                got=f"a mask of shape {counts.shape}",
                remedy="Remove masked items, and split minibatches with remainder='drop'.",
            )
    if counts is None:
        return weights
    counts = tf.cast(counts, tf.float32)
    counts *= tf.cast(tf.size(counts), tf.float32) / tf.maximum(tf.reduce_sum(counts), 1.0)
    return counts if weights is None else counts * weights


def scalars(loss: tf.Tensor, extra: Any) -> dict[str, tf.Tensor]:
    """Returns the loss, and the means of an agent's other metrics.

    Args:
      loss: The total loss.
      extra: `LossInfo.extra`: a nest of floats of any shape.
    """
    result = {"loss": tf.cast(loss, tf.float32)}
    for path, x in struct.paths(_named(extra)).items():
        if tf.is_tensor(x) and x.dtype.is_floating:
            # Behavioural cloning also reports a `loss` per example, without weights.
            result.setdefault(path, tf.cast(tf.reduce_mean(x), tf.float32))
    return result


def _named(extra: Any) -> Any:
    """Converts named tuples to dicts, without empty items."""
    if hasattr(extra, "_asdict"):
        extra = extra._asdict()
    if isinstance(extra, Mapping):
        parts = {str(name): _named(x) for name, x in extra.items()}
        return {n: x for n, x in parts.items() if x is not None and tf.nest.flatten(x)}
    return {} if extra is None or tf.nest.flatten(extra) == [] else extra
