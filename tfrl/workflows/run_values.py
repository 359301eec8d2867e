"""What a checkpoint holds of a run: its values by path, read and put back.

Environments on the host are left out, but for the statistics of their rewards: a resumed run begins
new episodes by the seeds that follow. What each replica has of its own is stacked on a leading
axis.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.envs.host_env import HostEnv
from tfrl.errors import UserError
from tfrl.types import Nest
from tfrl.workflows.run_state import Progress, State


def state_values(workflow: Any, program: Any, state: State) -> dict[str, Any]:
    """Returns every value of a run by path.

    Args:
      workflow: The `LearnerWorkflow`.
      program: That of the state.
      state: The newest state of the run.
    """
    progress = _gathered(workflow, _kept(workflow, state.progress))
    values = {f"progress/{p}": v for p, v in struct.paths(progress).items()}
    return {**values, **program.state_values()}


def state_paths(workflow: Any, program: Any, state: State) -> set[str]:
    """Returns the paths of `state_values`; the arguments are the same."""
    progress = _gathered(workflow, _kept(workflow, state.progress))
    return {f"progress/{p}" for p in struct.paths(progress)} | program.state_paths()


def load_values(
    workflow: Any, program: Any, state: State, values: Mapping[str, Any], environments: bool
) -> State:
    """Returns `state` with every value replaced.

    Args:
      workflow: The `LearnerWorkflow`.
      program: That of the state.
      state: The state of a run of it; consumed.
      values: As `state_values` gave them.
      environments: Whether the environments' states are replaced too.

    Raises:
      UserError: For the environments of another number of replicas or environments.
    """
    gathered = _gathered(workflow, _kept(workflow, state.progress))
    want = struct.paths(gathered)
    if not environments:
        kept = {p: x for p, x in want.items() if p.split("/")[0] in ("env_state", "carry")}
        values = {**values, **{f"progress/{p}": x for p, x in kept.items()}}
    _check_replicas(workflow, want, values)
    leaves = [tf.convert_to_tensor(values[f"progress/{p}"]) for p in want]
    progress = _scattered(workflow, tf.nest.pack_sequence_as(gathered, leaves))
    if isinstance(workflow.env, HostEnv):
        progress = _new_episodes(workflow, progress, state.progress, environments)
    program.load_values(values, environments=environments)
    program.iterations = int(progress.iterations)
    return state.with_progress(progress)


def _kept(workflow: Any, progress: Progress) -> Progress:
    """Progress without what a checkpoint cannot hold: environments on the host."""
    if not isinstance(workflow.env, HostEnv):
        return progress
    return progress.replace(env_state=workflow.env.kept_state(), carry=None)


def _gathered(workflow: Any, progress: Progress) -> Progress:
    """Progress with what each replica has of its own stacked on a leading axis [R]."""
    replicas = workflow.replicas
    if not replicas.several:
        return progress
    own = _of_replicas(progress)
    if replicas.num_workers == 1:
        stacked = struct.stack(replicas.per_replica(own))
    else:
        stacked = replicas.all_gather(own)
    return progress.replace(**stacked)


def _scattered(workflow: Any, progress: Progress) -> Progress:
    """The inverse of `_gathered`."""
    replicas = workflow.replicas
    if not replicas.several:
        return progress

    def own(stacked: Nest) -> Nest:
        return tf.nest.map_structure(lambda x: x[replicas.index()], stacked)

    return progress.replace(**replicas.run_traced(own, _of_replicas(progress)))


def _new_episodes(workflow: Any, progress: Progress, own: Progress, environments: bool) -> Progress:
    """Progress of a checkpoint with environments that begin anew, by seeds that follow."""
    if not environments:
        return progress.replace(env_state=own.env_state, carry=own.carry)
    key = seeding.fold_in(seeding.stream(progress.key, "episodes"), progress.iterations)
    make_carry = getattr(workflow.agent, "initial_carry", None)
    env = workflow.env
    env_state = env.reset(key)
    env.load_kept_state(progress.env_state)
    return progress.replace(
        env_state=env_state,
        carry=make_carry(env.num_envs) if make_carry else None,
    )


def _check_replicas(workflow: Any, want: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Refuses the environments of another number of replicas or environments."""
    wrong = [
        f"{p} of shape {tuple(values[f'progress/{p}'].shape)} for {tuple(x.shape)}"
        for p, x in want.items()
        if tuple(values[f"progress/{p}"].shape) != tuple(x.shape)
    ]
    if wrong:
        replicas = workflow.replicas
        raise UserError(
            "the environments of the checkpoint",
            expected=f"those of {workflow.env.num_envs} environments on "
            f"{replicas.num_replicas} replica{'s' * replicas.several}",
            got="; ".join(wrong[:3]),
            remedy="Go on with the num_envs and the strategy that the run was started with.",
        )


def _of_replicas(progress: Progress) -> dict[str, Nest]:
    """What each replica has of its own."""
    own = {"env_state": progress.env_state, "carry": progress.carry}
    return {name: nest for name, nest in own.items() if nest is not None}
