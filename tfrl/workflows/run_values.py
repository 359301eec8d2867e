"""Reads and loads the values of a run by path, for checkpoints.

Of environments on the host only the reward statistics are saved: a resumed run begins new episodes,
with the next seeds. Values that differ between replicas are stacked on a leading axis.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.envs.host_env import HostEnv
from tfrl.errors import UserError
from tfrl.learning import leaves
from tfrl.storage.checkpoint_format import check_fits
from tfrl.types import Nest
from tfrl.workflows.run_state import State

if TYPE_CHECKING:
    from tfrl.workflows.learner_workflow import LearnerWorkflow

_LEARNER, _PROGRESS, _REPLAY = "learner/", "progress/", "replay_buffer_state"
# Prefixes of the paths of environments and of the policy's carry.
PLAYED = (f"{_PROGRESS}env_state", f"{_PROGRESS}carry")
# Prefix of what a subclass has added to `replay_buffer_state`.
OWN_REPLAY = f"{_PROGRESS}{_REPLAY}"
# Counters that belong to the learner or follow from it.
_OF_LEARNER = ("learner", "learning_start")


def learner_values(workflow: LearnerWorkflow, state: State) -> dict[str, Any]:
    """Returns the values of the learner's variables by path, under `learner/`."""
    return {f"{_LEARNER}{p}": v for p, v in workflow.learner_of(state).variables().items()}


def load_learner(workflow: LearnerWorkflow, state: State, values: Mapping[str, Any]) -> None:
    """Loads the result of `learner_values`."""
    own = {p.removeprefix(_LEARNER): v for p, v in values.items() if p.startswith(_LEARNER)}
    workflow.learner_of(state).assign_variables(own)


def progress_values(workflow: LearnerWorkflow, state: State) -> dict[str, Any]:
    """Returns the other values by path, under `progress/`: counters, environments, carry."""
    return {f"{_PROGRESS}{p}": x for p, x in struct.paths(_gathered(workflow, state)).items()}


def load_progress(
    workflow: LearnerWorkflow, state: State, values: Mapping[str, Any], environments: bool
) -> State:
    """Returns a state with the values of `progress_values`.

    Args:
      workflow: The workflow.
      state: The newest state of a run; consumed.
      values: By path.
      environments: Whether to replace the environments' states too.

    Raises:
      UserError: If the numbers of replicas or environments differ.
    """
    gathered = _gathered(workflow, state)
    own = {f"{_PROGRESS}{p}": x for p, x in struct.paths(gathered).items()}

    def stays(path: str) -> bool:
        """Whether a value of the state stays."""
        if not environments and path.startswith((*PLAYED, OWN_REPLAY)):
            return True
        return path.startswith(OWN_REPLAY) and path not in values  # of an earlier version

    loaded = {p: x if stays(p) else values[p] for p, x in own.items()}
    _check_replicas(workflow, own, loaded)
    tensors = list(map(tf.convert_to_tensor, loaded.values()))
    progress = _scattered(workflow, tf.nest.pack_sequence_as(gathered, tensors))
    if isinstance(workflow.env, HostEnv):
        progress = _new_episodes(workflow, progress, state, environments)
    counters = {name: progress.pop(name) for name in _counters(state)}
    metrics = state.metrics.replace(**counters)
    if _REPLAY in progress:
        progress[_REPLAY] = _with_own_replay(workflow, state, progress[_REPLAY])
    return state.replace(metrics=metrics, **progress)


def _with_own_replay(workflow: LearnerWorkflow, state: State, values: Nest) -> Nest:
    """Returns `replay_buffer_state` with other values of what a subclass has added."""
    own = tf.nest.map_structure(leaves.put, workflow.own_replay_state(state), values)
    is_beside_a_buffer = isinstance(own, dict)
    return {**state.replay_buffer_state, **own} if is_beside_a_buffer else own


def _counters(state: State) -> dict[str, Any]:
    """Returns the counters of a run by name, also those that a workflow adds."""
    names = (field.name for field in dataclasses.fields(state.metrics))
    return {name: getattr(state.metrics, name) for name in names if name not in _OF_LEARNER}


def _progress(workflow: LearnerWorkflow, state: State) -> dict[str, Nest]:
    """Returns the values that change beside the variables, as far as checkpoints save them."""
    counters = _counters(state)
    env_state, carry = state.env_state, state.carry
    if isinstance(workflow.env, HostEnv):
        env_state, carry = workflow.env.kept_state(), None
    progress = {"env_state": env_state, "carry": carry, "key": state.key, **counters}
    own = workflow.own_replay_state(state)
    if tf.nest.flatten(own):
        progress[_REPLAY] = own
    return {name: nest for name, nest in progress.items() if nest is not None}


def _gathered(workflow: LearnerWorkflow, state: State) -> dict[str, Nest]:
    """Returns `_progress` with the values of each replica stacked on a leading axis [R]."""
    progress, replicas = _progress(workflow, state), workflow.replicas
    if not replicas.several:
        return progress
    own = _of_replicas(progress)
    if replicas.num_workers == 1:
        return {**progress, **struct.stack(replicas.per_replica(own))}
    return {**progress, **replicas.all_gather(own)}


def _scattered(workflow: LearnerWorkflow, progress: dict[str, Nest]) -> dict[str, Nest]:
    """The inverse of `_gathered`."""
    replicas = workflow.replicas
    if not replicas.several:
        return progress

    def own(stacked: Nest) -> Nest:
        return tf.nest.map_structure(lambda x: x[replicas.index()], stacked)

    return {**progress, **replicas.run_traced(own, _of_replicas(progress))}


def _new_episodes(
    workflow: LearnerWorkflow, progress: dict[str, Nest], own: State, environments: bool
) -> dict[str, Nest]:
    """Returns a checkpoint's progress with new episodes, which begin with the next seeds."""
    if not environments:
        return {**progress, "env_state": own.env_state, "carry": own.carry}
    key = seeding.fold_in(seeding.stream(progress["key"], "episodes"), progress["iterations"])
    make_carry = getattr(workflow.agent, "initial_carry", None)
    env = cast(HostEnv, workflow.env)
    env_state = env.reset(key)
    env.load_kept_state(progress["env_state"])
    carry = make_carry(env.num_envs) if make_carry else None
    return {**progress, "env_state": env_state, "carry": carry}


def _check_replicas(
    workflow: LearnerWorkflow, own: Mapping[str, Any], values: Mapping[str, Any]
) -> None:
    """Raises a UserError if the numbers of replicas or environments differ."""
    wrong = [
        f"{p.removeprefix(_PROGRESS)} of shape {tuple(values[p].shape)} for {tuple(x.shape)}"
        for p, x in own.items()
        if tuple(values[p].shape) != tuple(x.shape)
    ]
    if wrong:
        replicas = workflow.replicas
        raise UserError(
            "the environments of the checkpoint",
            expected=f"the values of {workflow.env.num_envs} environments on "
            f"{replicas.num_replicas} replica{'s' * replicas.several}",
            got="; ".join(wrong[:3]),
            remedy="Resume with the num_envs and the strategy of the original run.",
        )


def _of_replicas(progress: Mapping[str, Nest]) -> dict[str, Nest]:
    """Returns the values that differ between replicas."""
    return {name: progress[name] for name in ("env_state", "carry") if name in progress}


def filled(what: str, nest: Nest, values: Nest) -> Nest:
    """Returns a nest with other values, variables in place; a UserError for another structure."""
    own, new = struct.paths(nest), struct.paths(values)
    check_fits(
        what,
        own,
        new,
        expected="the structure and shapes of this workflow's state",
        remedy="Start from the state that this workflow's `setup` returns.",
    )
    new_leaves = [
        leaves.put(x, tf.convert_to_tensor(new[path], x.dtype)) for path, x in own.items()
    ]
    return tf.nest.pack_sequence_as(nest, new_leaves)
