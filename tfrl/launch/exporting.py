"""Exports the policy of a checkpoint in one of the formats, verified, with metadata."""

import datetime
import pathlib
import re
import shutil
from typing import Any, cast

import tensorflow as tf

from tfrl.errors import UserError
from tfrl.experiment import export_functions
from tfrl.experiment.checkpoints import CheckpointManager, Restored
from tfrl.experiment.export import save_functions, write_onnx, write_tflite
from tfrl.experiment.export_functions import PolicyFunctions, policy_functions
from tfrl.experiment.export_verify import AgentOracle, verify
from tfrl.experiment.metadata import params_digest
from tfrl.experiment.run_folder import RunFolder
from tfrl.launch.app import say
from tfrl.launch.multi_worker import restore_run
from tfrl.launch.settings import Settings
from tfrl.launch.training import params_of
from tfrl.storage import files, remote, working_copy
from tfrl.tasks.policy_export import TaskOracle, task_functions
from tfrl.tasks.workflow import TaskWorkflow
from tfrl.workflows import State, Workflow

_CHECKPOINT = re.compile(r"ckpt-(\d+)")


def export(
    settings: Settings,
    root_dir: str,
    form: str,
    target: pathlib.Path,
    *,
    checkpoint: str,
    seed: int,
    quantize: bool,
    verify: bool,
) -> dict[str, Any]:
    """Exports the policy of a checkpoint atomically.

    Args:
      settings: The run's configuration.
      root_dir: The run folder; only the export in it is changed.
      form: "saved_model", "tf_agents", "tflite" or "onnx".
      target: The folder to write; an existing one is replaced.
      checkpoint: "latest", "best", a number of env steps, or the folder of a checkpoint.
      seed: The seed of `setup`; the checkpoint's values replace its state.
      quantize: For tflite, whether weights become int8.
      verify: Whether to compare the export with the policy, in another process.

    Returns:
      The export's metadata and measurements, as JSON types.

    Raises:
      UserError: There is no such checkpoint, the policy cannot be exported, or the export does not
        act like the policy.
    """
    folder, workflow = RunFolder(root_dir), settings.workflow
    if workflow.worker_group is not None:
        raise UserError(
            "--strategy",
            expected="one process, which writes the export",
            got="several workers",
            remedy="Unset TF_CONFIG and pass --strategy=one_device.",
        )
    restored = _restore(folder, checkpoint)
    state = workflow.load(workflow.setup(seed), restored, environments=False)
    policy, oracle = _policy(workflow, state)
    temporary = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = files.temporary_name(target.parent)
        about = _write(form, workflow, state, policy, temporary, restored, quantize)
        measured = _verified(form, temporary, policy, oracle, quantize) if verify else None
        metadata = _metadata(folder, workflow, state, restored, policy, form)
        metadata |= {"export": about, "verification": measured}
        text = files.to_json(metadata, indent=2) + "\n"
        (temporary / export_functions.METADATA_FILE).write_text(text, encoding="utf-8")
        for file in sorted(temporary.rglob("*")):
            files.sync_file(file)
        files.replace_directory(temporary, target)
    except (OSError, tf.errors.OpError) as error:
        raise files.unwritable(f"policy folder {target}", error) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return _figures(form, target, metadata, restored)


def _verified(
    form: str, written: pathlib.Path, policy: PolicyFunctions, oracle: Any, quantize: bool
) -> dict[str, Any]:
    say(f"Verifying {form} in a process without tfrl.")
    return verify(form, written, policy, oracle, quantized=quantize)


def _policy(workflow: Workflow, state: State) -> tuple[PolicyFunctions, Any]:
    """Returns the functions of a run's policy, and the reference for their outputs."""
    if isinstance(workflow, TaskWorkflow):
        model = workflow.model(state)
        policy = task_functions(workflow.task, model)
        return policy, TaskOracle(workflow.task, model, policy)
    agent_state = workflow.agent_state(state)
    oracle = AgentOracle(workflow.acting_agent, agent_state)
    return policy_functions(workflow.acting_agent, agent_state), oracle


def _write(
    form: str,
    workflow: Workflow,
    state: State,
    policy: PolicyFunctions,
    written: pathlib.Path,
    restored: Restored,
    quantize: bool,
) -> dict[str, Any]:
    if form == "saved_model":
        save_functions(policy, written)
        return {"signatures": list(policy.functions)}
    if form == "tf_agents":
        if isinstance(workflow, TaskWorkflow):
            raise UserError(
                "--format=tf_agents",
                expected="a run of an agent",
                got=f"the task {type(workflow.task).__name__}, which has a model and no agent",
                remedy="Export it as saved_model, tflite or onnx.",
            )
        from tfrl.compat.tf_agents.as_tf_policy import write_policies

        agent_state = workflow.agent_state(state)
        steps = _learner_steps(restored)
        return write_policies(workflow.agent, agent_state, written, steps)
    written.mkdir()
    if form == "tflite":
        return write_tflite(policy, written, quantize=quantize)
    return write_onnx(policy, written)


def _restore(folder: RunFolder, checkpoint: str) -> Restored:
    """Reads the checkpoint that the flag names."""
    which = _which(checkpoint)
    if not isinstance(which, pathlib.Path):
        return restore_run(folder, None, which)
    name = _CHECKPOINT.fullmatch(which.name)
    if name is None or not which.is_dir():
        raise UserError(
            f"--checkpoint={checkpoint}",
            expected="latest, best, a number of env steps, or a folder ckpt-<env steps>",
            got="a folder with a different name" if which.is_dir() else "no such folder",
            remedy=f"Choose one in {folder.checkpoints}.",
        )
    restored = CheckpointManager(which.parent, read_only=True, log=say).restore(int(name[1]))
    return cast(Restored, restored)  # the folder exists


def _which(text: str) -> str | int | pathlib.Path:
    if text in ("latest", "best"):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    if remote.is_remote(text):
        parent, _, name = text.rstrip("/").rpartition("/")
        return working_copy.local(parent) / name
    return pathlib.Path(text).expanduser().absolute()


def _metadata(
    folder: RunFolder,
    workflow: Workflow,
    state: State,
    restored: Restored,
    policy: PolicyFunctions,
    form: str,
) -> dict[str, Any]:
    run = folder.read_metadata() or {}
    digest = params_digest(params_of(workflow.agent_state(state)))
    steps = workflow.env_steps(state)
    config = folder.operative_config
    return {
        "format": form,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "versions": export_functions.export_versions(form),
        "env_id": _env_id(run),
        "env_steps": steps,
        "learner_steps": _learner_steps(restored),
        "evaluation": _newest_evaluation(folder, steps, digest),
        "checkpoint": restored.path.name,
        "params_digest": digest,
        "specs": export_functions.specs_of(policy),
        "distribution": policy.distributions or None,
        "left_out": policy.left_out,
        "run": {name: run.get(name) for name in ("created", "versions", "git_hash", "seed")},
        "gin": config.read_text(encoding="utf-8") if config.is_file() else None,
    }


def _env_id(run: dict[str, Any]) -> str | None:
    """Returns the id of the training environments, None without a binding."""
    bound = run.get("configuration", {}).get("make_env.env_id")
    return None if bound is None else str(bound).strip("'\"")


def _learner_steps(restored: Restored) -> int | None:
    """Returns the learner steps of the checkpoint's parameters."""
    for path in ("learner/counters/learner_steps", "progress/learner_steps"):
        if path in restored.values:
            return int(restored.values[path])
    return None


def _newest_evaluation(folder: RunFolder, steps: int, digest: str) -> dict[str, Any] | None:
    """Returns the final evaluation of these parameters, or the last evaluation before them."""
    summary = folder.read_summary() or {}
    if (summary.get("env_steps"), summary.get("params_digest")) == (steps, digest):
        names = ("eval_return_mean", "eval_return_std", "eval_episodes")
        return {"env_steps": steps, **{name: summary.get(name) for name in names}}
    if not folder.metrics_jsonl.is_file():
        return None
    newest = None
    with folder.metrics_jsonl.open(encoding="utf-8") as rows:
        for line in rows:
            try:
                row = files.from_json(line)
            except ValueError:  # the last line, while the run writes it
                continue
            if row.get("eval_return_mean") is not None and row["env_steps"] <= steps:
                newest = {k: v for k, v in row.items() if k == "env_steps" or k[:5] == "eval_"}
    return newest


def _figures(
    form: str, target: pathlib.Path, metadata: dict[str, Any], restored: Restored
) -> dict[str, Any]:
    """Returns the values of the command's last line."""
    measured = metadata["verification"] or {}
    say(f"{target}, {form} of {restored.path.name}")
    for name, why in metadata["left_out"].items():
        say(f"  without {name}: {why}")
    return files.plain(
        {
            "output_dir": str(target),
            "format": form,
            "checkpoint": restored.path.name,
            "env_steps": metadata["env_steps"],
            "signatures": metadata["export"]["signatures"],
            "verified": bool(measured),
            "max_error": measured.get("max_error"),
            "equal": measured.get("equal"),
        }
    )
