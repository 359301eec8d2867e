"""The base class of on-policy agents: networks, acting, values, advantages, statistics."""

from collections.abc import Callable
from typing import Any, ClassVar

import tensorflow as tf

from tfrl import checks, distributions, networks, ops, struct
from tfrl.agents import network_checks
from tfrl.agents.actor_critic import batch as batch_lib
from tfrl.agents.actor_critic.batch import PolicyBatch
from tfrl.agents.core import PARAM_UPDATES, NormalizingAgent, PolicyParameters, Update
from tfrl.agents.default_networks import default_policy, default_torso, with_memory
from tfrl.agents.rows import check_rows
from tfrl.checks import Bound
from tfrl.distributions import Distribution
from tfrl.envs.action_masks import split_mask
from tfrl.errors import UserError
from tfrl.ops import statistics
from tfrl.ops.schedules import make_schedule
from tfrl.types import ActionOutput, AgentState, Nest, Trajectory

# The policy extra that stores the recurrent state before a step.
STATE_IN = "state_in"
_TORSO = "torso=KerasNetwork(model_fn=make_model, spec=env.obs_spec)"
_POLICY = f"PolicyNetwork({_TORSO}, distribution=make_distribution(env.action_spec))"
_TYPICAL = (
    "Give one finite number; only entropy_coef takes a schedule. Typical: discount 0.99, "
    "gae_lambda 0.95, clip 0.2, value_coef 0.5, obs_clip 10, target_kl 0.02."
)


@struct.logic_dataclass
class ActorCritic(NormalizingAgent):
    """An on-policy agent with a policy and a value function; subclasses define the loss.

    Actions may be Discrete, MultiDiscrete, MultiBinary, Box, or a Dict or Tuple of them;
    observations any nest. If the observation has an item `action_mask` (see
    `tfrl.envs.wrappers.ActionMask`), the agent never takes an invalid action, and the networks do
    not see the mask.

    With `memory` the networks are recurrent and learn from sequences: a row of a minibatch is a
    sequence, which minibatches never split in time.

    BatchNormalization and Dropout layers of a `KerasNetwork` are in training mode only in the loss;
    acting, advantages and evaluation use inference mode. With such layers the ratio of the first
    minibatch is not exactly 1.

    Attributes:
      obs_spec: The nest of specs of one observation.
      action_spec: The nest of specs of one action.
      policy: The policy network; None for a head on `torso`.
      value: The value network; None for a head on `torso`.
      torso: The torso of both networks; None for a tanh MLP of `hidden` units (a CNN for images).
      shared_torso: Whether policy and value share the parameters of the torso.
      hidden: Layer sizes of the default torso if it is an MLP; None for 64, 64.
      memory: A recurrent cell after the torso, "lstm" or "gru"; None for no memory.
      memory_size: Its size; only with `memory`.
      sequence_length: Steps of backpropagation through time; None for the full rollout.
      squash: Whether continuous actions are squashed with tanh into their bounds.
      init_log_std: The initial log standard deviation of continuous actions; unused with `policy`.
      obs_key: The item of a Dict observation that the default torso takes ("a/b" for a nested
        one); None for all of it.
      value_obs_key: The item for the default value network, such as the "state" of a centralised
        critic (MAPPO: Yu et al. 2022, https://arxiv.org/abs/2103.01955); None for the policy's.
      discount: gamma.
      gae_lambda: lambda of the advantage estimator.
      gae_horizon: Length of the parts of a rollout for advantages, a divisor of the rollout length;
        None for the whole rollout.
      value_coef: Weight of the value loss.
      entropy_coef: Weight of the entropy bonus: a number, or a schedule over env steps.
      normalize_advantage: Whether advantages are normalised in each minibatch.
      normalize_obs: Whether observations are normalised by running statistics.
      obs_clip: Clipping bound of normalised observations.
      hyperparameters: Names of settings, among `in_state`, that become leaves of the state
        (`extra`), so that members of a population may differ in them.
    """

    obs_spec: Nest
    action_spec: Nest
    policy: networks.PolicyNetwork | None = None
    value: networks.ValueNetwork | None = None
    torso: networks.Torso | None = None
    shared_torso: bool = False
    hidden: tuple[int, ...] | None = None
    memory: str | None = None
    memory_size: int = 128
    sequence_length: int | None = None
    squash: bool = False
    init_log_std: float = 0.0
    discount: float = 0.99
    gae_lambda: float = 0.95
    gae_horizon: int | None = None
    value_coef: float = 0.5
    entropy_coef: Any = 0.0
    normalize_advantage: bool = True
    normalize_obs: bool = False
    obs_clip: float = 10.0
    obs_key: str | None = None
    value_obs_key: str | None = None
    hyperparameters: tuple[str, ...] = ()
    network: networks.ActorCriticNetwork = struct.derived()

    in_state: ClassVar[tuple[str, ...]] = ("discount", "gae_lambda", "value_coef", "entropy_coef")
    screen_metrics: ClassVar[tuple[str, ...]] = ("entropy", "approx_kl", "explained_variance")

    def __post_init__(self) -> None:
        """Checks numbers and fills in the default networks."""
        owner = type(self).__name__
        for name, bound in self.bounds().items():
            checks.number(f"{owner}.{name}", getattr(self, name), *bound, remedy=_TYPICAL)
        for name in ("sequence_length", "gae_horizon"):
            checks.at_least(
                f"{owner}.{name}",
                getattr(self, name),
                1,
                optional=True,
                remedy="Pass None for the whole rollout.",
            )
        checks.sizes(f"{owner}.hidden", self.hidden, optional=True)
        self.check_hyperparameters()
        make_schedule(self.entropy_coef)
        self._check_networks()
        self.network = self._make_network()
        self._check_mask()
        self._check_outputs()

    def bounds(self) -> dict[str, Bound]:
        """Returns the bounds of every number."""
        return {
            "discount": Bound(0, 1),
            "gae_lambda": Bound(0, 1),
            "value_coef": Bound(0),
            "obs_clip": Bound(0, closed=False),
            "init_log_std": Bound(-20, 2),
        }

    # Networks.

    @property
    def policy_network(self) -> networks.Network:
        """The policy: the argument, or the default."""
        return self.network.policy

    @property
    def value_network(self) -> networks.Network:
        """The value function: the argument, or the default."""
        return self.network.value

    @property
    def recurrent(self) -> bool:
        """Whether the agent has memory."""
        return self.network.recurrent

    def _check_networks(self) -> None:
        owner = type(self).__name__
        for name, head in (("policy", _POLICY), ("value", f"ValueNetwork({_TORSO})")):
            if getattr(self, name) is not None:
                network_checks.check_network(
                    f"{owner}.{name}",
                    getattr(self, name),
                    f"a tfrl.networks network that ends in a {name}",
                    "Wrap a Keras model as the torso, from a function that returns it: "
                    f"{name}={head}.",
                )
        example = f"{_TORSO}, or make_torso(env.obs_spec)"
        network_checks.check_torso(f"{owner}.torso", self.torso, example)
        for name in ("obs_key", "value_obs_key"):
            checks.instance(
                f"{owner}.{name}",
                getattr(self, name),
                str | None,
                "the name of an observation item, or None for the whole observation",
                remedy="Pass for example 'image', or 'camera/image' for a nested item.",
            )
        if self.policy is not None and self.memory is not None:
            raise UserError(
                f"{owner}.memory",
                expected="None with a custom policy",
                got=repr(self.memory),
                remedy="Put a RecurrentTorso into the policy, or leave out memory or policy.",
            )

    def _check_outputs(self) -> None:
        """Rejects a policy that outputs no distribution, and values that are not scalars."""
        owner, input_spec = type(self).__name__, split_mask(self.obs_spec)[0]
        if self.policy is not None:
            options = (self.action_spec, self.normalize_obs)
            network_checks.check_policy(f"{owner}.policy", self.policy, input_spec, *options)
        if self.value is not None:
            network_checks.check_value(f"{owner}.value", self.value, input_spec, self.normalize_obs)

    def _check_mask(self) -> None:
        """Rejects a mask that does not fit the actions; broadcasting would hide it."""
        mask = split_mask(self.obs_spec)[1]
        distribution = getattr(self.policy_network, "distribution", None)
        if mask is not None and isinstance(distribution, distributions.ActionDistribution):
            distribution.check_mask(mask)

    def _make_network(self) -> networks.ActorCriticNetwork:
        input_spec, _ = split_mask(self.obs_spec)

        hidden = (64, 64) if self.hidden is None else self.hidden

        def torso(key: str | None) -> networks.Torso:
            body = self.torso or default_torso(input_spec, hidden, key)
            return with_memory(body, self.memory, self.memory_size)

        def policy_on(torso: networks.Torso) -> networks.PolicyNetwork:
            return default_policy(torso, self.action_spec, self.squash, self.init_log_std)

        value_key = self.obs_key if self.value_obs_key is None else self.value_obs_key
        if self.shared_torso:
            head = networks.MLP(hidden=())
            return networks.ActorCriticNetwork(
                policy=policy_on(head),
                value=networks.ValueNetwork(torso=head),
                trunk=torso(self.obs_key),
            )
        policy = self.policy or policy_on(torso(self.obs_key))
        value = self.value or networks.ValueNetwork(torso=torso(value_key))
        return networks.ActorCriticNetwork(policy=policy, value=value)

    # State.

    def init(self, key: tf.Tensor) -> AgentState:
        """Makes fresh parameters and empty statistics.

        The groups are `policy` and `value`, plus `trunk` with a shared torso.
        """
        input_spec, _ = split_mask(self.obs_spec)
        return AgentState(
            params=self.network.init(key, input_spec),
            normalizer=statistics.init(self.obs_spec) if self.normalize_obs else None,
            extra={
                "entropy_coef": make_schedule(self.entropy_coef)(tf.constant(0, tf.int64)),
                **{
                    name: tf.constant(getattr(self, name), tf.float32)
                    for name in self.hyperparameters
                    if name != "entropy_coef"
                },
            },
        )

    def initial_carry(self, batch_size: int) -> Nest:
        """Returns the recurrent state `[B, ...]` at an episode start; None without memory."""
        return self.network.initial_carry(batch_size)

    # Acting.

    def _policy(self, state: AgentState, obs: Nest, carry: Nest) -> tuple[Any, Nest]:
        inputs, mask = split_mask(self.normalized(state, obs))
        return self.network.act(state.params, inputs, carry, mask)

    def compute_actions(
        self, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Samples actions; `extras["log_prob"]` is their float32 log-probability `[B]`.

        It is `log_prob` of the emitted action, as in the loss: for a saturated squashed policy
        `sample_and_log_prob` would differ, and the ratio would not start at 1. With memory
        `extras["state_in"]` is the carry before the step.
        """
        policy, after = self._policy(state, obs, carry)
        action = policy.sample(key)
        extras = {"log_prob": policy.log_prob(action)}
        if self.recurrent:
            extras[STATE_IN] = carry
        return ActionOutput(action=action, carry=after, extras=extras)

    def evaluate_actions(
        self, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Takes the mode of the policy."""
        policy, after = self._policy(state, obs, carry)
        return ActionOutput(action=policy.mode(), carry=after)

    def policy_parameters(
        self, state: AgentState, obs: Nest, carry: Nest = None
    ) -> tuple[PolicyParameters, Nest]:
        """Returns one distribution for each leaf of an action."""
        policy, after = self._policy(state, obs, carry)
        parts = policy.parts if isinstance(policy, distributions.Joint) else (policy,)
        paths = struct.paths(self.action_spec)
        return {path: part.parameters() for path, part in zip(paths, parts, strict=True)}, after

    # Learning.

    def loss(
        self, params: dict[str, Any], state: AgentState, batch: Nest, key: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The loss at `params`, networks in training mode; see `policy_loss`."""
        if self.learns_sequences:
            batch = batch_lib.time_major(batch)
        policy, value, after = self.evaluate_batch(params, batch, key)
        loss, metrics = self.policy_loss(policy, value, batch, state)
        return loss, {**metrics, PARAM_UPDATES: after} if after else metrics

    def policy_loss(
        self, policy: Distribution, value: tf.Tensor, batch: Nest, state: AgentState
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The agent's loss.

        Args:
          policy: The distribution at the observations of the batch.
          value: The values there, float32 `[N]`, or time-major `[T, S]` of sequences.
          batch: The rows, in the same layout.
          state: The agent's state.

        Returns:
          A scalar and `{name: scalar}` metrics.
        """
        raise NotImplementedError(f"{type(self).__name__} has no loss")

    def evaluate_batch(
        self, params: dict[str, Any], batch: Nest, key: tf.Tensor
    ) -> tuple[Any, tf.Tensor, dict[str, Any]]:
        """Returns policy and values of a batch's rows; see `ActorCriticNetwork.train`."""
        inputs, mask = split_mask(batch.obs)
        if not self.recurrent:
            return self.network.train(params, inputs, key, mask=mask)
        starts = getattr(batch, "starts", None)
        if starts is None:  # sequences of one episode each
            starts = tf.zeros_like(batch.log_prob, tf.bool)
        return self.network.train(
            params, inputs, key, carry=batch.state_in, starts=starts, mask=mask
        )

    @property
    def learns_sequences(self) -> bool:
        """Whether a row of a minibatch is a sequence `[T, ...]`."""
        return self.recurrent

    @property
    def updates(self) -> tuple[Update, ...]:
        """One update of all networks."""
        return (Update(name=self.update_name, groups=self.network.groups, loss=self.loss),)

    @property
    def why_not_episodes(self) -> str | None:
        """Why full episodes cannot replace rollouts; None if they can."""
        return None if self.gae_horizon is None else "gae_horizon cuts rollouts, not episodes"

    @property
    def update_name(self) -> str:
        """The name of the update and of its optimizer."""
        return type(self).__name__.lower()

    def num_rows(self, rollout_length: int, num_envs: int) -> int:
        """Returns the number of rows of `learner_batch`: steps, or sequences."""
        if self.gae_horizon is not None:
            self._part("gae_horizon", rollout_length)
        if not self.learns_sequences:
            return rollout_length * num_envs
        return rollout_length // self._part("sequence_length", rollout_length) * num_envs

    def _part(self, field: str, steps: int) -> int:
        """Returns the length of a part of the rollout, a field; a UserError unless it divides."""
        name = f"{type(self).__name__}.{field}"
        return batch_lib.check_length(name, getattr(self, field), steps)

    def learner_batch(
        self, state: AgentState, trajectory: Trajectory
    ) -> tuple[PolicyBatch, dict[str, tf.Tensor]]:
        """Computes values at both ends of every step, and advantages with true successors."""
        value, next_value = self.values_of(state, trajectory)
        advantage, target = self.advantages(trajectory, value, next_value, state)
        batch = PolicyBatch(
            obs=self.normalized(state, trajectory.obs),
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
        return self.as_rows(batch, trajectory), metrics

    def as_rows(self, batch: Any, trajectory: Trajectory) -> Any:
        """Turns a batch record `[T, B, ...]` into rows, or into sequences with memory."""
        if not self.learns_sequences:
            return batch_lib.rows(batch)
        steps = trajectory.termination.shape[0]
        length = self._part("sequence_length", steps)
        if batch.mask is None:
            # The mask counts steps, not sequences: the learner's own padding mask would have one
            # item per sequence.
            batch = batch.replace(mask=tf.ones(trajectory.termination.shape, tf.bool))
        if not self.recurrent:
            return batch_lib.sequences(batch, length)
        # The stored carry at an episode start is already zero, so resetting it again changes
        # nothing, and `starts` need not mark where sequences begin.
        starts = batch_lib.episode_starts(trajectory)
        first = batch_lib.first_of_each(trajectory.policy_extras[STATE_IN], length)
        return batch_lib.sequences(batch.replace(starts=starts), length).replace(state_in=first)

    def values_of(self, state: AgentState, trajectory: Trajectory) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns V(o_t) and V(o_{t+1}) at the true successor, float32 `[T, B]` each."""
        obs, _ = split_mask(self.normalized(state, trajectory.obs))
        next_obs, _ = split_mask(self.normalized(state, trajectory.next_obs))
        if not self.recurrent:
            both = tf.nest.map_structure(lambda *x: tf.concat(x, 0), obs, next_obs)  # [2 T, B]
            value, next_value = tf.split(self.network.values(state.params, both)[0], 2)
            return value, next_value
        # Every step has its stored carry, so all steps are computed at once, without a loop.
        shape = trajectory.termination.shape
        obs, next_obs, carry = map(
            batch_lib.rows, (obs, next_obs, trajectory.policy_extras[STATE_IN])
        )
        value, after = self.network.values(state.params, obs, carry)
        next_value, _ = self.network.values(state.params, next_obs, after)
        return tf.reshape(value, shape), tf.reshape(next_value, shape)

    def compute_values(self, state: AgentState, obs: Nest, carry: Nest = None) -> tf.Tensor:
        """Returns V(o), float32 `[...]`, of observations `[..., *obs_spec shape]`.

        Args:
          state: The agent's state; its statistics normalise the observations.
          obs: A nest that matches `obs_spec`, with any leading axes; with memory `[B, T, ...]`,
            sequences within an episode.
          carry: With memory, the recurrent state `[B, ...]` before each sequence.
        """
        inputs, _ = split_mask(self.normalized(state, obs))
        if not self.recurrent:
            return self.network.values(state.params, inputs)[0]
        inputs = tf.nest.map_structure(batch_lib.swapped, inputs)
        starts = tf.zeros(tf.nest.flatten(inputs)[0].shape[:2], tf.bool)
        params = struct.values(state.params)
        _, value, _ = self.network.train(params, inputs, None, carry=carry, starts=starts)
        return batch_lib.swapped(value)

    def advantages(
        self,
        trajectory: Trajectory,
        value: tf.Tensor,
        next_value: tf.Tensor,
        state: AgentState | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns advantages and targets of the value function, float32 `[T, B]` each."""
        steps = trajectory.termination.shape[0]
        lambda_: Any = self.setting(state, "gae_lambda")
        if self.gae_horizon is not None:
            horizon = self._part("gae_horizon", steps)
            # Without a lambda the last step of a horizon bootstraps from the value.
            last = tf.equal(tf.range(steps) % horizon, horizon - 1)
            lambda_ = tf.where(last, 0.0, lambda_)[:, tf.newaxis]  # [T, 1]
        return ops.gae(
            reward=trajectory.reward,
            value=value,
            next_value=next_value,
            termination=trajectory.termination,
            truncation=trajectory.truncation,
            discount=self.setting(state, "discount"),
            lambda_=lambda_,
            mask=trajectory.valid,
        )

    def check_batch(self, batch: Nest) -> None:
        """Raises a UserError for rows that do not match the specs; traced."""
        # Where networks take a part of the observation, a batch may have only this part.
        obs = struct.paths(getattr(batch, "obs", None))
        is_whole = obs.keys() == struct.paths(self.obs_spec).keys()
        specs = {"obs": self.obs_spec} if is_whole else {}
        check_rows(
            type(self).__name__,
            batch,
            **specs,
            action=self.action_spec,
            numbers=("log_prob", "advantage", "value_target", "value", "reward", "next_value"),
            flags=("mask", "starts", "termination", "truncation"),
            leading_axes=2 if self.learns_sequences else 1,
        )

    def prepare_minibatch(
        self, state: AgentState, batch: Nest, all_reduce_sum: Callable[[Nest], Nest]
    ) -> Nest:
        """Normalises the advantages over the minibatch's valid rows on all replicas."""
        self.check_batch(batch)
        if not self.normalize_advantage:
            return batch
        advantage = ops.normalize_advantage(
            batch.advantage, getattr(batch, "mask", None), all_reduce=all_reduce_sum
        )
        return batch.replace(advantage=advantage)

    def before_update(self, state: AgentState, timesteps: tf.Tensor) -> AgentState:
        """Sets the entropy coefficient of this update."""
        if "entropy_coef" in self.hyperparameters:
            return state
        schedule = make_schedule(self.entropy_coef)
        return state.replace(extra={**state.extra, "entropy_coef": schedule(timesteps)})
