"""Shared code of `benchmarks.sac`, `td3` and `dqn`: contestants, rounds, lines.

A contestant is a function that steps and updates for some time and returns `updates_per_second` of
wall time, and `cpu_ms_per_update` of all its threads, which other load on the machine affects less.
All contestants of a benchmark take turns, in this process and in their own processes. A ratio is
the median of the ratios of the rounds.
"""

import argparse
import contextlib
import functools
import importlib
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tfrl
from benchmarks import measure, peer_serving

CAPACITY, RANDOM_STEPS = 100_000, 1_000
FOLDER = measure.ROOT / "benchmarks"
_NEAR = 1.25  # modes of a reference within this of the best take part in all rounds
START_SECONDS = 300.0  # for a peer to import, fill its buffer and compile

Measured = dict[str, Any]
Contestant = Callable[[], Measured]


class Task(NamedTuple):
    """The task of a benchmark.

    Attributes:
      name: "sac".
      device: The environment on the device.
      host: The same task on the host.
      batch_size: Rows of an update.
      agent: A function that creates the agent from `obs_spec` and `action_spec`.
      learner: Arguments of `ModuleConfig`.
      reference: The class of the hand-written loop.
      modes: Its modes.
      peers: Its peers, `{name: (interpreter, script)}`; no interpreter means this one.
    """

    name: str
    device: str
    host: str
    batch_size: int
    agent: Callable[..., Any]
    learner: dict[str, Any]
    reference: Callable[..., Any]
    modes: Sequence[str]
    peers: dict[str, tuple[Any, str]]


PEERS = {
    "sb3": (measure.PEERS_PYTHON, "peer_sb3.py"),
    "sbx": (measure.PEERS_PYTHON, "peer_sbx.py"),
}


def pendulum_task(name: str) -> Task:
    """Returns the task of SAC or TD3: Pendulum, batches of 256, networks of 2x256."""

    def make_agent(**specs: Any) -> Any:
        from tfrl import agents

        return getattr(agents, name.upper())(hidden=(256, 256), **specs)

    def make_reference(mode: str, **sizes: Any) -> Any:
        module = importlib.import_module(f"benchmarks.reference_{name}")
        return getattr(module, f"Reference{name.upper()}")(mode, **sizes)

    return Task(
        name=name,
        device="tf:Pendulum-v1",
        host="gymnasium:Pendulum-v1",
        batch_size=256,
        agent=make_agent,
        learner={"lr": 3e-4, "adam_epsilon": 1e-8},
        reference=make_reference,
        modes=("graph, fused Adam", "graph, Keras Adam", "xla, fused Adam"),
        peers=PEERS,
    )


def tfrl_runner(
    task: Task, where: str, seconds: float, compile: Any = "auto"
) -> tuple[Contestant, dict[str, Any]]:
    """Returns tfrl's warmed-up contestant and its description.

    Args:
      task: What to measure.
      where: "device", "host" (with the in-graph buffer) or "reverb" (the host with Reverb).
      seconds: Duration of one measurement.
      compile: As in `OffPolicyWorkflow`.
    """
    from tfrl.launch import threads
    from tfrl.learners import ModuleConfig
    from tfrl.workflows import OffPolicyWorkflow

    env_id = task.device if where == "device" else task.host
    env = tfrl.make_env(env_id, num_envs=1)
    workflow = OffPolicyWorkflow(
        env=env,
        agent=task.agent(obs_spec=env.obs_spec, action_spec=env.action_spec),
        replay=functools.partial(replay_class(where), capacity=CAPACITY),
        batch_size=task.batch_size,
        random_steps=RANDOM_STEPS,
        learner_config=ModuleConfig(**task.learner) if task.learner else None,
        compile=compile,
    )
    split = threads.settle(workflow)  # as in `tfrl-train`; no effect after TensorFlow's start
    state = workflow.setup(seed=0)
    state = workflow.advance(state, RANDOM_STEPS).state  # fills the buffer
    box = [workflow.advance(state, 20).state]  # compiles the learner step
    start = time.perf_counter()
    box[0] = workflow.advance(box[0], 20).state
    per_update = (time.perf_counter() - start) / 20
    iterations = max(20, min(20_000, int(seconds / 4 / per_update)))

    def train() -> int:
        before = workflow.env_steps(box[0])
        box[0] = workflow.advance(box[0], iterations).state
        return workflow.env_steps(box[0]) - before  # one update each

    train()
    run = functools.partial(peer_serving.rate, train, seconds)
    choices = workflow.compile_choices(box[0])
    return run, {"env": env_id, "compile": choices, "intra_op_threads": split}


def replay_class(where: str) -> Any:
    """Returns the class of the replay buffer's factory."""
    if where == "reverb":
        from tfrl.replay.reverb import ReverbReplay

        return ReverbReplay
    from tfrl.replay import InGraphReplay

    return InGraphReplay


def reference_runners(task: Task, seconds: float) -> dict[str, Contestant]:
    """Returns the contestants of the hand-written loop by mode, without much slower modes.

    Only all rounds together decide between modes of similar speed.
    """
    runs: dict[str, Contestant] = {}
    for mode in task.modes:
        loop = task.reference(mode, capacity=CAPACITY)
        loop.run(RANDOM_STEPS // 2)
        runs[mode] = functools.partial(peer_serving.rate, _calls(loop, seconds), seconds)
    rates = _rates(take_turns(runs, rounds=5))
    return {mode: run for mode, run in runs.items() if rates[mode] > max(rates.values()) / _NEAR}


def _calls(loop: Any, seconds: float) -> Callable[[], int]:
    """Returns a function whose call takes a quarter of the time."""
    start = time.perf_counter()
    loop.run(50)
    iterations = max(20, min(20_000, int(seconds / 4 * 50 / (time.perf_counter() - start))))

    def train() -> int:
        loop.run(iterations)
        return iterations

    train()
    return train


class Served:
    """A peer in its own process, which measures at each call."""

    def __init__(self, name: str, interpreter: Any, script: str, *args: str, timeout: float):
        """Starts the process; `wait` for it before the first call.

        Args:
          name: For messages.
          interpreter: The Python of the peer; None for this one.
          script: A file of this folder.
          *args: Its command line.
          timeout: Maximum seconds of one measurement.
        """
        if interpreter is not None and not interpreter.exists():
            raise SystemExit(f"{name} is not installed here; run: make .venv-peers/.installed")
        self.name, self.timeout = name, timeout
        self._errors = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115  closed with the process
        self._process: Any = subprocess.Popen(
            [str(interpreter or sys.executable), str(FOLDER / script), *args, "--served"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )

    def wait(self) -> None:
        """Waits until the peer is warmed up."""
        self._read(START_SECONDS)

    def __call__(self) -> Measured:
        """Measures once."""
        with contextlib.suppress(BrokenPipeError):  # the peer has ended; its output is read below
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
        return self._read(self.timeout)

    def _read(self, timeout: float) -> Measured:
        """Returns the next line; without one, exits with the peer's standard error."""
        out = self._process.stdout
        ready, _, _ = select.select([out], [], [], timeout)
        line = out.readline() if ready else b""
        if line:
            return dict(json.loads(line))
        self.close()
        self._errors.seek(0)
        why = "ended" if ready else f"printed nothing for {timeout:g} s"
        raise SystemExit(f"{self.name} {why}:\n{self._errors.read()[-2000:]}")

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()


def start_peers(task: Task, names: Sequence[str], seconds: float) -> dict[str, Served]:
    """Starts peers one after the other, so that warm-ups do not slow each other down."""
    peers: dict[str, Served] = {}
    try:
        for name in names:
            interpreter, script = task.peers[name]
            asked = [f"--seconds={seconds}", f"--random_steps={RANDOM_STEPS}"]
            if interpreter is not None:
                asked.append(f"--algorithm={task.name}")
            timeout = 60 + 10 * seconds
            peers[name] = Served(name, interpreter, script, *asked, timeout=timeout)
            peers[name].wait()
    except BaseException:
        for one in peers.values():
            one.close()
        raise
    return peers


def take_turns(contestants: dict[str, Contestant], rounds: int) -> dict[str, list[Measured]]:
    """Measures all contestants in turn, so that noise of the machine affects all of them."""
    measurements: dict[str, list[Measured]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            measurements[name].append(run())
    return measurements


def _rates(measurements: Mapping[str, Sequence[Measured]]) -> dict[str, float]:
    return {name: _median(rounds, "updates_per_second") for name, rounds in measurements.items()}


def _median(rounds: Sequence[Measured], figure: str) -> float:
    return statistics.median(one[figure] for one in rounds)


def beside(own: Sequence[Measured], others: Mapping[str, Sequence[Measured]]) -> dict[str, float]:
    """Returns the figures of one contestant and its ratios to others.

    Args:
      own: Its measurements, by round.
      others: Measurements of others in the same rounds, by name.

    Returns:
      Medians of rates and CPU times, and medians of the ratios of each round: `ratio_to_*` of the
      rates, `cpu_ratio_to_*` of the updates in a second of CPU time.
    """
    figures = ("updates_per_second", "cpu_ms_per_update")
    line = {figure: _median(own, figure) for figure in figures}
    for other, rounds in others.items():
        line.update({f"{other}_{figure}": _median(rounds, figure) for figure in figures})
        pairs = list(zip(own, rounds, strict=True))
        line[f"ratio_to_{other}"] = statistics.median(
            mine["updates_per_second"] / theirs["updates_per_second"] for mine, theirs in pairs
        )
        line[f"cpu_ratio_to_{other}"] = statistics.median(
            theirs["cpu_ms_per_update"] / mine["cpu_ms_per_update"] for mine, theirs in pairs
        )
    return line


def names_of(text: str, known: Sequence[str], option: str) -> list[str]:
    """Parses "a,b", from the known names."""
    names = [name for name in text.split(",") if name]
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise SystemExit(f"{option}: expected some of {', '.join(known)}; got {unknown[0]}")
    return names


def run(task: Task, doc: str | None, where: Sequence[str], argv: Sequence[str] | None) -> None:
    """Parses the command line and measures.

    Args:
      task: The task.
      doc: Describes the benchmark.
      where: Where tfrl can run, see `tfrl_runner`.
      argv: The command line; None for this process's.
    """
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=formatter)
    parser.add_argument("--where", default="device", help=f"some of {', '.join(where)}")
    parser.add_argument("--peers", default="", help=f"some of {', '.join(task.peers)}")
    parser.add_argument("--compile", default="auto", choices=("auto", "xla", "graph"))
    # Many short turns: if the machine's speed varies, ratios of long turns vary more.
    parser.add_argument("--seconds", type=float, default=0.5, help="seconds per measurement")
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args(argv)
    places = names_of(args.where, where, "--where")
    names = names_of(args.peers, list(task.peers), "--peers")
    contestants: dict[str, Contestant] = {}
    references: dict[str, Contestant] = {}
    described: dict[str, dict[str, Any]] = {}
    for place in places:
        contestants[place], described[place] = tfrl_runner(task, place, args.seconds, args.compile)
    if "device" in places:
        references = reference_runners(task, args.seconds)
    peers = start_peers(task, names, args.seconds)
    try:
        measurements = take_turns({**contestants, **references, **peers}, args.rounds)
    finally:
        for one in peers.values():
            one.close()
    if references:
        rates = _rates({mode: measurements[mode] for mode in references})
        best = max(rates, key=lambda mode: rates[mode])
        measurements["reference"], described["device"]["reference_mode"] = measurements[best], best
    for place in places:
        # The hand-written loop runs on the device.
        rivals = (["reference"] if place == "device" else []) + names
        measure.emit(
            benchmark=task.name,
            where=place,
            **described[place],
            batch_size=task.batch_size,
            **beside(measurements[place], {name: measurements[name] for name in rivals}),
        )
