"""Messages over a socket pair: pickled, each after its length.

Both ends belong to one user and one program, so pickle is safe here; no pickle reaches a file.
Protocol 5 writes arrays without conversion. The child's end blocks. The pool's end never blocks,
even if a child stops in the middle of a message or does not read.
"""

import pickle
import select
import socket
import struct
from collections import deque
from typing import Any

_LENGTH = struct.Struct("!Q")
_PROTOCOL = 5
_CHUNK = 1 << 16


def _framed(message: Any) -> bytes:
    data = pickle.dumps(message, _PROTOCOL)
    return _LENGTH.pack(len(data)) + data


class ChildChannel:
    """The end of a worker's process or thread; its methods block.

    When the other end is closed, `receive` raises EOFError and `send` a ConnectionError.
    """

    def __init__(self, connection: socket.socket):
        """Takes over a connected stream socket."""
        self._socket = connection
        self._socket.setblocking(True)
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def send(self, message: Any) -> None:
        """Sends a message; a pickling error is raised before the first byte."""
        self._socket.sendall(_framed(message))

    def receive(self) -> Any:
        """Waits for the next message and returns it."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        return pickle.loads(self._exactly(length))  # nosec B301

    def waiting(self) -> bool:
        """Whether data can be received, or the other end is closed."""
        return bool(self._poll.poll(0))

    def close(self) -> None:
        """Closes this end."""
        self._socket.close()

    def _exactly(self, length: int) -> bytearray:
        data = bytearray(length)
        view, filled = memoryview(data), 0
        while filled < length:
            try:
                count = self._socket.recv_into(view[filled:])
            except ConnectionError:
                count = 0
            if count == 0:
                raise EOFError("the pool closed the connection")
            filled += count
        return data


class PoolChannel:
    """The pool's end; no method blocks.

    Attributes:
      broken: The other end is closed, and all of its messages have been read.
    """

    def __init__(self, connection: socket.socket):
        """Takes over a connected stream socket."""
        self._socket = connection
        self._socket.setblocking(False)
        self._outgoing: deque[memoryview] = deque()
        self._incoming = bytearray()
        self.broken = False

    def fileno(self) -> int:
        """Returns the file descriptor to wait for."""
        return self._socket.fileno()

    @property
    def unsent(self) -> bool:
        """Whether posted bytes are still unsent: call `flush` when writable."""
        return bool(self._outgoing)

    def post(self, message: Any) -> None:
        """Sends a message without blocking, and keeps the unsent rest."""
        self._outgoing.append(memoryview(_framed(message)))
        self.flush()

    def flush(self) -> None:
        """Sends as many of the unsent bytes as possible without blocking."""
        while self._outgoing:
            data = self._outgoing[0]
            try:
                count = self._socket.send(data)
            except BlockingIOError:
                return
            except ConnectionError:
                # `read` detects the closed end; its earlier messages are kept.
                self._outgoing.clear()
                return
            if count == len(data):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = data[count:]

    def read(self) -> list[Any]:
        """Returns the messages that have arrived completely; may set `broken`."""
        messages: list[Any] = []
        while True:
            try:
                chunk = self._socket.recv(_CHUNK)
            except BlockingIOError:
                return messages
            except ConnectionError:
                chunk = b""
            if not chunk:
                self.broken = True
                return messages
            self._incoming += chunk
            self._unpack(messages)
            if len(chunk) < _CHUNK:
                return messages

    def _unpack(self, messages: list[Any]) -> None:
        start, size = 0, len(self._incoming)
        with memoryview(self._incoming) as view:
            while size - start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(view, start)
                end = start + _LENGTH.size + length
                if end > size:
                    break
                # The slice has no name: a live one would prevent cutting the bytes below.
                messages.append(pickle.loads(view[start + _LENGTH.size : end]))  # nosec B301
                start = end
        if start:
            del self._incoming[:start]

    def close(self) -> None:
        """Closes this end, which the other end detects."""
        self._socket.close()
