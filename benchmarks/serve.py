"""Load on `tfrl-serve`: requests per second and latencies, against the SavedModel in a loop.

  python -m benchmarks.serve --clients=1,8,32 --seconds=5
  python -m benchmarks.serve --grpc

Trains PPO on CartPole for one iteration and serves its checkpoint. Clients in another process
request one action after the other over persistent connections, by HTTP, with --grpc by gRPC too.
Ends with a JSON line for the SavedModel's signature in a loop, and one for each number of clients.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks import measure
from tfrl.launch.local_engine import free_ports

OBS = [0.01, 0.02, -0.03, 0.04]


def figures(seconds: Sequence[float], elapsed: float) -> dict[str, float]:
    """Returns requests per second, p50 and p99 in milliseconds."""
    ordered = sorted(seconds)
    return {
        "requests_per_second": round(len(ordered) / elapsed, 1),
        "p50_ms": round(1e3 * ordered[len(ordered) // 2], 3),
        "p99_ms": round(1e3 * ordered[int(0.99 * len(ordered))], 3),
    }


def in_a_loop(call: Callable[[], object], seconds: float) -> dict[str, float]:
    """Calls a function for some seconds, after a hundred warm-up calls."""
    for _ in range(100):
        call()
    taken, start = [], time.perf_counter()
    while (now := time.perf_counter()) - start < seconds:
        call()
        taken.append(time.perf_counter() - now)
    return figures(taken, time.perf_counter() - start)


async def _client(port: int, body: bytes, until: float, taken: list[float]) -> None:
    """One connection of HTTP/1.1 that asks again and again."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = ("POST /v1/models/policy:predict HTTP/1.1", "Host: x", f"Content-Length: {len(body)}")
    request = "\r\n".join([*head, "", ""]).encode() + body
    while (start := time.perf_counter()) < until:
        writer.write(request)
        answer = await reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(answer.decode())
        length = answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0]
        await reader.readexactly(int(length))
        taken.append(time.perf_counter() - start)
    writer.close()


async def _grpc_client(port: int, request: Any, until: float, taken: list[float]) -> None:
    """One gRPC channel that asks again and again."""
    import grpc
    from tensorflow_serving.apis import prediction_service_pb2_grpc

    own = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=own) as channel:
        predict = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict
        while (start := time.perf_counter()) < until:
            await predict(request)
            taken.append(time.perf_counter() - start)


def _predict_request(rows: int) -> Any:
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2

    request = predict_pb2.PredictRequest()
    request.model_spec.name = "policy"
    proto = tf.make_tensor_proto([OBS] * rows, tf.float32)
    request.inputs["observation"].CopyFrom(proto)
    return request


def ask(port: int, grpc: bool, clients: int, rows: int, seconds: float) -> dict[str, float]:
    """Runs clients for some seconds; returns the figures."""
    request: Any = json.dumps({"instances": [OBS] * rows}).encode()
    client: Any = _client
    if grpc:
        request, client = _predict_request(rows), _grpc_client

    async def run(duration: float) -> list[float]:
        taken: list[float] = []
        until = time.perf_counter() + duration
        await asyncio.gather(*(client(port, request, until, taken) for _ in range(clients)))
        return taken

    asyncio.run(run(0.5))
    start = time.perf_counter()
    taken = asyncio.run(run(seconds))
    return figures(taken, time.perf_counter() - start)


@contextlib.contextmanager
def served(folder: pathlib.Path, flags: Sequence[str]) -> Iterator[int]:
    """Serves a run folder in its own process; yields the port of HTTP."""
    command = [sys.executable, "-m", "tfrl", "serve", f"--root_dir={folder}", "--http_port=0"]
    with subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stdout or ():
                if line.startswith("Serving"):
                    yield int(line.rpartition(":")[2].partition("/")[0])
                    return
            raise SystemExit("tfrl-serve has ended")
        finally:
            process.terminate()


def main(argv: Sequence[str] | None = None) -> None:
    """Parses the command line and measures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds per measurement")
    parser.add_argument("--clients", default="1,8,32", help="comma-separated numbers of clients")
    parser.add_argument("--rows", type=int, default=1, help="rows per request")
    parser.add_argument("--batch_timeout_ms", type=float, default=0.0, help="flag of tfrl-serve")
    parser.add_argument("--grpc", action="store_true", help="measures gRPC too")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / "run"
        _train(folder)
        with multiprocessing.get_context("spawn").Pool(1) as pool:  # without a running server
            row = pool.apply(saved_model_in_a_loop, (folder / "policy", args.rows, args.seconds))
        measure.emit(benchmark="serve", what="SavedModel in a loop", rows=args.rows, **row)
        flags = [f"--batch_timeout_ms={args.batch_timeout_ms}"]
        (grpc_port,) = free_ports(1)
        if args.grpc:
            flags.append(f"--grpc_port={grpc_port}")
        with served(folder, flags) as http_port:
            ports = {"http": http_port, **({"grpc": grpc_port} if args.grpc else {})}
            for api, clients in itertools.product(ports, map(int, args.clients.split(","))):
                measure.emit(
                    benchmark="serve",
                    what=f"tfrl-serve, {api}",
                    clients=clients,
                    rows=args.rows,
                    batch_timeout_ms=args.batch_timeout_ms,
                    **ask(ports[api], api == "grpc", clients, args.rows, args.seconds),
                )


def _train(folder: pathlib.Path) -> None:
    small = ("train.total_env_steps=1_024", "train.video=False", "train.report=False")
    bindings = [f"--gin_bindings={text}" for text in small]
    command = [sys.executable, "-m", "tfrl", "train", f"--root_dir={folder}", *bindings]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def saved_model_in_a_loop(folder: pathlib.Path, rows: int, seconds: float) -> dict[str, float]:
    """Calls the signature `action` of a SavedModel for some seconds."""
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    policy = tf.saved_model.load(str(folder))
    act = policy.signatures["action"]
    return in_a_loop(lambda: act(observation=tf.constant([OBS] * rows))["action"].numpy(), seconds)


if __name__ == "__main__":
    main()
