"""Batches requests: all waiting rows, up to a maximum size, after a maximum wait."""

import asyncio
import collections
import concurrent.futures
import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tfrl.errors import UserError
from tfrl.serving.served_policy import RequestRows

Outputs = dict[str, np.ndarray]


class Busy(UserError):
    """The queue is full."""


class Batcher:
    """Batches the requests for one function of rows.

    Sizes are powers of two, padded with copies of the first row: a policy is traced for each batch
    size.
    """

    def __init__(
        self,
        predict: Callable[[RequestRows], Outputs],
        executor: concurrent.futures.Executor,
        *,
        max_batch_size: int,
        wait_seconds: float,
        max_queue: int,
        on_batch: Callable[[int], Any] = lambda rows: None,
    ):
        """Sets up an empty queue.

        Args:
          predict: Returns the outputs `[B, ...]` of rows.
          executor: The executor that calls `predict`.
          max_batch_size: The most rows of a batch, a power of two.
          wait_seconds: Seconds that the first request of a batch waits for others.
          max_queue: The most waiting rows.
          on_batch: Called with the number of rows of each batch.
        """
        self._predict, self._executor = predict, executor
        self._max, self._wait, self._max_queue = max_batch_size, wait_seconds, max_queue
        self._on_batch = on_batch
        self._queue: collections.deque[tuple[RequestRows, asyncio.Future[Outputs]]] = (
            collections.deque()
        )
        self._task: asyncio.Task[None] | None = None
        self._full = asyncio.Event()
        self.waiting = 0  # rows

    async def submit(self, rows: RequestRows) -> Outputs:
        """Returns the outputs of some rows.

        Raises:
          Busy: Too many rows wait.
        """
        if self.waiting + rows.size > self._max_queue and self.waiting:
            raise Busy(
                "the server",
                expected=f"at most {self._max_queue} waiting rows",
                got=f"{self.waiting} waiting rows and {rows.size} new rows",
                remedy="Retry later, or start the server with a larger --max_queue.",
            )
        future: asyncio.Future[Outputs] = asyncio.get_running_loop().create_future()
        self._queue.append((rows, future))
        self.waiting += rows.size
        if self.waiting >= self._max:
            self._full.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        """Runs batches until the queue is empty."""
        loop = asyncio.get_running_loop()
        while self._queue:
            if self._wait and self.waiting < self._max:
                self._full.clear()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._full.wait(), self._wait)
            requests = self._take()
            try:
                outputs = await loop.run_in_executor(
                    self._executor, self._run, [rows for rows, _ in requests]
                )
            except Exception as error:
                for _, future in requests:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), result in zip(requests, outputs, strict=True):
                if not future.done():  # the client may have left
                    future.set_result(result)

    def _take(self) -> list[tuple[RequestRows, "asyncio.Future[Outputs]"]]:
        """Takes the requests of the next batch: at least one, whatever its size."""
        taken: list[tuple[RequestRows, asyncio.Future[Outputs]]] = []
        size = 0
        while self._queue and (not taken or size + self._queue[0][0].size <= self._max):
            taken.append(self._queue.popleft())
            size += taken[-1][0].size
        self.waiting -= size
        return taken

    def _run(self, requests: list[RequestRows]) -> list[Outputs]:
        sizes = [rows.size for rows in requests]
        joined = _joined(requests)
        parts = [
            self._predict_padded(_part(joined, start, start + self._max))
            for start in range(0, joined.size, self._max)
        ]
        outputs = parts[0]
        if len(parts) > 1:
            outputs = {name: np.concatenate([p[name] for p in parts]) for name in outputs}
        if len(sizes) == 1:
            return [outputs]
        ends = np.cumsum(sizes)
        return [
            {name: x[end - size : end] for name, x in outputs.items()}
            for size, end in zip(sizes, ends, strict=True)
        ]

    def _predict_padded(self, rows: RequestRows) -> Outputs:
        self._on_batch(rows.size)
        size = 1 << (rows.size - 1).bit_length()
        if size == rows.size:
            return self._predict(rows)
        more = size - rows.size

        def padded(x: np.ndarray) -> np.ndarray:
            return np.concatenate([x, np.repeat(x[:1], more, axis=0)])

        filled = RequestRows(
            tuple(map(padded, rows.obs)), tuple(map(padded, rows.state)), padded(rows.starts), size
        )
        return {name: x[: rows.size] for name, x in self._predict(filled).items()}


def _joined(requests: list[RequestRows]) -> RequestRows:
    if len(requests) == 1:
        return requests[0]

    def join(columns: Any) -> tuple[np.ndarray, ...]:
        return tuple(np.concatenate(parts) for parts in zip(*columns, strict=True))

    return RequestRows(
        join(r.obs for r in requests),
        join(r.state for r in requests),
        np.concatenate([r.starts for r in requests]),
        sum(r.size for r in requests),
    )


def _part(rows: RequestRows, start: int, stop: int) -> RequestRows:
    if not start and stop >= rows.size:
        return rows
    part = slice(start, stop)
    return RequestRows(
        tuple(x[part] for x in rows.obs),
        tuple(x[part] for x in rows.state),
        rows.starts[part],
        len(rows.starts[part]),
    )
