"""DQN: the plan of its one update, and epsilon-greedy acting."""

from typing import Any, ClassVar

import tensorflow as tf

from tfrl import checks, distributions, networks, ops, seeding, specs, struct
from tfrl.agents import network_checks
from tfrl.agents.core import PARAM_UPDATES, PolicyParameters, Update, algorithm
from tfrl.agents.default_networks import default_torso
from tfrl.agents.dqn.losses import dqn_loss
from tfrl.agents.off_policy.agent import OffPolicy
from tfrl.checks import Bound
from tfrl.distributions.core import MASKED_LOGIT
from tfrl.distributions.discrete import Categorical
from tfrl.envs.action_masks import split_mask
from tfrl.errors import UserError
from tfrl.ops import TDExtra
from tfrl.ops.schedules import check_schedule, make_schedule
from tfrl.types import ActionOutput, AgentState, Nest

DEFAULT_HIDDEN = (64, 64)


_EPSILON_REMEDY = "Pass points [env step, share of random actions]: [[0, 1.0], [10000, 0.05]]."


# The largest exponent of Ape-X's epsilons, minus one.
_APE_X_ALPHA = 7.0


@algorithm
@struct.logic_dataclass
class DQN(OffPolicy):
    """Deep Q-network: Q-learning from replayed transitions, for one Discrete action.

    Double, dueling, n-step and prioritised learning are arguments; importance weights come with the
    rows (`Transition.weight`), priorities from `td_errors`. If the observation has an item
    `action_mask`, invalid actions are never taken or bootstrapped from, and the network does not
    see the mask.

    Source: Mnih et al. 2015, https://doi.org/10.1038/nature14236; van Hasselt et al. 2016,
    https://arxiv.org/abs/1509.06461; Wang et al. 2016, https://arxiv.org/abs/1511.06581; Schaul et
    al. 2016, https://arxiv.org/abs/1511.05952.

    Attributes:
      q: The Q-network; None for a head on `torso`.
      torso: Its torso; None for a ReLU MLP of `hidden` units (the Nature-CNN for an image).
      double: Whether the online network selects the action that the target network evaluates.
      dueling: Whether the head has one stream for the value and one for the advantages.
      huber_delta: Error beyond which the loss is linear; None for half the squared error.
      epsilon: The probability of random actions in `compute_actions`: a number, or a schedule over
        env steps.
      collector_epsilon: Ape-X's base of the collectors' epsilons, instead of `epsilon`: collector i
        of N acts with base^(1 + 7 i / (N - 1)). Horgan et al. 2018,
        https://arxiv.org/abs/1803.00933, use 0.4. None for `epsilon` in all.
      tau: Polyak factor of a target update; 1 for a copy.
      target_every: Learner steps between target updates; 1 with a small `tau` for a soft target.
    """

    q: networks.Network | None = None
    torso: networks.Torso | None = None
    double: bool = True
    dueling: bool = False
    huber_delta: float | None = 1.0
    epsilon: Any = ((0, 1.0), (10_000, 0.05))
    collector_epsilon: float | None = None
    tau: float = 1.0
    target_every: int = 500
    network: networks.Network = struct.derived()
    num_actions: int = struct.derived()

    screen_metrics: ClassVar[tuple[str, ...]] = ("q_mean", "epsilon")

    def __post_init__(self) -> None:
        """Checks the settings and fills in the default network."""
        super().__post_init__()
        owner = type(self).__name__
        checks.at_least(f"{owner}.target_every", self.target_every, 1)
        check_schedule(f"{owner}.epsilon", self.epsilon, 0.0, 1.0, _EPSILON_REMEDY)
        self.num_actions = _num_actions(owner, self.action_spec)
        input_spec, mask = split_mask(self.obs_spec)
        distributions.make_distribution(self.action_spec).check_mask(mask)
        network_checks.check_torso(f"{owner}.torso", self.torso, "make_torso(env.obs_spec)")
        if self.q is not None:
            network_checks.check_network(
                f"{owner}.q",
                self.q,
                f"a tfrl.networks network with {self.num_actions} outputs, one per action",
                "Pass QNetwork(torso=..., num_actions=...), with a Keras model as the torso "
                "KerasNetwork(model_fn=make_model, spec=env.obs_spec).",
                memory=False,
            )
            network_checks.check_value(
                f"{owner}.q",
                self.q,
                input_spec,
                self.normalize_obs,
                self.num_actions,
                values=self.policy_q,
            )
        self.network = self.q or self.make_head(self.torso or self._default_torso(input_spec))

    def _default_torso(self, input_spec: Nest) -> networks.Torso:
        hidden = DEFAULT_HIDDEN if self.hidden is None else self.hidden
        return default_torso(input_spec, hidden, self.obs_key, "relu")

    def bounds(self) -> dict[str, Bound]:
        """Returns the bounds of every number."""
        return {
            **super().bounds(),
            "huber_delta": Bound(0, closed=False, optional=True),
            "collector_epsilon": Bound(0, 1, optional=True),
        }

    # State.

    @property
    def target_period(self) -> int:
        """`target_every`."""
        return self.target_every

    def init(self, key: tf.Tensor) -> AgentState:
        """Makes fresh parameters, the group `q`, and its target network."""
        input_spec, _ = split_mask(self.obs_spec)
        epsilon = make_schedule(self.epsilon)(tf.constant(0, tf.int64))
        params = {"q": self.network.init(seeding.stream(key, "q"), input_spec)}
        return self.made_state(params, ("q",), {"epsilon": epsilon})

    def before_update(self, state: AgentState, timesteps: tf.Tensor) -> AgentState:
        """Sets the epsilon for acting."""
        epsilon = make_schedule(self.epsilon)(timesteps)
        return state.replace(extra={**state.extra, "epsilon": epsilon})

    # Acting.

    def collector_state(self, state: AgentState, task_id: int, num_tasks: int) -> AgentState:
        """Returns the state of one of several collectors, with its epsilon if configured."""
        if self.collector_epsilon is None:
            return state
        share = task_id / max(num_tasks - 1, 1)
        epsilon = tf.constant(self.collector_epsilon ** (1.0 + _APE_X_ALPHA * share), tf.float32)
        return state.replace(extra={**state.extra, "epsilon": epsilon})

    def action_values(self, state: AgentState, obs: Nest) -> tf.Tensor:
        """Returns Q(o, .), float32 `[..., A]`, very low for invalid actions."""
        inputs, mask = split_mask(self.normalized(state, obs))
        q = self.policy_q(self.network.apply(state.params["q"], inputs))
        return ops.mask_action_values(q, mask)

    def _chosen(self, logits: tf.Tensor, mask: Nest = None) -> Categorical:
        start, dtype = int(self.action_spec.minimum), self.action_spec.dtype
        return Categorical.from_logits(logits, mask, start=start, dtype=dtype)

    def compute_actions(
        self, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Takes the best action, or with probability epsilon any valid one."""
        values = self.action_values(state, obs)
        keys = seeding.streams(key, ("whether", "which"))
        uniform = self._chosen(tf.zeros_like(values), split_mask(obs)[1])
        explores = seeding.uniform(keys["whether"], tf.shape(values)[:-1]) < state.extra["epsilon"]
        action = tf.where(explores, uniform.sample(keys["which"]), self._best(values))
        return ActionOutput(action=action, carry=carry)

    def evaluate_actions(
        self, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Takes the best action, the first of equals."""
        return ActionOutput(action=self._best(self.action_values(state, obs)), carry=carry)

    def policy_parameters(
        self, state: AgentState, obs: Nest, carry: Nest = None
    ) -> tuple[PolicyParameters, Nest]:
        """Returns the values of all actions."""
        return {".": ("q_values", {"q_values": self.action_values(state, obs)})}, carry

    def exploration_parameters(
        self, state: AgentState, obs: Nest, carry: Nest = None
    ) -> PolicyParameters:
        """Returns epsilon of the uniform distribution over valid actions, the rest on the best."""
        values, epsilon = self.action_values(state, obs), state.extra["epsilon"]
        uniform = Categorical.from_logits(tf.zeros_like(values), split_mask(obs)[1])
        best = tf.one_hot(tf.argmax(values, axis=-1), self.num_actions)
        probabilities = epsilon * tf.exp(uniform.logits) + (1.0 - epsilon) * best
        possible = probabilities > 0.0
        logits = tf.math.log(tf.where(possible, probabilities, 1.0))
        return {".": ("categorical", {"logits": tf.where(possible, logits, MASKED_LOGIT)})}

    def _best(self, values: tf.Tensor) -> tf.Tensor:
        action = tf.cast(tf.argmax(values, axis=-1), self.action_spec.dtype)
        return action + tf.cast(int(self.action_spec.minimum), self.action_spec.dtype)

    # Hooks of subclasses.

    def make_head(self, torso: networks.Torso) -> networks.Network:
        """Returns the Q-network on a torso; any output from which `policy_q` follows."""
        kind = networks.DuelingQNetwork if self.dueling else networks.QNetwork
        return kind(torso=torso, num_actions=self.num_actions)

    def policy_q(self, q: tf.Tensor) -> tf.Tensor:
        """Returns the values that choose actions, float32 `[..., A]`, from the network's output."""
        return q

    def target_q(self, q: tf.Tensor) -> tf.Tensor:
        """Returns the values of o' in the target, float32 `[N, A]`, from the target network's."""
        return q

    def regression(
        self,
        q: tf.Tensor,
        next_q: tf.Tensor,
        batch: Nest,
        *,
        next_q_selector: tf.Tensor | None,
        next_mask: tf.Tensor | None,
    ) -> tuple[tf.Tensor, TDExtra]:
        """Returns the loss, and errors and targets `[N]`; see `losses.dqn_loss`.

        Args:
          q: The network's output at o, with gradient.
          next_q: `target_q` of the target network's output at o'.
          batch: The rows, a `Transition`.
          next_q_selector: `policy_q` of the network's output at o', float32 `[N, A]`; None without
            `double`.
          next_mask: bool `[N, A]`, the valid actions at o'; None for all.
        """
        return dqn_loss(
            q,
            next_q,
            batch,
            next_q_selector=next_q_selector,
            next_mask=next_mask,
            huber_delta=self.huber_delta,
        )

    # Learning.

    @property
    def updates(self) -> tuple[Update, ...]:
        """One update of the Q-network."""
        return (Update(name="dqn", groups=("q",), loss=self.loss),)

    def network_action(self, action: Nest) -> tf.Tensor:
        """Returns the index of the action, int32 `[N]`."""
        action = tf.convert_to_tensor(action)
        return tf.cast(action - tf.cast(int(self.action_spec.minimum), action.dtype), tf.int32)

    def loss(
        self, params: dict[str, Any], state: AgentState, batch: Nest, key: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The loss of `regression`, with the online network in training mode.

        Args:
          params: Values that gradients flow to.
          state: The agent's state, values.
          batch: Transitions from `prepare_minibatch`.
          key: int32 [2], for layers that draw random numbers.
        """
        loss, extra, after = self._loss(params, state, batch, key)
        mask = getattr(batch, "mask", None)
        metrics: dict[str, Any] = {
            "q_mean": ops.masked_mean(extra.target - extra.td_error, mask),
            "td_error": ops.masked_mean(tf.abs(extra.td_error), mask),
            "epsilon": state.extra["epsilon"],
        }
        if networks.split_leaves(after)[1]:
            metrics[PARAM_UPDATES] = {"q": after}
        return loss, metrics

    def _loss(
        self, params: dict[str, Any], state: AgentState, batch: Nest, key: tf.Tensor
    ) -> tuple[tf.Tensor, TDExtra, Nest]:
        inputs, _ = split_mask(batch.obs)
        next_seen, next_mask = split_mask(batch.next_obs)
        q, after = self.network.apply_training(params["q"], inputs, key)
        selector = None
        if self.double:
            selector = self.policy_q(self.network.apply(params["q"], next_seen))
        next_q = self.target_q(self.network.apply(state.target_params["q"], next_seen))
        loss, extra = self.regression(
            q, next_q, batch, next_q_selector=selector, next_mask=next_mask
        )
        return loss, extra, after

    def td_errors(self, state: AgentState, batch: Nest, key: tf.Tensor) -> tf.Tensor:
        """Returns |target - Q(o, a)|, float32 `[N]`; see `OffPolicy.td_errors`."""
        _, extra, _ = self._loss(state.params, state, self._prepared(state, batch), key)
        return tf.abs(extra.td_error)


def _num_actions(owner: str, spec: Nest) -> int:
    if specs.is_spec(spec) and specs.is_discrete(spec) and spec.shape.rank == 0:
        return specs.num_actions(spec)
    raise UserError(
        f"{owner}.action_spec",
        expected="one Discrete action",
        got=repr(spec),
        remedy="Choose PPO, which takes actions of any kind, or flatten the discrete actions "
        "into one with a wrapper.",
    )
