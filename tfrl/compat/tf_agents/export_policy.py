"""A policy in the layout of TF-Agents' PolicySaver."""

import contextlib
import pathlib
import warnings
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from absl import logging
from tf_agents.policies.policy_saver import PolicySaver

from tfrl.compat.tf_agents.as_tf_policy import as_tf_policy, as_variables
from tfrl.errors import UserError
from tfrl.experiment.export import quiet

# As TF-Agents' PolicySavedModelTrigger names them.
POLICY, COLLECT_POLICY, CHECKPOINTS = "policy", "collect_policy", "checkpoints"


def write_policies(
    agent: Any, agent_state: Any, directory: pathlib.Path, learner_steps: int | None = None
) -> dict[str, Any]:
    """Writes policies that `tf_agents.policies.SavedModelPyTFEagerPolicy` loads, and a checkpoint.

    - `policy/` acts greedily, `collect_policy/` as in training;
    - `checkpoints/<policy>_checkpoint_<learner steps>/` has the values of each, for
      `update_from_checkpoint`; that of another export of the same configuration fits too.

    Args:
      agent: The agent.
      agent_state: Its state; the values are copied.
      directory: The folder, which is made.
      learner_steps: The gradient steps behind the state, TF-Agents' train step; None for 0.

    Returns:
      What to say of it in `metadata.json`.

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
                remedy="Export it as saved_model.",
            ) from error
        # Each has its own: a checkpoint numbers the variables that its policy reads.
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
    """Keeps PolicySaver's remarks on names and on distributions off the screen."""
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
