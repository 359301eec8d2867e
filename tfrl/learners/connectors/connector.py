"""Pieces of the conversion from episodes to learner batches, and pipelines of pieces."""

import abc
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfrl.errors import UserError, did_you_mean

# Key of `shared_data` with the modules that may be trained; without it all may.
MODULES_TO_TRAIN = "modules_to_train"


class Connector(abc.ABC):
    """One step from episodes to a learner batch.

    The form of the batch depends on the position in the pipeline: rows by episode before
    `AgentToModule`, `{module_id: [EpisodeRows]}` after it, `{module_id: {column: array}}` after
    `Batch`, and `{module_id: TensorDict}` after `ToTensors`. A custom piece reads and changes the
    columns at its position.
    """

    @property
    def name(self) -> str:
        """The piece's name in pipelines: the name of its class."""
        return type(self).__name__

    @abc.abstractmethod
    def __call__(
        self,
        *,
        modules: Mapping[str, Any],
        states: Mapping[str, Any],
        batch: dict[Any, Any],
        episodes: Sequence[Any],
        shared_data: dict[str, Any],
    ) -> dict[Any, Any]:
        """Adds to the batch or changes it.

        Args:
          modules: `{module_id: module}` of the learner.
          states: `{module_id: AgentState}`; values of the behaviour states.
          batch: The result of earlier pieces; may be changed in place.
          episodes: The pipeline's input, `SingleAgentEpisode`s and `MultiAgentEpisode`s.
          shared_data: Data shared among the pieces and with the caller in one call. "metrics" is
            `{module_id: {name: float}}`; "modules_to_train" the ids that may be trained.

        Returns:
          The batch.
        """


class ConnectorPipeline(Connector):
    """Pieces that run one after the other; a pipeline is also a piece.

    Pieces are found by name or class; with duplicate names, the first.
    """

    def __init__(self, connectors: Iterable[Connector] = ()):
        """Makes a pipeline of pieces, in order."""
        self.connectors: list[Connector] = []
        for piece in connectors:
            self.append(piece)

    @property
    def names(self) -> list[str]:
        """The names of the pieces, in order."""
        return [piece.name for piece in self.connectors]

    def __len__(self) -> int:
        """The number of pieces."""
        return len(self.connectors)

    def __getitem__(self, which: str | type[Connector]) -> Connector:
        """Returns the piece of a name or class."""
        return self.connectors[self._index(which)]

    def __call__(
        self,
        *,
        modules: Mapping[str, Any],
        states: Mapping[str, Any],
        batch: dict[Any, Any],
        episodes: Sequence[Any],
        shared_data: dict[str, Any],
    ) -> dict[Any, Any]:
        """Runs all pieces, each on the result of the previous one."""
        for piece in self.connectors:
            batch = piece(
                modules=modules,
                states=states,
                batch=batch,
                episodes=episodes,
                shared_data=shared_data,
            )
        return batch

    def append(self, piece: Connector) -> "ConnectorPipeline":
        """Appends a piece; returns the pipeline, like all methods that change it."""
        self.connectors.append(_checked(piece))
        return self

    def prepend(self, piece: Connector) -> "ConnectorPipeline":
        """Inserts a piece at the front."""
        self.connectors.insert(0, _checked(piece))
        return self

    def insert_before(self, which: str | type[Connector], piece: Connector) -> "ConnectorPipeline":
        """Inserts a piece before another.

        Args:
          which: Name or class of the other.
          piece: The new one.

        Raises:
          UserError: If there is no such piece.
        """
        self.connectors.insert(self._index(which), _checked(piece))
        return self

    def insert_after(self, which: str | type[Connector], piece: Connector) -> "ConnectorPipeline":
        """Inserts a piece after another; see `insert_before`."""
        self.connectors.insert(self._index(which) + 1, _checked(piece))
        return self

    def remove(self, which: str | type[Connector]) -> "ConnectorPipeline":
        """Removes a piece; see `insert_before`."""
        del self.connectors[self._index(which)]
        return self

    def __repr__(self) -> str:
        return f"ConnectorPipeline({' > '.join(self.names)})"

    def _index(self, which: str | type[Connector]) -> int:
        for i, piece in enumerate(self.connectors):
            if piece.name == which or (isinstance(which, type) and type(piece) is which):
                return i
        name = which.__name__ if isinstance(which, type) else str(which)
        names = ", ".join(self.names) or "no piece"
        raise UserError(
            f"the connector {name!r}",
            expected=f"one of the pipeline's pieces: {names}",
            got="no such piece",
            remedy=did_you_mean(name, self.names) if self.names else "Append it first.",
        )


def _checked(piece: Any) -> Connector:
    if isinstance(piece, Connector):
        return piece
    got = f"the class {piece.__name__}" if isinstance(piece, type) else type(piece).__name__
    raise UserError(
        "a piece of a ConnectorPipeline",
        expected="an instance of a subclass of Connector",
        got=got,
        remedy="Subclass tfrl.learners.connectors.Connector and pass an instance.",
    )
