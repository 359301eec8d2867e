"""Trainings that are killed at random moments, again and again, and end as if they never were.

Their folders are local ones, or such of a server that TensorFlow's gs:// client takes for Google
Cloud Storage and that is busy now and then. Its objects are files, looked at here in its stead.
"""

import dataclasses
import json
import pathlib
import random
import subprocess
import time
from collections.abc import Iterator

import numpy as np

from tests.launch.launch_runs import TINY, command, environment
from tests.storage.fake_gcs import FakeGcs
from tfrl.experiment.checkpoints import CheckpointManager

# Seconds that a start may take to its end, and a killed one to be gone.
IN_TIME = 180.0
_LOOK_SECONDS = 0.002

OFF_POLICY_SIZES = (
    "OffPolicyWorkflow.random_steps=32",
    "OffPolicyWorkflow.batch_size=8",
    "OffPolicyWorkflow.iterations_per_call=8",
    "OffPolicyWorkflow.eval_episodes=2",
    "eval/make_env.num_envs=2",
    "train.final_eval_episodes=4",
)
OFF_POLICY = ("OffPolicyWorkflow.compile='graph'", *OFF_POLICY_SIZES)
# A generation has 8 x 20 env steps, of ERL 5 x 20; a checkpoint comes after several.
SHORT_EPISODES = (
    "make_env.max_episode_steps=20",
    "eval/make_env.num_envs=2",
    "train.final_eval_episodes=4",
)
EVOLUTION = (
    *SHORT_EPISODES,
    "EvolutionWorkflow.compile='graph'",
    "EvolutionWorkflow.iterations_per_call=1",
    "EvolutionWorkflow.eval_episodes=2",
    "OpenES.pop_size=8",
    "PolicyAgent.hidden=(4,)",
)
ERL_SIZES = (
    *SHORT_EPISODES,
    "ERLWorkflow.compile='graph'",
    "ERLWorkflow.iterations_per_call=1",
    "ERLWorkflow.eval_episodes=2",
    "ERLWorkflow.batch_size=8",
    "ERLWorkflow.learning_starts=100",
    "ERLWorkflow.updates_per_step=0.2",
    "InGraphReplay.capacity=2_000",
    "TD3.hidden=(8,)",
)
ERL = (*ERL_SIZES, "GA.pop_size=4")
PBT = (
    *TINY,
    "PBTWorkflow.compile='graph'",
    "PBTWorkflow.num_members=2",
    "PBTWorkflow.iterations_per_round=4",
)
PBT_SAC = (
    *OFF_POLICY_SIZES,
    "PBTWorkflow.compile='graph'",
    "PBTWorkflow.num_members=2",
    "PBTWorkflow.iterations_per_round=32",
    "SAC.hidden=(8,)",
    "InGraphReplay.capacity=512",
)
HOST = ("env_id='gymnasium:Pendulum-v1'", "make_env.num_envs=2")


@dataclasses.dataclass(frozen=True)
class Run:
    """A training.

    Attributes:
      flags: Of `bin/train.py`, without the folder.
      env_steps: Where it ends.
      exact: Whether a resumed run ends with the bits of one that was not stopped. Not on Reverb,
        which samples by random numbers of its own.
    """

    flags: tuple[str, ...]
    env_steps: int
    exact: bool = True


def _flags(gin_file: str, env_steps: int, bindings: tuple[str, ...]) -> tuple[str, ...]:
    often = (
        f"train.total_env_steps={env_steps}",
        f"train.eval_interval={env_steps // 8}",
        f"train.checkpoint_interval={env_steps // 16}",
        "train.video=False",
    )
    return (f"--gin_file={gin_file}", *(f"--gin_bindings={b}" for b in (*bindings, *often)))


RUNS = {
    "ppo": Run(_flags("ppo/tf_cartpole.gin", 2_048, TINY), 2_048),
    "sac": Run(
        _flags(
            "sac/tf_pendulum.gin",
            512,
            (*OFF_POLICY, "SAC.hidden=(16, 16)", "InGraphReplay.capacity=512"),
        ),
        512,
    ),
    "dqn_reverb": Run(
        _flags(
            "dqn/tf_cartpole.gin",
            1_024,
            (
                *OFF_POLICY,
                "OffPolicyWorkflow.replay=@ReverbReplay",
                "ReverbReplay.capacity=1_000",
                "DQN.hidden=(16,)",
                "make_env.num_envs=2",
                "OffPolicyWorkflow.rollout_length=8",
            ),
        ),
        1_024,
        exact=False,
    ),
    "evolution": Run(_flags("evolution/open_es_tf_pendulum.gin", 10_240, EVOLUTION), 10_240),
    "evolution_host": Run(
        _flags("evolution/open_es_tf_pendulum.gin", 10_240, (*EVOLUTION, *HOST)), 10_240
    ),
    "erl": Run(_flags("erl/ga_td3_tf_pendulum.gin", 3_200, ERL), 3_200),
    "cem_rl": Run(_flags("erl/cem_rl_tf_pendulum.gin", 3_200, ERL_SIZES), 3_200),
    "pbt": Run(_flags("pbt/ppo_tf_cartpole.gin", 8_192, PBT), 8_192),
    "pbt_sac": Run(_flags("pbt/sac_tf_pendulum.gin", 1_024, PBT_SAC), 1_024),
}

# Moments: what must be seen in the folder before the kill, which comes up to so many seconds later.
MOMENTS = {
    "steps": ("metadata.json", 3.0),
    "evaluation": ("metrics.jsonl", 2.0),
    "save": ("checkpoints/.tmp-*", 0.05),
    "export": (".tmp-*/variables", 0.05),
}
# Of a remote folder, where an upload takes some time.
REMOTE_MOMENTS = {
    "steps": ("writer.json", 10.0),
    "evaluation": ("metrics.jsonl", 0.2),
    "save": ("checkpoints/*/data.index", 0.2),
    "removal": ("checkpoints/*/COMPLETE", 0.1),
    "export": ("policy/*", 0.1),
}
BUCKET = "bucket"


@dataclasses.dataclass(frozen=True)
class Place:
    """Where trainings run.

    Attributes:
      folder: Where their files are seen.
      server: What serves them; None for a local folder.
    """

    folder: pathlib.Path
    server: FakeGcs | None = None

    @classmethod
    def of(cls, server: FakeGcs) -> "Place":
        """A bucket of a server."""
        folder = server.folder / BUCKET
        folder.mkdir(exist_ok=True)
        return cls(folder, server)

    @property
    def moments(self) -> dict[str, tuple[str, float]]:
        """Those that can be seen there."""
        return MOMENTS if self.server is None else REMOTE_MOMENTS

    def address(self, root: pathlib.Path) -> str:
        """The --root_dir of a folder."""
        if self.server is None:
            return str(root)
        return f"gs://{BUCKET}/{root.relative_to(self.folder).as_posix()}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a training."""
        return {**environment(), **(self.server.environment if self.server else {})}


def start(run: Run, root: pathlib.Path, place: Place) -> subprocess.Popen:
    """Starts a training, or goes on with it."""
    return subprocess.Popen(
        command("train", f"--root_dir={place.address(root)}", *run.flags),
        env=place.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill_at(process: subprocess.Popen, root: pathlib.Path, pattern: str, delay: float) -> bool:
    """Kills a training when it has changed a file; returns whether it was still running then."""
    before = {p: p.stat().st_mtime_ns for p in root.glob(pattern)}
    end = time.monotonic() + IN_TIME
    while process.poll() is None and time.monotonic() < end:
        if any(before.get(p) != _changed(p) for p in root.glob(pattern)):
            break
        time.sleep(_LOOK_SECONDS)
    time.sleep(delay)
    killed = process.poll() is None
    process.kill()
    process.communicate(timeout=IN_TIME)
    return killed


def _changed(path: pathlib.Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def finish(run: Run, root: pathlib.Path, place: Place) -> str | None:
    """Lets a training end; returns what is wrong with that, or None."""
    process = start(run, root, place)
    try:
        _, error = process.communicate(timeout=IN_TIME)
    except subprocess.TimeoutExpired:
        process.kill()
        return "it hangs"
    if process.returncode:
        return f"exit code {process.returncode}: {error[-500:]}"
    summary = json.loads((root / "summary.json").read_text())
    if summary["env_steps"] != run.env_steps:
        return f"{summary['env_steps']} env steps instead of {run.env_steps}"
    left = list(root.rglob(".tmp-*"))
    folders = {path.parent for path in root.glob("checkpoints/*/*")}
    left += [path for path in folders if not (path / "COMPLETE").is_file()]
    return f"left behind: {left}" if left else None


def differences(one: pathlib.Path, other: pathlib.Path) -> list[str]:
    """The paths of values of the whole state that differ between two runs that have ended."""
    a, b = (
        CheckpointManager(root / "checkpoints").restore("latest").values for root in (one, other)
    )
    return sorted(
        {
            path
            for path in a.keys() & b.keys()
            if np.asarray(a[path]).tobytes() != np.asarray(b[path]).tobytes()
        }
        | (a.keys() ^ b.keys())
    )


def chain(
    name: str, kills: int, place: Place, rng: random.Random
) -> Iterator[tuple[str, str | None]]:
    """Kills a training so often, then lets it end.

    Yields:
      For each kill (its moment, None), and at the end ("the end", what is wrong or None).
    """
    run, root = RUNS[name], place.folder / name
    moments = sorted(place.moments)
    done, starts = 0, 0
    while done < kills:
        moment = moments[starts % len(moments)] if starts < len(moments) else rng.choice(moments)
        starts += 1
        pattern, longest = place.moments[moment]
        delay = rng.uniform(0.0, longest)
        if kill_at(start(run, root, place), root, pattern, delay):
            done += 1
            yield moment, None
            continue
        # It had ended before: from the beginning, in another folder.
        wrong = finish(run, root, place)
        if wrong:
            yield "a run that had ended", wrong
        root = place.folder / f"{name}_{starts}"
    wrong = finish(run, root, place)
    if wrong is None and run.exact:
        whole = place.folder / f"{name}_whole"
        wrong = finish(run, whole, place)
        if wrong is None and (other := differences(root, whole)):
            wrong = f"other values than those of a run that was not killed: {other[:5]}"
    yield "the end", wrong
