"""The worker's side of a pool: an environment that follows messages."""

import ctypes
import faulthandler
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any

from tfrl.envs.workers.channel import ChildChannel
from tfrl.envs.workers.protocol import Act, Begin, Failure, Load, Phase, Ready, RunnerSettings
from tfrl.envs.workers.runner import EnvFactory, EnvironmentFailed, EpisodeRunner, Reporting

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_POLL_SECONDS = 1.0


def die_with_parent(parent: int) -> None:
    """Ends this process when its parent ends.

    On Linux the kernel kills it, even while native code holds the interpreter's lock. On all
    systems a thread also checks once a second. A worker that waits between steps normally sees the
    end of its pipe first.

    Args:
      parent: The parent's process id. If it is gone already, this process exits.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    threading.Thread(
        target=_watch_parent, args=[parent], daemon=True, name="tfrl-parent-watch"
    ).start()


def _watch_parent(parent: int) -> None:
    # The first check also detects a parent that died before the call to the kernel.
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)


def main() -> None:
    """Runs a worker's process: `main` of the command that `hosts.ProcessHost` starts."""
    parent, descriptor = map(int, sys.argv[1:])
    die_with_parent(parent)
    faulthandler.enable()
    channel = ChildChannel(socket.socket(fileno=descriptor))
    try:
        load: Load = channel.receive()
    except EOFError:
        return
    try:
        with Reporting(Phase.IMPORT, load.settings.worker_id):
            factory = pickle.loads(load.factory)  # nosec B301
    except EnvironmentFailed as failed:
        _send_failure(channel, failed.failure)
        return
    serve(channel, factory, load.settings)


def serve(channel: ChildChannel, env_factory: EnvFactory, settings: RunnerSettings) -> None:
    """Runs an environment until the pool closes the channel or the environment fails.

    Args:
      channel: To the pool; closed at the end.
      env_factory: Creates the environment.
      settings: The worker's.
    """
    runner = None
    try:
        runner = EpisodeRunner(env_factory, settings)
        _send(channel, _ready(runner), settings, (0, -1, 0))
        _follow(channel, runner, settings)
    except EnvironmentFailed as failed:
        _send_failure(channel, failed.failure)
    except (EOFError, ConnectionError):
        pass  # The pool is closed: the usual end.
    finally:
        # Close the environment first: the pool waits for the end of the channel or process.
        if runner is not None:
            _close(runner, settings.worker_id)
        channel.close()


def _ready(runner: EpisodeRunner) -> Ready:
    env = runner.env
    return Ready(env.observation_space, env.action_space, "tensorflow" in sys.modules)


def _follow(channel: ChildChannel, runner: EpisodeRunner, settings: RunnerSettings) -> None:
    """Follows messages; of several pending ones only the newest counts."""
    generation = 0
    while True:
        message = channel.receive()
        while channel.waiting():
            message = channel.receive()
        if isinstance(message, Begin):
            generation, episode = message
            state = runner.reset(generation, episode)
        elif isinstance(message, Act) and message.generation == generation:
            state = runner.step(message.action)
        else:
            continue
        _send(channel, state, settings, state[1:4])
        if state.last and not channel.waiting():
            state = runner.reset(generation, state.episode + 1)
            _send(channel, state, settings, state[1:4])


def _send(
    channel: ChildChannel, message: Any, settings: RunnerSettings, place: tuple[int, int, int]
) -> None:
    try:
        with Reporting(Phase.SEND, settings.worker_id, place):
            channel.send(message)
    except EnvironmentFailed as failed:
        if isinstance(failed.__cause__, ConnectionError):
            raise failed.__cause__ from None
        raise


def _send_failure(channel: ChildChannel, failure: Failure) -> None:
    try:
        channel.send(failure)
    except ConnectionError:
        pass  # The receiver is gone.


def _close(runner: EpisodeRunner, worker_id: int) -> None:
    """Closes the environment; prints an error to standard error."""
    try:
        runner.close()
    except (Exception, SystemExit):
        text = traceback.format_exc()
        sys.stderr.write(f"env.close() of environment worker {worker_id} raised:\n{text}")
