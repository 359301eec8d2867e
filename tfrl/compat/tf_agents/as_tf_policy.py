"""This library's policies as TF-Agents' `TFPolicy`, and in the layout of its PolicySaver."""

import contextlib
import pathlib
import warnings
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from absl import logging
from tf_agents.policies.policy_saver import PolicySaver
from tf_agents.policies.tf_policy import TFPolicy
from tf_agents.specs import tensor_spec as tensor_spec_lib
from tf_agents.trajectories import TimeStep, policy_step
from tf_agents.trajectories import time_step as time_step_lib

from tfrl import seeding, struct
from tfrl.compat.tf_agents import specs
from tfrl.errors import UserError
from tfrl.experiment.export import quiet
from tfrl.experiment.export_client import KEY_SCOPE
from tfrl.types import ActionOutput, AgentState, Nest

# Batch size of the trace that finds a policy's outputs; a size unlikely in other shapes.
_TRACED = 3


def as_tf_policy(
    agent: Any,
    state: AgentState,
    *,
    explore: bool = False,
    clip: bool | None = None,
    name: str | None = None,
) -> "ActingPolicy":
    """Makes a TF-Agents policy of an agent and its state.

    It works wherever a TFPolicy does: drivers, the Actor, `PolicySaver`, checkpoints. The action
    mask is the item `action_mask` of the observation, as everywhere in this library. A memory is
    the policy state; it is reset at a FIRST time step.

    Args:
      agent: An object with `obs_spec`, `action_spec`, `compute_actions` and `evaluate_actions`.
      state: The agent's state. Its variables are used directly, so that the policy follows their
        training; other leaves are copied into new variables.
      explore: If True, actions come from `compute_actions`, and its extras (for example `log_prob`)
        become the policy's info; else actions come from `evaluate_actions`.
      clip: Whether to clip actions to the bounds of their spec; None to clip unless `explore`.
        Experience for training needs unclipped actions: environments clip them anyway.
      name: The module's name.

    Returns:
      The policy. `variables()` returns the variables that acting reads. The seed of `action` has
      TF-Agents' meaning: None and a number are stateful, a tensor of two numbers is the key itself.
      The `distribution` of an exploring policy is the one that it samples from, see
      `policy_distributions.exploring_distribution`, which raises NotImplementedError for agents
      without one, for example TD3. Its info has a `log_prob` of 0, as in TF-Agents, since there is
      no action yet. Without `explore`, `distribution` is deterministic.

    Raises:
      UserError: For an agent that lacks an attribute, extras without a batch axis, or the state of
        another agent.
    """
    missing = [
        n
        for n in ("obs_spec", "action_spec", "compute_actions", "evaluate_actions")
        if not hasattr(agent, n)
    ]
    if missing:
        raise UserError(
            f"as_tf_policy({type(agent).__name__})",
            expected="an agent of tfrl",
            got=f"an object without {', '.join(missing)}",
            remedy="Pass an agent such as tfrl.agents.PPO, and its state.",
        )
    acting = _Acting(agent, as_variables(state), explore)
    return ActingPolicy(acting, clip=not explore if clip is None else clip, name=name)


def as_variables(state: AgentState) -> AgentState:
    """Returns the state with every leaf converted to a variable, if it is not one already."""

    def variable(path: str, leaf: Any) -> Any:
        if isinstance(leaf, tf.Variable) or hasattr(leaf, "assign"):
            return leaf
        return tf.Variable(leaf, trainable=False, name=path.replace(".", "state"))

    leaves = [variable(path, leaf) for path, leaf in struct.paths(state).items()]
    return tf.nest.pack_sequence_as(state, leaves)


class _Acting:
    """Calls an agent's action functions on plain nests.

    It is no tf.Module: a module would track the state, without saving it.
    """

    def __init__(self, agent: Any, state: AgentState, explore: bool):
        self.agent, self.state, self.explore = agent, state, explore
        carry = self.initial_carry(1)
        self._carry = carry
        self.carry_spec = _spec_of("carry", carry, 1)
        self._extras: Nest = None
        self.info_spec, self.variables = self._traced()

    def initial_carry(self, batch_size: Any) -> Nest:
        initial = getattr(self.agent, "initial_carry", None)
        return None if initial is None else initial(batch_size)

    def plain_carry(self, batch_size: Any) -> Nest:
        """Returns the initial carry as policy state."""
        return _plain(self.initial_carry(batch_size))

    def _packed(self, obs: Nest, carry: Nest) -> tuple[Nest, Nest]:
        """Packs plain nests into the agent's nests."""
        obs = tf.nest.pack_sequence_as(self.agent.obs_spec, tf.nest.flatten(obs))
        if self._carry is None:
            return obs, None
        return obs, tf.nest.pack_sequence_as(self._carry, tf.nest.flatten(carry))

    def distribution(self, obs: Nest, carry: Nest) -> Nest:
        """Returns the distributions of actions, a plain nest."""
        from tfrl.compat.tf_agents.distributions import exploring_distribution

        result = exploring_distribution(self.agent, self.state, *self._packed(obs, carry))
        return tf.nest.pack_sequence_as(
            specs.plain(self.agent.action_spec), tf.nest.flatten(result)
        )

    def __call__(self, obs: Nest, carry: Nest, key: tf.Tensor) -> tuple[Nest, Nest, Nest]:
        """Returns action, carry and extras as plain nests."""
        obs, carry = self._packed(obs, carry)
        act = self.agent.compute_actions if self.explore else self.agent.evaluate_actions
        output: ActionOutput = act(self.state, obs, key, carry)
        action = tf.nest.pack_sequence_as(
            specs.plain(self.agent.action_spec), tf.nest.flatten(output.action)
        )
        self._extras = output.extras
        return action, _plain(output.carry), _plain(output.extras)

    def extras(self, info: Nest) -> Nest:
        """Converts policy info back to extras."""
        if self._extras is None:
            return None
        return tf.nest.pack_sequence_as(self._extras, tf.nest.flatten(info))

    def _traced(self) -> tuple[Nest, list[tf.Variable]]:
        """Returns the outputs of acting beside actions, and the variables that it reads."""

        def batch(s: tf.TensorSpec) -> tf.TensorSpec:
            return tf.TensorSpec([_TRACED, *s.shape], s.dtype)

        obs = tf.nest.map_structure(batch, specs.plain(self.agent.obs_spec))
        carry = tf.nest.map_structure(batch, self.carry_spec)
        call = tf.function(self.__call__, autograph=False)
        try:
            traced = call.get_concrete_function(obs, carry, tf.TensorSpec([2], tf.int32))
        except Exception as error:  # acting on another agent's state raises various errors
            self._check_state(error)
            raise
        self._check_carry(traced.structured_outputs[1])
        info = _spec_of("info", traced.structured_outputs[2], _TRACED)
        return info, list(traced.graph.variables)

    def _check_state(self, error: Exception) -> None:
        """Raises a UserError from an error if the state does not match the agent's own."""
        if not hasattr(self.agent, "init"):
            return
        got = {p: tuple(x.shape) for p, x in struct.paths(self.state).items()}
        for path, leaf in struct.paths(self.agent.init(seeding.key(0))).items():
            if got.get(path) != tuple(leaf.shape):
                raise UserError(
                    f"{path} of the state for as_tf_policy({type(self.agent).__name__})",
                    expected=f"shape {tuple(leaf.shape)}, as in the agent's own init(key)",
                    got=f"shape {got[path]}" if path in got else "no leaf",
                    remedy="Pass the agent's own state.",
                ) from error

    def _check_carry(self, after: Nest) -> None:
        got = [tuple(x.shape[1:]) for x in tf.nest.flatten(after)]
        if got == [tuple(s.shape) for s in tf.nest.flatten(self.carry_spec)]:
            return
        raise UserError(
            f"carry of {type(self.agent).__name__}",
            expected="the structure and shapes of initial_carry(batch_size) after each step",
            got=f"{len(got)} tensors of shapes {got}",
            remedy="Define the agent's method initial_carry, which returns the initial recurrent "
            "state.",
        )


class ActingPolicy(TFPolicy):
    """See `as_tf_policy`."""

    def __init__(self, acting: _Acting, *, clip: bool, name: str | None):
        """Makes the specs, and stores the variables that acting reads.

        Args:
          acting: The action functions of the agent.
          clip: See `as_tf_policy`.
          name: See `as_tf_policy`.
        """
        agent = acting.agent
        super().__init__(
            time_step_lib.time_step_spec(specs.tensor_spec(agent.obs_spec, "observation")),
            specs.tensor_spec(agent.action_spec, "action"),
            policy_state_spec=acting.carry_spec,
            info_spec=acting.info_spec,
            clip=clip,
            name=name,
        )
        # By path, so that checkpoints of other programs match; without variables outside the state.
        names = {v.ref(): path for path, v in struct.paths(acting.state).items()}
        used = {v.ref(): v for v in acting.variables}
        self._acting_variables = {
            **{path: v for path, v in struct.paths(acting.state).items() if v.ref() in used},
            **{v.name: v for ref, v in used.items() if ref not in names},
        }
        self._call, self._extras, self._explores = acting.__call__, acting.extras, acting.explore
        self._drawn_from = acting.distribution

        def initial_state(batch_size: Any) -> Nest:
            if batch_size is None:
                return tf.nest.map_structure(lambda x: x[0], acting.plain_carry(1))
            return acting.plain_carry(batch_size)

        self._initial_state = initial_state

    def _get_initial_state(self, batch_size: Any) -> Nest:
        return self._initial_state(batch_size)

    def _action(self, time_step: TimeStep, policy_state: Nest, seed: Any) -> Any:
        action, carry, extras = self._call(time_step.observation, policy_state, key_of(seed))
        return policy_step.PolicyStep(action, carry, extras)

    def _distribution(self, time_step: TimeStep, policy_state: Nest) -> Any:
        from tensorflow_probability import distributions

        if self._explores:
            result = self._drawn_from(time_step.observation, policy_state)
            step = self._action(time_step, policy_state, None)
            return step._replace(action=result, info=_without_log_prob(step.info))
        step = self._action(time_step, policy_state, None)
        return step._replace(action=tf.nest.map_structure(distributions.Deterministic, step.action))

    def extras_of(self, info: Nest) -> Nest:
        """Converts policy info back to the agent's extras.

        Args:
          info: A nest like the info of a step, with any leading axes.
        """
        return self._extras(info)


def _without_log_prob(info: Nest) -> Nest:
    """Returns policy info with `log_prob` set to 0, since it belongs to one action."""
    if isinstance(info, dict) and "log_prob" in info:
        return {**info, "log_prob": tf.zeros_like(info["log_prob"])}
    return info


def key_of(seed: Any) -> tf.Tensor:
    """Converts a seed of TF-Agents to a key, int32 [2].

    Args:
      seed: None or a number for a stateful draw; two numbers are the key itself.
    """
    from tensorflow_probability import random

    with tf.name_scope(KEY_SCOPE):  # identifies the key of an exported policy
        return tf.ensure_shape(tf.cast(random.sanitize_seed(seed), tf.int32), [2])


def _plain(nest: Nest) -> Nest:
    """Returns a nest of only dicts and tuples, `()` if empty, as TF-Agents requires."""
    if nest is None or not struct.paths(nest):
        return ()
    result = specs.plain(nest)
    tf.nest.assert_same_structure(result, nest, check_types=False)
    return result


def _spec_of(name: str, nest: Nest, batch_size: int) -> Nest:
    """Returns the specs of one row of a batch, named by their paths."""
    plain = _plain(nest)

    def spec(path: str, x: tf.Tensor) -> Any:
        if x.shape.rank is None or not x.shape.rank or x.shape[0] != batch_size:
            raise UserError(
                f"{name} {path} of a policy",
                expected=f"a tensor [B, ...] with B = {batch_size}",
                got=f"shape {x.shape}",
                remedy="Return one value per observation from the agent.",
            )
        full = name if path == "." else f"{name}/{path}"
        return tensor_spec_lib.TensorSpec(x.shape[1:], x.dtype, full)

    result = struct.paths(plain)
    return tf.nest.pack_sequence_as(plain, [spec(path, x) for path, x in result.items()])


# The names of TF-Agents' PolicySavedModelTrigger.
POLICY, COLLECT_POLICY, CHECKPOINTS = "policy", "collect_policy", "checkpoints"


def write_policies(
    agent: Any, agent_state: Nest, directory: pathlib.Path, learner_steps: int | None = None
) -> dict[str, Any]:
    """Writes policies that `tf_agents.policies.SavedModelPyTFEagerPolicy` loads, and a checkpoint.

    - `policy/` acts greedily, `collect_policy/` as in training;
    - `checkpoints/<policy>_checkpoint_<learner steps>/` has the values of each policy, for
      `update_from_checkpoint`; checkpoints of other exports with the same configuration also match.

    Args:
      agent: The agent.
      agent_state: The agent's state; the values are copied.
      directory: The folder, which is created.
      learner_steps: The learner steps of the state, TF-Agents' train step; None for 0.

    Returns:
      The entries for `metadata.json`.

    Raises:
      UserError: TF-Agents cannot trace the policy.
    """
    state = as_variables(tf.nest.map_structure(_value, agent_state))
    step = tf.Variable(learner_steps or 0, dtype=tf.int64, trainable=False)
    written, checkpoints = [], []
    for name, explore in ((POLICY, False), (COLLECT_POLICY, True)):
        policy = as_tf_policy(agent, state, explore=explore)
        try:
            with quiet(), _quiet():
                saver = PolicySaver(policy, batch_size=None, train_step=step)
                saver.save(str(directory / name))
        except (ValueError, TypeError) as error:
            raise UserError(
                f"--format=tf_agents: {name} of {type(agent).__name__}",
                expected="a policy that TF-Agents' PolicySaver can write",
                got=next(iter(str(error).strip().splitlines()), type(error).__name__),
                remedy="Export it with --format=saved_model.",
            ) from error
        # One checkpoint per policy: it numbers the variables that the policy reads.
        checkpoint = pathlib.Path(CHECKPOINTS, f"{name}_checkpoint_{learner_steps or 0:010d}")
        saver.save_checkpoint(str(directory / checkpoint))
        written.append(name)
        checkpoints.append(str(checkpoint))
    return {
        "policies": written,
        "checkpoints": checkpoints,
        "signatures": ["action", "get_initial_state", "get_train_step"],
    }


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences PolicySaver's remarks about names and distributions."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)


def _value(leaf: Any) -> Any:
    return None if leaf is None else tf.convert_to_tensor(leaf)
