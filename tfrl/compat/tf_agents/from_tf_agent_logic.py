"""Creates a TFAgent and finds its form and variables."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.agents.behavioral_cloning.behavioral_cloning_agent import BehavioralCloningAgent
from tf_agents.agents.categorical_dqn.categorical_dqn_agent import CategoricalDqnAgent
from tf_agents.agents.ddpg.ddpg_agent import DdpgAgent
from tf_agents.agents.ppo.ppo_agent import PPOAgent
from tf_agents.agents.reinforce.reinforce_agent import ReinforceAgent
from tf_agents.agents.sac.sac_agent import SacAgent
from tf_agents.agents.td3.td3_agent import Td3Agent
from tf_agents.agents.tf_agent import TFAgent
from tf_agents.policies.greedy_policy import GreedyPolicy
from tf_agents.specs import tensor_spec as tensor_spec_lib

from tfrl import keras, seeding, struct
from tfrl.compat.tf_agents import specs
from tfrl.compat.tf_agents.from_tf_agent_variables import AgentVariables, drawn_from, recorded
from tfrl.compat.tf_agents.trajectories import time_step_spec
from tfrl.errors import UserError
from tfrl.types import AgentState, Nest

_LOG = logging.getLogger(__name__)
_LOCK = threading.RLock()
_CONVERTED: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def tell_limits(logic: Logic) -> None:
    """Warns of known limits of the agent's class."""
    if isinstance(logic.agent, PPOAgent):
        _tell_of_ppo()
    if logic.form == "sequence" and isinstance(logic.agent, SacAgent | Td3Agent | DdpgAgent):
        _tell_of_padding()


@functools.cache
def _tell_of_ppo() -> None:
    """Warns once of the differences of TF-Agents' PPO from the standard algorithm."""
    lines, first = inspect.getsourcelines(PPOAgent.compute_advantages)
    at = next((i for i, line in enumerate(lines) if "final_value=value_preds" in line), 0)
    _LOG.warning(
        "TF-Agents' PPO with GAE bootstraps the last step of a rollout from V(s_{T-1}) instead of "
        "V(s_T), and does not bootstrap after a truncation: %s:%d. tfrl.agents.PPO handles both.",
        inspect.getsourcefile(PPOAgent),
        first + at,
    )


@functools.cache
def _tell_of_padding() -> None:
    """Warns once that losses summed over time take no weights `[B, T]`."""
    _LOG.warning(
        "TF-Agents' SAC, TD3 and DDPG sum losses over time before weighting: with a recurrent "
        "network they also train on steps after an episode's end in a sequence. DqnAgent masks "
        "these steps."
    )


class Logic:
    """A TFAgent whose own variables never change.

    Attributes:
      agent: The TFAgent.
      policy: The policy for evaluation.
      form: The input of its `train`: "transition" (pairs of time steps), "frame" (single frames),
        "frames" (n + 1 frames), "sequence" (any number, of one episode), "rollout" (any number, of
        several episodes).
      variables: Its variables.
      metrics: The names of the metrics of a training step.
      traced: The functions for eager calls, `{name: tf.function}`.
    """

    def __init__(self, make: Any, obs_spec: Nest, action_spec: Nest, learns_from: str | None):
        """Makes the agent.

        Args:
          make: A function `(time_step_spec, action_spec)` that makes the agent, or a TFAgent.
          obs_spec: The nest of specs of one observation.
          action_spec: The nest of specs of one action.
          learns_from: "replay" or "rollout"; None for the default of the agent's class.
        """
        self._make = make
        self._specs = (
            tensor_spec_lib.from_spec(time_step_spec(obs_spec)),
            specs.tensor_spec(action_spec, "action"),
        )
        self.agent, self._created = self._new(seeding.key(0))
        self._check_specs()
        self.form = _form(self.agent, learns_from)
        policy = self.agent.policy
        self.policy = policy if isinstance(policy, GreedyPolicy) else GreedyPolicy(policy)
        # Set once the training has been traced.
        self.variables: Any = None
        self.metrics: tuple[str, ...] = ()
        self.traced: dict[str, Any] = {}

    def _new(self, key: tf.Tensor) -> tuple[TFAgent, list[tf.Variable]]:
        """Returns an agent, and the variables created with it."""
        if isinstance(self._make, TFAgent):
            return self._make, []
        if not callable(self._make):
            raise _no_maker(_a(self._make))
        words = np.asarray(key).view(np.uint32)
        seed = int(words[0]) << 32 | int(words[1])
        with keras.seeded(seed), drawn_from(key), recorded() as created:
            try:
                agent = self._make(*self._specs)
            except TypeError as error:
                if not inspect.isclass(self._make):
                    raise
                reason = str(error).split("\n")[0]
                raise _no_maker(f"the class {self._make.__name__}: {reason}") from error
            if not isinstance(agent, TFAgent):
                raise _no_maker(repr(agent) if agent is None else _a(agent))
            agent.initialize()
        return agent, created

    def _check_specs(self) -> None:
        """Checks that the agent has these observation and action specs."""
        mine = (self.agent.time_step_spec.observation, self.agent.action_spec)
        wanted = (self._specs[0].observation, self._specs[1])
        for name, have, want in zip(("observation", "action"), mine, wanted, strict=True):
            kinds = [
                {path: (s.shape.as_list(), s.dtype.name) for path, s in struct.paths(x).items()}
                for x in (have, want)
            ]
            if kinds[0] != kinds[1]:
                raise UserError(
                    f"the {name} spec of {type(self.agent).__name__}",
                    expected=f"the environments' spec, {kinds[1]}",
                    got=str(kinds[0]),
                    remedy="Create the agent from the specs passed to make_agent.",
                )

    def find_variables(self, train: Callable[..., Any], batch_spec: Nest) -> None:
        """Traces a training step, which creates the optimizers' variables, and lists all variables.

        Args:
          train: A function of the batch.
          batch_spec: The nest of specs of a batch.
        """
        with recorded() as created, undecorated(self.agent):
            traced = tf.function(train, autograph=False).get_concrete_function(batch_spec)
        self.metrics = tuple(traced.structured_outputs)
        _check_plain(self.agent, traced.graph)
        known = [*self._created, *created, *traced.graph.variables]
        self.variables = AgentVariables(self.agent, known)
        unknown = self.variables.unknown(traced.graph)
        if unknown:
            raise UserError(
                f"{type(self.agent).__name__}, as a module of tfrl",
                expected="a state of variables that are attributes of the agent, its networks or "
                "its optimizers",
                got=f"other resources in its training: {unknown}",
                remedy="Create them in make_agent as tf.Variables.",
            )

    def state(self, key: tf.Tensor) -> AgentState:
        """Returns fresh values, drawn from a key; for a given TFAgent its present values."""
        values = struct.paths(self.variables.values())
        if not isinstance(self._make, TFAgent):
            agent, created = self._new(key)
            fresh = struct.paths(AgentVariables(agent, created).values())
            # Its optimizers have no slots yet; they start like the slots of the first agent.
            values = {path: fresh.get(path, x) for path, x in values.items()}
        return tf.nest.pack_sequence_as(self.variables.form, list(values.values()))


@contextlib.contextmanager
def undecorated(agent: TFAgent) -> Iterator[None]:
    """Removes `tf.function` from methods of an agent's class within the context.

    A tf.function keeps a trace over its first variables; here training and acting are compiled as a
    whole. AutoGraph's conversion of a method (for example of a condition on a tensor) is kept, as
    in `actor_loss` of TF-Agents' CqlSacAgent.
    """
    plain = {}
    for name in dir(type(agent)):
        function = inspect.getattr_static(type(agent), name)
        if isinstance(function, tf.types.experimental.PolymorphicFunction):
            plain[name] = functools.partial(_converted(function), agent)
    with _LOCK:
        # Bypasses `tf.Module`; an attribute of the object precedes one of its class.
        before = {name: vars(agent)[name] for name in plain if name in vars(agent)}
        vars(agent).update({name: plain[name] for name in plain if name not in before})
        try:
            with warnings.catch_warnings():
                if plain:  # AutoGraph recompiles TF-Agents' networks, which contain "is ()"
                    warnings.simplefilter("ignore", SyntaxWarning)
                yield
        finally:
            for name in plain:
                if name not in before:
                    del vars(agent)[name]


def _converted(function: Any) -> Callable[..., Any]:
    """Returns the Python function of a `tf.function`, converted by AutoGraph if enabled."""
    plain: Callable[..., Any] = function.python_function
    if not getattr(function, "_autograph", True):
        return tf.autograph.experimental.do_not_convert(plain)
    if plain not in _CONVERTED:
        _CONVERTED[plain] = tf.autograph.to_graph(plain)
    return _CONVERTED[plain]


def _check_plain(agent: TFAgent, graph: Any) -> None:
    """Raises a UserError for a tf.function inside a training step: it keeps variables."""
    calls = ("PartitionedCall", "StatefulPartitionedCall")
    for op in graph.get_operations():
        if op.type in calls and any(x.dtype == tf.resource for x in op.inputs):
            raise UserError(
                f"{type(agent).__name__}, as a module of tfrl",
                expected="plain methods, since training and acting compile as one function",
                got=f"a tf.function in its training, {op.get_attr('f').name}",
                remedy="Remove the decorator, in a subclass if TF-Agents defines the class.",
            )


def _form(agent: TFAgent, learns_from: str | None) -> str:
    if learns_from not in (None, "replay", "rollout"):
        raise UserError(
            "learns_from",
            expected="'replay', 'rollout' or None",
            got=repr(learns_from),
            remedy="Pass 'rollout' for an agent like PPO, or 'replay' for an agent like DQN.",
        )
    if learns_from == "rollout":
        return "rollout"
    if learns_from is None and isinstance(agent, PPOAgent | ReinforceAgent):
        return "rollout"
    length = agent.train_sequence_length
    if isinstance(agent, CategoricalDqnAgent):  # converts frames itself
        return "sequence" if length is None else "frames"
    if hasattr(agent, "_as_transition"):
        return "sequence" if length is None else "transition"
    converter = getattr(agent, "_as_trajectory", agent)
    if getattr(converter, "_num_outer_dims", 2) == 1:
        return "frame"
    if length is not None:
        return "frames"
    if learns_from == "replay" or isinstance(agent, BehavioralCloningAgent):
        return "sequence"
    raise UserError(
        f"{type(agent).__name__}, as a module of tfrl",
        expected="a known source of experience, a replay buffer or its own rollouts",
        got="a custom class without train_sequence_length",
        remedy="Pass learns_from='replay' or learns_from='rollout'.",
    )


def _no_maker(got: str) -> UserError:
    return UserError(
        "make_agent",
        expected="a function (time_step_spec, action_spec) that returns a TFAgent",
        got=got,
        remedy="Return the agent, such as tf_agents.agents.DqnAgent(...).",
    )


def _a(thing: Any) -> str:
    return f"a {type(thing).__name__}"
