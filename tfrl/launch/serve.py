"""`bin/serve.py`: serves a policy by TensorFlow Serving's REST and gRPC interfaces."""

import asyncio
import contextlib
import pathlib
import signal
import socket
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from absl import flags

from tfrl import extras
from tfrl.errors import UserError
from tfrl.launch import app
from tfrl.launch import flags as common_flags
from tfrl.storage import remote

if TYPE_CHECKING:
    from tfrl.serving.server import PolicyServer

DOC = """Serves a policy over HTTP, as TensorFlow Serving does (pip install 'tfrl[serve]').

  tfrl-serve --root_dir=runs/ppo_tf_cartpole
  curl -d '{"instances": [[0.0, 0.1, 0.0, -0.1]]}' localhost:8501/v1/models/policy:predict

--root_dir is a run folder or the folder of a SavedModel from tfrl-export or a training.
Without --host it accepts only local clients. It ends on SIGTERM or Ctrl-C."""

_GRACE_SECONDS = 5  # for requests at the end: a client may never finish sending

flags.DEFINE_list(
    "checkpoints",
    ["latest"],
    "For a run folder: latest, best, or numbers of env steps, separated by commas. Each is a model "
    "version, numbered by its env steps.",
)
flags.DEFINE_string("model_name", "policy", "Name of the model in URLs.")
flags.DEFINE_string(
    "host",
    "127.0.0.1",
    "Address to listen on; 0.0.0.0 accepts other machines, without authentication.",
)
flags.DEFINE_integer(
    "http_port", 8501, "HTTP port; 0 for a free one.", lower_bound=0, upper_bound=65_535
)
flags.DEFINE_integer(
    "grpc_port",
    None,
    "Port of TensorFlow Serving's gRPC API; off by default. Needs the extra grpc.",
    lower_bound=1,
    upper_bound=65_535,
)
flags.DEFINE_integer(
    "max_batch_size", 64, "Maximum rows of a batch, a power of two.", lower_bound=1
)
flags.DEFINE_float(
    "batch_timeout_ms",
    0.0,
    "Milliseconds that the first request of a batch waits for others; 0 does not wait.",
    lower_bound=0.0,
)
flags.DEFINE_integer(
    "max_queue",
    4096,
    "Maximum rows in the queue; a further request gets status 503.",
    lower_bound=1,
)
flags.DEFINE_integer(
    "max_request_mb",
    64,
    "Maximum size of a request in MB; a larger one gets status 413.",
    lower_bound=1,
    upper_bound=2047,  # gRPC counts bytes in 32 bits
)
flags.DEFINE_string(
    "log_episodes", None, "Folder for served requests, stored as episodes by episode_id."
)


def main() -> int:
    """Serves until a signal comes; returns the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    values = common_flags.common()
    if values.root_dir is None:
        raise UserError(
            "--root_dir",
            expected="a run folder, or the folder of a SavedModel",
            got="no value",
            remedy="Pass --root_dir=runs/... of a training run.",
        )
    remote.check_local("log_episodes", flags.FLAGS.log_episodes)
    for name in ("uvicorn", "starlette", "prometheus_client"):
        extras.require(name, "serve")
    if flags.FLAGS.grpc_port is not None:
        extras.require("tensorflow_serving", "grpc")
    listening = listen(flags.FLAGS.host, flags.FLAGS.http_port)
    with contextlib.closing(listening):
        common_flags.configure_tensorflow(values)
        server = make_server(values)
        server.warm_up()
        # The log closes after HTTP, gRPC and the threads that write to it have ended.
        with contextlib.closing(server):
            asyncio.run(_serve(server, listening))
    return 0


def listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket.

    Raises:
      UserError: The address is not available.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=2048)
        # Connections inherit it. Head and body of a response are two packets: the second would wait
        # 40 ms for the client's acknowledgement of the first.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        raise UserError(
            f"--host={host} --http_port={port}",
            expected="an address of this machine and a free port",
            got=error.strerror or str(error),
            remedy="Choose another --http_port, or 0 for a free port.",
        ) from error


def make_server(values: common_flags.CommonFlags) -> "PolicyServer":
    """Loads the policy versions that the flags name."""
    from tfrl.launch.loaded import load
    from tfrl.serving.served_policy import ServedPolicy
    from tfrl.serving.server import PolicyServer, ServingOptions

    flag_values = flags.FLAGS
    folder = flag_values.log_episodes
    options = ServingOptions(
        name=flag_values.model_name,
        max_batch_size=flag_values.max_batch_size,
        batch_timeout_ms=flag_values.batch_timeout_ms,
        max_queue=flag_values.max_queue,
        max_request_mb=flag_values.max_request_mb,
        log_episodes=None if folder is None else pathlib.Path(folder).expanduser().absolute(),
    )
    policies: dict[int, ServedPolicy] = {}
    labels: dict[str, int] = {}
    for name in dict.fromkeys(flag_values.checkpoints):
        policy = load(
            str(values.root_dir),
            int(name) if name.isdigit() else name,
            bindings=values.gin_bindings,
            allow_code=values.allow_code,
            seed=values.seed,
        )
        version = getattr(policy, "env_steps", 1)
        policies.setdefault(version, ServedPolicy(policy, version))
        if not name.isdigit():
            labels[name] = version
    return PolicyServer(list(policies.values()), options, labels)


def uvicorn_server(server: "PolicyServer") -> Any:
    """Returns uvicorn's HTTP server, not yet started."""
    from tfrl.serving.rest import make_app

    uvicorn = extras.require("uvicorn", "serve")
    config = uvicorn.Config(
        make_app(server),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    return uvicorn.Server(config)


async def _serve(server: "PolicyServer", listening: socket.socket) -> None:
    http_server = uvicorn_server(server)
    host, port = listening.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    async with _grpc(server, host):
        versions = ", ".join(map(str, sorted(server.policies)))
        name = server.options.name
        app.say(f"Serving {name}, version {versions}: http://{host}:{port}/v1/models/{name}")
        await http_server.serve(sockets=[listening])


@contextlib.asynccontextmanager
async def _grpc(server: "PolicyServer", host: str) -> AsyncIterator[Any]:
    port = flags.FLAGS.grpc_port
    if port is None:
        yield None
        return
    from tfrl.serving import grpc_service

    grpc_server = await grpc_service.start(server, f"{host}:{port}")
    app.say(f"gRPC: {host}:{port}")
    try:
        yield grpc_server
    finally:
        await grpc_server.stop(grace=1.0)


def run() -> None:
    """Entry point of `tfrl-serve` and `bin/serve.py`."""
    app.run(main, doc=DOC, argv=sys.argv)
