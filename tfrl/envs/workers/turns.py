"""Whose turn it is between the caller and one worker, and which episode comes next."""

from tfrl.envs.workers.protocol import WorkerState
from tfrl.errors import UserError


class Turns:
    """The caller's view of one worker.

    Attributes:
      generation: The running one, from 1; 0 before the first reset.
      next_episode: The number of the episode that a reset would begin: the one after the last
        episode of which the caller has seen a state, or which ended in a fault. So a run's seeds
        do not depend on how far workers were ahead when it was reset or stopped.
    """

    def __init__(self, worker_id: int, first_episode: int):
        """Begins before the first reset."""
        self.worker_id = worker_id
        self.generation = 0
        self.next_episode = first_episode
        self._awaiting: WorkerState | None = None

    def begin(self, generation: int) -> None:
        """Starts a generation: the caller has no state of it yet."""
        self.generation = generation
        self._awaiting = None

    def delivered(self, state: WorkerState) -> None:
        """Hears that the caller has been given a state."""
        self.next_episode = max(self.next_episode, state.episode + 1)
        self._awaiting = None if state.last else state

    def failed(self, episode: int) -> None:
        """Hears that an episode ended in a fault: its seed is not tried again."""
        self.next_episode = max(self.next_episode, episode + 1)

    def stop(self) -> None:
        """Hears that no action is awaited any more."""
        self._awaiting = None

    def take(self, generation: int | None) -> WorkerState | None:
        """Returns the state that an action of the caller's is for; None for an old generation's.

        Args:
          generation: That of the state for which the caller chose the action, or None.

        Raises:
          UserError: The worker awaits no action.
        """
        if generation is not None and generation != self.generation:
            return None
        state, self._awaiting = self._awaiting, None
        if state is None:
            raise UserError(
                f"send_action to environment worker {self.worker_id}",
                expected="one action for each state of it that get_state has returned",
                got="an action for a worker that awaits none",
                remedy="Call get_state first; the last state of an episode takes no action, the "
                "first of the next episode follows by itself.",
            )
        return state


def check_generation(generation: int | None, current: int) -> int:
    """Returns the number of a new generation: the given one, or that after the current one."""
    if generation is None:
        return current + 1
    if generation <= current:
        raise UserError(
            "generation of a reset",
            expected=f"a number above the running one, {current}",
            got=str(generation),
            remedy="Leave it out.",
        )
    return generation
