"""The policy server behind REST and gRPC: versions, batches, metrics, the episode log."""

import asyncio
import concurrent.futures
import dataclasses
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import checks, extras, specs
from tfrl.errors import UserError
from tfrl.serving.batcher import Batcher
from tfrl.serving.episode_log import EpisodeLog
from tfrl.serving.served_policy import LOGGED, SIGNATURES, ServedPolicy


class NotFound(UserError):
    """The server has no such model, version or label."""


@dataclasses.dataclass(frozen=True)
class ServingOptions:
    """How requests are batched.

    Attributes:
      name: The name of the model.
      max_batch_size: The most rows of a batch, a power of two.
      batch_timeout_ms: Milliseconds that the first request of a batch waits for others.
      max_queue: The most waiting rows; a further request is rejected.
      max_request_mb: The largest request, in MB.
      log_episodes: The folder of the episode log, or None.
    """

    name: str = "policy"
    max_batch_size: int = 64
    batch_timeout_ms: float = 0.0
    max_queue: int = 4096
    max_request_mb: int = 64
    log_episodes: pathlib.Path | None = None

    def __post_init__(self) -> None:
        """Checks the numbers."""
        checks.at_least("max_batch_size", self.max_batch_size, 1)
        if self.max_batch_size & (self.max_batch_size - 1):
            raise UserError(
                "max_batch_size",
                expected="a power of two",
                got=str(self.max_batch_size),
                remedy=f"Pass a power of two such as {1 << self.max_batch_size.bit_length()}.",
            )


class PolicyServer:
    """Serves the versions of one model; its coroutines run in one event loop."""

    def __init__(
        self, policies: list[ServedPolicy], options: ServingOptions, labels: Mapping[str, int]
    ):
        """Prepares the policies for every batch size.

        Args:
          policies: At least one policy, of different versions.
          options: The options of batching.
          labels: `{label: version}`.
        """
        self.options, self.labels = options, dict(labels)
        self.policies = {policy.version: policy for policy in policies}
        self.newest = max(self.policies)
        self.metrics = Metrics()
        self.log = None
        if options.log_episodes is not None:
            self.log = EpisodeLog(options.log_episodes, self.metrics.episodes.inc)
        self._executor = concurrent.futures.ThreadPoolExecutor(1, "tfrl-predict")
        self._batchers: dict[tuple[int, bool], Batcher] = {}
        for policy in policies:
            for deterministic in (True, *([False] if policy.explores else [])):
                self._batchers[policy.version, deterministic] = self._batcher(policy, deterministic)
            self.metrics.version.labels(str(policy.version)).set(1)

    def _batcher(self, policy: ServedPolicy, deterministic: bool) -> Batcher:
        return Batcher(
            lambda rows: policy.predict(rows, deterministic),
            self._executor,
            max_batch_size=self.options.max_batch_size,
            wait_seconds=self.options.batch_timeout_ms / 1e3,
            max_queue=self.options.max_queue,
            on_batch=self.metrics.batch_rows.observe,
        )

    def warm_up(self) -> None:
        """Calls every policy with every batch size, since the first call of each size is slow."""
        for policy in self.policies.values():
            size = 1
            while size <= self.options.max_batch_size:
                columns = {
                    n: np.repeat(_example(s)[np.newaxis], size, axis=0)
                    for n, s in policy.inputs.items()
                }
                rows = policy.read(columns)
                for version, deterministic in self._batchers:
                    if version == policy.version:
                        policy.predict(rows, deterministic)
                size *= 2

    def policy_of(
        self, name: str, version: int | None = None, label: str | None = None
    ) -> ServedPolicy:
        """Returns the policy that a request names; by default the newest version.

        Raises:
          NotFound: The server does not have it.
        """
        if name != self.options.name:
            raise NotFound(f"model {name}", expected=self.options.name, got=name)
        if label is not None:
            if label not in self.labels:
                raise NotFound(
                    f"label {label}", expected=", ".join(self.labels) or "none", got=label
                )
            version = self.labels[label]
        version = self.newest if version is None else version
        if version not in self.policies:
            known = ", ".join(map(str, sorted(self.policies)))
            raise NotFound(f"version {version} of {name}", expected=known, got=str(version))
        return self.policies[version]

    async def predict(
        self, policy: ServedPolicy, signature: Any, columns: dict[str, Any], size: int
    ) -> dict[str, np.ndarray]:
        """Returns the outputs of a request.

        Args:
          policy: The policy.
          signature: "action" or "serving_default" for greedy actions, "explore" for sampled ones.
          columns: The request's inputs by name, leaves `[B, ...]`.
          size: The expected B.

        Raises:
          UserError: For a wrong request.
        """
        deterministic = SIGNATURES.get(signature) if isinstance(signature, str) else None
        if deterministic is None or (policy.version, deterministic) not in self._batchers:
            raise UserError(
                "signature_name",
                expected=" or ".join(n for n, d in SIGNATURES.items() if d or policy.explores),
                got=f"{signature!r:.60}",
            )
        logged = self.log.read(columns, size) if self.log is not None else {}
        if self.log is None and any(name in columns for name in LOGGED):
            raise UserError(
                "the inputs of the request",
                expected=f"no {' or '.join(n for n in LOGGED if n in columns)}",
                got="a server without episode logging",
                remedy="Start the server with --log_episodes=FOLDER.",
            )
        rows = policy.read(columns)
        outputs = await self._batchers[policy.version, deterministic].submit(rows)
        if self.log is not None and logged:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, self.log.add, policy, logged, rows, outputs)
        return outputs

    def close(self) -> None:
        """Ends the executor and closes the episode log."""
        self._executor.shutdown()
        if self.log is not None:
            self.log.close()


def _example(spec: tf.TensorSpec) -> np.ndarray:
    """An observation for the warm-up: zeros, or the smallest values of a range of integers."""
    if specs.is_discrete(spec):
        return specs.bounds(spec)[0]
    return np.zeros(spec.shape, spec.dtype.as_numpy_dtype)


class Metrics:
    """Prometheus' counters and histograms, in a separate registry."""

    def __init__(self) -> None:
        """Creates the metrics."""
        self._library = prometheus = extras.require("prometheus_client", "serve")
        self.registry = prometheus.CollectorRegistry()
        self.requests = prometheus.Counter(
            "tfrl_requests", "Requests for actions.", ["code"], registry=self.registry
        )
        self.seconds = prometheus.Histogram(
            "tfrl_request_seconds",
            "Seconds from a request's arrival to its response.",
            buckets=[1e-4 * 2**i for i in range(16)],
            registry=self.registry,
        )
        self.batch_rows = prometheus.Histogram(
            "tfrl_batch_rows",
            "Rows per batch.",
            buckets=[2**i for i in range(11)],
            registry=self.registry,
        )
        self.episodes = prometheus.Counter(
            "tfrl_logged_episodes", "Written episodes.", registry=self.registry
        )
        self.version = prometheus.Gauge(
            "tfrl_model_version", "Served versions.", ["version"], registry=self.registry
        )

    def text(self) -> tuple[bytes, str]:
        """Returns the metrics in Prometheus' text format, and the content type."""
        return self._library.generate_latest(self.registry), self._library.CONTENT_TYPE_LATEST

    def answered(self, code: int | str, started: float) -> None:
        """Counts a response.

        Args:
          code: The code of HTTP or gRPC.
          started: `time.perf_counter()` at the arrival of the request.
        """
        self.requests.labels(str(code)).inc()
        self.seconds.observe(time.perf_counter() - started)
