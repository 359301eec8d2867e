"""`tfrl.load`: the policy of a run folder, or of a SavedModel folder.

This module defines no absl flags, so that a program with other flags can import it.
"""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfrl import checks
from tfrl.errors import UserError
from tfrl.experiment.run_folder import RunFolder
from tfrl.experiment.saved_policy import SavedPolicy
from tfrl.launch import multi_worker, run_config, settings
from tfrl.loading import distrust
from tfrl.rollout.policy import Policy
from tfrl.storage import remote, working_copy

if TYPE_CHECKING:
    from tfrl.envs.core import Env
    from tfrl.workflows import State, Workflow


def load(
    folder: str | os.PathLike[str],
    checkpoint: str | int = "latest",
    *,
    bindings: Sequence[str] | Mapping[str, Any] = (),
    allow_code: bool = False,
    seed: int = 0,
) -> "RunPolicy | SavedPolicy":
    """Loads a trained policy, which predicts actions in NumPy.

    Args:
      folder: A run folder, which may be remote, such as gs://bucket/run; or the folder of a
        SavedModel, from training (`policy/`) or `tfrl-export` (`export/saved_model`).
      checkpoint: For a run folder: "latest", "best" (by evaluation), or a number of env steps.
      bindings: Gin bindings that override the run's: `{"make_env.num_envs": 1}`.
      allow_code: Whether to import Python modules that the run folder names.
      seed: The seed of sampled actions.

    Returns:
      The policy: `predict(obs)`; for a run folder also `env()` and `workflow()`.

    Raises:
      UserError: There is no policy, no such checkpoint, or the folder names code.
    """
    checks.instance("folder of tfrl.load", folder, str | os.PathLike, "the path of a folder")
    name = os.fspath(folder)
    root = working_copy.local(name)
    if (root / "saved_model.pb").is_file():
        if checkpoint != "latest":
            raise UserError(
                f"tfrl.load({str(folder)!r})",
                expected="checkpoint='latest', since a SavedModel has one policy",
                got=repr(checkpoint),
                remedy="Load the run folder, or export that checkpoint with tfrl-export.",
            )
        return SavedPolicy(root, seed)
    if not run_config.holds(name):
        is_remote = remote.is_remote(name)
        raise UserError(
            f"tfrl.load({str(folder)!r})",
            expected="a run folder (with operative_config.gin) or the folder of a SavedModel",
            got="neither" if root.is_dir() else "no such folder",
            remedy="Pass the root_dir of a training run, or a folder that tfrl-export wrote"
            + (": copy a SavedModel to this machine first." if is_remote else "."),
        )
    lines = settings.binding_lines(bindings) if isinstance(bindings, Mapping) else list(bindings)
    try:
        files = run_config.read(name, (), lines, allow_code=allow_code)
        workflow = settings.assemble(files, lines).workflow
    finally:
        distrust(None)
    return RunPolicy(RunFolder(name), workflow, checkpoint, seed)


class RunPolicy(Policy):
    """The policy of a run's checkpoint.

    Attributes:
      env_steps: The env steps of the checkpoint.
      path: The checkpoint's folder.
    """

    def __init__(
        self, folder: RunFolder, workflow: "Workflow", checkpoint: str | int, seed: int = 0
    ):
        """Restores the checkpoint; see `load`."""
        restored = multi_worker.restore_run(folder, None, checkpoint)
        metadata = folder.read_metadata() or {}
        if metadata.get("compile_choices"):
            workflow.use_compile(metadata["compile_choices"])
        agent = getattr(workflow, "agent", None)
        if agent is None:
            raise UserError(
                f"tfrl.load of {folder.root}",
                expected="a run of an agent",
                got=f"a run of {type(workflow).__name__}, which has no agent",
                remedy=f"Load the SavedModel of its policy: {folder.policy}.",
            )
        state = workflow.load(workflow.setup(0), restored, environments=False)
        super().__init__(agent, workflow.agent_state(state), seed)
        self.env_steps = workflow.env_steps(state)
        self.path = restored.path
        self._folder, self._workflow = folder, workflow

    def env(self, num_envs: int = 1, *, render: bool = False) -> "Env":
        """Makes separate environments of the kind that the run is evaluated on.

        Args:
          num_envs: The number of environments.
          render: Whether they can render; device environments always can.
        """
        from tfrl.envs.host_env import HostEnv

        checks.at_least("num_envs", num_envs, 1)
        env = self._workflow.video_env()
        if isinstance(env, HostEnv):
            return env.copy(num_envs, render)
        return env.with_num_envs(num_envs)

    def workflow(self) -> tuple["Workflow", "State"]:
        """Returns workflow and state to continue from this checkpoint: `workflow.learn(state)`.

        With the run folder as `root_dir` it continues there; later checkpoints are dropped.
        """
        workflow = self._workflow
        restored = multi_worker.restore_run(self._folder, None, self.path.name.split("-")[1])
        return workflow, workflow.load(workflow.setup(0), restored)

    def close(self) -> None:
        """Frees the environments of the run."""
        self._workflow.close()

    def __repr__(self) -> str:
        """Names the run and the checkpoint."""
        return f"RunPolicy({self._workflow.describe()}, {self.path})"
