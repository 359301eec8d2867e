"""What TF-Agents' `train` does with an agent of this library: one update of a `Learner`."""

import abc
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.distribute.statistics import merge_over_replicas
from tfrl.episodes import DEFAULT_MODULE_ID
from tfrl.errors import UserError
from tfrl.learners import Learner
from tfrl.types import AgentState, Nest, Trajectory

# What an update reports beside the loss of each optimizer's step.
_LOSS = "loss"


class Training(abc.ABC):
    """Experience of TF-Agents in, one update of the learner out. No tf.Module: it has no state.

    Attributes:
      agent: The agent.
      learner: A built learner of it.
      extras: Policy info as the agent's extras.
      env_steps: Env steps so far, for schedules; None for what the subclass counts.
      observes: Whether statistics are merged in `train`.
      jit: Whether losses and gradients are compiled by XLA.
      counter: Counts the updates.
    """

    # Whether schedules are those of the actions that follow, or of the experience learnt from.
    acts_next = True

    def __init__(
        self,
        agent: Any,
        learner: Learner,
        counter: tf.Variable,
        *,
        extras: Callable[[Nest], Nest],
        env_steps: Callable[[], Any] | None,
        observes: bool,
        jit: bool,
    ):
        """Keeps what it is given; see the attributes."""
        self.agent, self.learner, self.counter, self.extras = agent, learner, counter, extras
        self.env_steps, self.observes, self.jit = env_steps, observes, jit

    # What kinds of agents differ in.

    @abc.abstractmethod
    def rows(self, experience: Any, weights: Any) -> tuple[Nest, Nest]:
        """Returns what the losses take, and what `observe` takes, of one replica's experience."""

    @abc.abstractmethod
    def options(self, rows: Nest) -> dict[str, Any]:
        """Returns the arguments of `Learner.update` beside the batch, its key and env steps."""

    @abc.abstractmethod
    def steps_in(self, rows: Nest) -> tf.Tensor:
        """Returns by how many env steps a replica's rows go on, an int64 scalar."""

    @abc.abstractmethod
    def observe(self, state: AgentState, seen: Nest) -> AgentState:
        """Returns the state with the statistics of a replica's experience merged in."""

    def takes(self, shape: tf.TensorShape) -> bool:
        """Whether it can be traced for experience whose step types have this shape."""
        return bool(shape.is_fully_defined())

    def preprocess(self, experience: Any) -> Any:
        """Returns experience as `train` takes it."""
        return experience

    @property
    def row_spec(self) -> dict[str, tf.TensorSpec] | None:
        """The policy info that `preprocess` makes; None where it changes nothing."""
        return None

    # Traced.

    def state_values(self) -> AgentState:
        """Returns the values of the learner's variables."""
        return struct.values(self.learner.state)

    def update(self, experience: Any, weights: Any) -> dict[str, tf.Tensor]:
        """Takes one update, in the replica that this is called in or on all of them.

        The learner's loops and conditions stand outside of the replicas: from inside of them all
        meet, and one call does it for them.

        Returns:
          Metrics, float32 scalars; under several replicas the R-th part of each, since TF-Agents
          adds up what replicas return.
        """
        replicas = self.learner.replicas
        inside = replicas.several and not replicas.outside
        if not inside or isinstance(replicas.strategy, tf.distribute.TPUStrategy):
            return self._update(experience, weights)
        leaves = tf.nest.flatten((experience, weights))
        tensors = [i for i, x in enumerate(leaves) if x is not None]

        def together(strategy: Any, *values: Any) -> Any:
            found = list(leaves)
            for i, value in zip(tensors, values, strict=True):
                found[i] = value
            return self._update(*tf.nest.pack_sequence_as((experience, weights), found))

        context = tf.distribute.get_replica_context()
        metrics = context.merge_call(together, args=tuple(leaves[i] for i in tensors))
        # One tensor for all replicas would not be a value of each to TensorFlow.
        return {name: tf.identity(x) for name, x in metrics.items()}

    def _update(self, experience: Any, weights: Any) -> dict[str, tf.Tensor]:
        learner, replicas = self.learner, self.learner.replicas
        rows, seen = replicas.run(self.rows, experience, weights)
        steps = replicas.run(lambda x: replicas.sum(self.steps_in(x)), rows)
        before = tf.convert_to_tensor(learner.env_steps)
        after = before + replicas.any_replica(steps)
        timesteps = after if self.acts_next else before
        if self.env_steps is not None:
            after = timesteps = tf.cast(tf.convert_to_tensor(self.env_steps()), tf.int64)
        key = seeding.stream(tf.convert_to_tensor(learner.key), "tf_agents/train")
        results = learner.update(
            rows,
            key=seeding.fold_in(key, tf.convert_to_tensor(learner.learner_steps)),
            timesteps=timesteps,
            jit=self.jit,
            **self.options(rows),
        )
        metrics = replicas.any_replica(results[DEFAULT_MODULE_ID])
        # Only now: the losses must see the statistics that acted.
        with tf.control_dependencies(list(metrics.values())):
            if self.observes:
                self.merge_statistics(seen)
            learner.env_steps.assign(after)
            self.counter.assign_add(tf.ones([], self.counter.dtype))
        return _shared_out(metrics, replicas)

    def merge_statistics(self, seen: Nest) -> None:
        """Assigns the agent's statistics with those of new experience merged in."""
        learner, before = self.learner, self.state_values()
        if before.normalizer is None:
            return

        def merged(before: AgentState, seen: Nest) -> Nest:
            after = self.observe(before, seen).normalizer
            return merge_over_replicas(learner.replicas, before.normalizer, after)

        common = learner.replicas.any_replica(learner.replicas.run(merged, before, seen))
        learner.assign(DEFAULT_MODULE_ID, before, before.replace(normalizer=common))

    def observe_frames(self, obs: Nest) -> None:
        """Merges observations `[B, T, ...]` into the statistics, boundary frames among them."""
        obs = tf.nest.pack_sequence_as(self.agent.obs_spec, tf.nest.flatten(obs))
        leaf = tf.nest.flatten(obs)[0]
        before = self.state_values()
        if before.normalizer is None:
            return
        blank = tf.zeros(tf.shape(leaf)[:2])
        none = tf.zeros_like(blank, tf.bool)
        steps = Trajectory(
            obs=obs,
            action=(),
            reward=blank,
            next_obs=obs,
            termination=none,
            truncation=none,
            valid=~none,
        )
        self.learner.assign(DEFAULT_MODULE_ID, before, self.agent.observe(before, steps))

    def losses(self, experience: Any, weights: Any) -> dict[str, tf.Tensor]:
        """Returns the losses of a replica's experience, of the parameters as they are."""
        rows, _ = self.rows(experience, weights)
        replicas, state = self.learner.replicas, self.state_values()
        rows = self.agent.prepare_minibatch(state, rows, replicas.sum)
        key = seeding.stream(tf.convert_to_tensor(self.learner.key), "tf_agents/loss")
        found = {}
        for update in self.agent.updates:
            loss, _ = update.loss(state.params, state, rows, seeding.stream(key, update.name))
            found[f"{update.name}/{_LOSS}"] = loss
        return _shared_out(found, replicas)

    def packed(self, experience: Any) -> Any:
        """Returns experience with the nests of the agent in the place of plain ones."""
        info = experience.policy_info
        return experience._replace(
            observation=pack(self.agent.obs_spec, experience.observation),
            action=pack(self.agent.action_spec, experience.action),
            policy_info=self.extras(info) if tf.nest.flatten(info) else (),
        )


def pack(structure: Nest, plain: Nest) -> Nest:
    """Returns the leaves of a plain nest in the structure of another one."""
    return tf.nest.pack_sequence_as(structure, tf.nest.flatten(plain))


def total_loss(metrics: dict[str, tf.Tensor], updates: Any) -> tf.Tensor:
    """Returns the sum of the losses of all optimizers' steps.

    Args:
      metrics: What `Training` returned.
      updates: The agent's updates; one that waits in this step (TD3's delayed actor) has none.
    """
    if _LOSS in metrics:
        return metrics[_LOSS]
    losses = {n: x for n, x in metrics.items() if n.endswith(f"/{_LOSS}") and n.count("/") == 1}
    for update in updates:
        name = f"{update.name}/{_LOSS}"
        if update.every > 1 and name in losses:
            failed = metrics.get(f"nonfinite/{name}", tf.zeros([]))
            waits = tf.math.is_nan(losses[name]) & tf.equal(failed, 0.0)
            losses[name] = tf.where(waits, 0.0, losses[name])
    return tf.add_n(list(losses.values()))


def refuse_dynamic(experience: Any) -> tf.Operation:
    """Returns an operation that fails: experience must have static sizes where it is trained on.

    TF-Agents traces `train` once with open sizes, before there is any data.
    """
    message = UserError(
        "experience of train",
        expected="batch and time axes of static sizes",
        got=f"step_type of shape {experience.step_type.shape}",
        remedy="Batch with drop_remainder=True, sample with num_steps=, or for episodes of open "
        "lengths give as_tf_agent(..., max_sequence_length=N).",
    )
    return tf.debugging.Assert(tf.constant(False), [str(message)])


def _shared_out(metrics: dict[str, tf.Tensor], replicas: Any) -> dict[str, tf.Tensor]:
    if not replicas.several:
        return metrics
    return {name: x / float(replicas.num_replicas) for name, x in metrics.items()}


def check_weights(weights: Any, rows: int) -> tf.Tensor:
    """Returns importance weights float32 [N] of a scalar or a vector."""
    weights = tf.cast(weights, tf.float32)
    return tf.broadcast_to(weights, [rows])
