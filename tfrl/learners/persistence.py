"""The state of a Learner as its methods: read, loaded, saved, copied."""

from collections.abc import Collection, Mapping
from typing import Any

import tensorflow as tf
from typing_extensions import Self

from tfrl import struct
from tfrl.errors import UserError
from tfrl.learners import learner_state
from tfrl.learners.learner_core import COUNTERS, LearnerCore


class Persistence(LearnerCore):
    """State and checkpoints; a part of `Learner`."""

    def variables(self) -> dict[str, tf.Variable]:
        """Returns every variable by path: module states, optimizers, counters."""
        self._check_built("variables")
        found: dict[str, tf.Variable] = {}
        for module_id, state in self._states.items():
            for path, v in struct.paths(state).items():
                found[f"modules/{module_id}/{path}"] = v
        found.update({f"optimizers/{p}": v for p, v in self._optimizers.variables().items()})
        for name in COUNTERS:
            found[f"counters/{name}"] = getattr(self, name)
        return found

    def assign_variables(self, values: Mapping[str, Any]) -> None:
        """Assigns `{path: value}` to all of `variables()`.

        Raises:
          UserError: Naming every missing, extra or mis-shaped variable.
        """
        learner_state.assign_all("Learner.assign_variables", self.variables(), values)

    def get_state(
        self,
        components: Collection[str] | str | None = None,
        *,
        not_components: Collection[str] | str | None = None,
    ) -> dict[str, Any]:
        """Returns a copy of the learner's state.

        Args:
          components: What to return, of `rl_module`, `optimizer`, `counters`, `metrics`,
            `weights_seq_no`, or down to `rl_module/<module_id>` and
            `optimizer/<module_id>/<optimizer_name>`; None for all.
          not_components: What to leave out, likewise.

        Returns:
          `{"rl_module": {module_id: {path: array}}, "optimizer": {module_id: {optimizer_name:
          {path: array}}}, "counters": {...}, "metrics": {...}, "weights_seq_no": int}`.

        Raises:
          UserError: For an unknown component.
        """
        self._check_built("get_state")
        return learner_state.get_state(self, components, not_components)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Loads all that it is given, whatever `weights_seq_no` says.

        Args:
          state: What `get_state` returned, or a part of it.

        Raises:
          UserError: Naming every unknown, missing or mis-shaped part; nothing is loaded then.
        """
        self._check_built("set_state")
        learner_state.set_state(self, state)

    def load_if_newer(self, state: Mapping[str, Any]) -> bool:
        """Loads a state only if its `weights_seq_no` is above this learner's, for collectors.

        Args:
          state: What `get_state` returned.

        Returns:
          Whether it was loaded.
        """
        self._check_built("load_if_newer")
        if "weights_seq_no" not in state:
            raise UserError(
                "Learner.load_if_newer",
                expected="a state with weights_seq_no",
                got=f"one of {sorted(state)}",
                remedy="Take it by get_state(['rl_module', 'weights_seq_no']), or load it by "
                "set_state.",
            )
        if int(state["weights_seq_no"]) <= int(self.weights_seq_no.numpy()):
            return False
        learner_state.set_state(self, state)
        return True

    def save_to_path(self, path: Any) -> Any:
        """Saves the state into a folder, atomically; see `learners.checkpointing`."""
        from tfrl.learners import checkpointing

        self._check_built("save_to_path")
        return checkpointing.save_to_path(self, path)

    def restore_from_path(self, path: Any, component: str | None = None) -> None:
        """Restores what `save_to_path` saved, or one component such as `rl_module/policy_a`."""
        from tfrl.learners import checkpointing

        self._check_built("restore_from_path")
        checkpointing.restore_from_path(self, path, component)

    @classmethod
    def from_checkpoint(cls, path: Any, modules: Any = None, **kwargs: Any) -> Self:
        """Makes a built learner out of what `save_to_path` saved.

        Args:
          path: The folder.
          modules: The modules, where they cannot be described in JSON (Keras models, functions).
          **kwargs: Arguments of the constructor.
        """
        from tfrl.learners import checkpointing

        return checkpointing.from_checkpoint(cls, path, modules=modules, **kwargs)

    def clone(self) -> Self:
        """Returns a learner of the same modules with copies of all variables and optimizers."""
        self._check_built("clone")
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        learner_state.clone_into(self, other)
        return other
