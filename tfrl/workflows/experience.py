"""The replay buffer in the graph, as an off-policy iteration uses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfrl.types import Nest, Trajectory

if TYPE_CHECKING:
    from tfrl.replay import InGraphBuffer, ReplicatedBuffer
    from tfrl.workflows.off_policy import OffPolicyWorkflow
    from tfrl.workflows.run_state import State


class InGraphExperience:
    """A replay buffer over the variables of a state.

    Attributes:
      buffer: The buffer.
      host_outputs: The dtypes of a call's outputs that Python processes; none.
    """

    host_outputs: tuple[tf.DType, ...] = ()

    def __init__(self, workflow: OffPolicyWorkflow, buffer: InGraphBuffer | ReplicatedBuffer):
        """Takes a buffer of one or several replicas."""
        self._workflow, self.buffer = workflow, buffer

    def can_sample(self, size: int, state: State) -> bool:
        """Whether the buffer has `size` items; called from Python."""
        ask = self._workflow.runner(state).once(
            state, ("can sample", size), lambda: self.buffer.can_sample(size)
        )
        return bool(ask())

    # Traced.

    def add(self, trajectory: Trajectory) -> None:
        """Stores a rollout."""
        self.buffer.add(trajectory)

    def sample(self, number: tf.Tensor, key: tf.Tensor, beta: tf.Tensor) -> Nest:
        """Draws the batch of a learner step; its number in the iteration does not matter."""
        batch = self.buffer.sample(key, self._workflow.batch_size, beta)
        # An unused index would cost time in every iteration of a graph.
        return batch if self._workflow.prioritized else batch.replace(index=None)

    def update_priorities(self, index: tf.Tensor, priorities: tf.Tensor) -> list[tf.Tensor]:
        """Sets priorities; returns no outputs for Python."""
        self.buffer.update_priorities(index, priorities)
        return []

    def take_outputs(self, outputs: list[tf.Tensor]) -> None:
        """Does nothing: `update_priorities` has no outputs."""

    def batch_form(self, key: tf.Tensor) -> Nest:
        """Returns the specs of a batch of one replica."""
        form: list[Nest] = []

        def sample() -> tf.Tensor:
            own = self._workflow.replicas.per_replica(self.sample(0, key, tf.constant(1.0)))[0]
            form[:] = [tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), own)]
            return tf.constant(0)

        tf.function(sample, autograph=False).get_concrete_function()  # and not run
        return form[0]

    # Checkpoints.

    def paths(self) -> set[str]:
        """Returns the paths of `values`, without a copy of the buffer."""
        group, own = self._workflow.worker_group, self.buffer.state_paths()
        if group is None:
            return own
        return {self._path_of(w, path) for w in range(group.num_workers) for path in own}

    def values(self) -> dict[str, Any]:
        """Returns the values of all processes' buffers, gathered at the chief."""
        return of_all_processes(self._workflow, self.buffer.state_values(), self._path_of)

    def load(self, values: Mapping[str, Any]) -> None:
        """Loads the result of `values`."""
        group = self._workflow.worker_group
        names = {path: path for path in self.buffer.state_paths()}
        if group is not None:
            names = {path: self._path_of(group.index, path) for path in names}
        self.buffer.load_values({path: values[name] for path, name in names.items()})

    def _path_of(self, worker: int, path: str) -> str:
        """Returns the path in a checkpoint of a value of a worker's buffer."""
        number, _, rest = path.partition("/")
        return f"{worker * self._workflow.replicas.num_local + int(number)}/{rest}"


def of_all_processes(
    workflow: OffPolicyWorkflow, own: Mapping[str, Any], path_of: Any
) -> dict[str, Any]:
    """Gathers the values of all processes' buffers at the chief; other processes return {}.

    Args:
      workflow: The workflow.
      own: The values of this process by path.
      path_of: `path_of(worker, path)` is the path of a value of another process.
    """
    group = workflow.worker_group
    if group is None:
        return dict(own)
    merged = {}
    for path in sorted(own):
        value = np.asarray(own[path])
        parts = group.gather_to_chief(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
        shape = [-1] if value.ndim == 1 else value.shape  # files differ in length
        for worker, part in enumerate(parts):
            merged[path_of(worker, path)] = part.view(value.dtype).reshape(shape)
    return merged
