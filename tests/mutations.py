"""Puts faults into a copy of the library and counts those that the fast tests find.

    python -m tests.mutations
    python -m tests.mutations --only=ops,learners/update

Each fault replaces one text of one file: a sign, a mask, an off-by-one, a swapped argument, a
missing stop_gradient. The fast tests beside it must fail. Prints a line a fault, and at the end how
many were found; the exit code is 1 if one was not.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
_COPIED = ("tfrl", "tests", "benchmarks", "bin", "docs", "gin_configs")

# File below tfrl/, the text, what it becomes, and the tests: files or folders below tests/.
FAULTS = [
    ("ops/multistep.py", "next_value) - value", "next_value) + value", "ops"),
    (
        "ops/multistep.py",
        "one_step = reward + gamma * (1.0 - weight)",
        "one_step = reward + gamma * weight",
        "ops",
    ),
    ("ops/multistep.py", "for _ in range(n - 1):", "for _ in range(n):", "ops"),
    ("ops/multistep.py", "gamma * weight * tf.minimum(1.0, rho)", "gamma * weight * rho", "ops"),
    (
        "ops/multistep.py",
        "pg_advantage=tf.stop_gradient(advantage)",
        "pg_advantage=advantage",
        "ops",
    ),
    (
        "ops/policy_losses.py",
        "surrogate = tf.minimum(ratio",
        "surrogate = tf.maximum(ratio",
        "ops",
    ),
    (
        "ops/policy_losses.py",
        "return -reduce.masked_mean(advantage * log_prob",
        "return reduce.masked_mean(advantage * log_prob",
        "ops",
    ),
    ("ops/value_losses.py", "error = target - value", "error = value - target", "ops"),
    (
        "ops/value_losses.py",
        "    target = tf.stop_gradient(target)\n    error",
        "    error",
        "ops",
    ),
    (
        "ops/value_losses.py",
        "squares = tf.maximum(tf.square",
        "squares = tf.minimum(tf.square",
        "ops",
    ),
    (
        "ops/q_losses.py",
        "best = tf.argmax(next_q_selector",
        "best = tf.argmax(next_q",
        "ops",
    ),
    (
        "ops/value_losses.py",
        "below = tf.cast(tf.stop_gradient(delta) < 0.0",
        "below = tf.cast(tf.stop_gradient(delta) > 0.0",
        "agents/test_tqc.py",
    ),
    (
        "ops/reduce.py",
        "count = tf.maximum(rows, 1.0)",
        "count = tf.maximum(rows + 1.0, 1.0)",
        "ops",
    ),
    (
        "agents/sac/losses.py",
        "return -ops.masked_mean(value, mask)",
        "return ops.masked_mean(value, mask)",
        "agents/test_sac.py",
    ),
    (
        "agents/sac/losses.py",
        "tf.stop_gradient(entropy) - target_entropy",
        "tf.stop_gradient(entropy) + target_entropy",
        "agents/test_sac.py",
    ),
    (
        "agents/off_policy/actor_critic.py",
        "return tf.reduce_min(q, axis=0)\n\n    def policy_q",
        "return tf.reduce_max(q, axis=0)\n\n    def policy_q",
        "agents/test_sac.py",
    ),
    (
        "agents/sac/agent.py",
        "reduce = tf.reduce_min if",
        "reduce = tf.reduce_max if",
        "agents/test_sac.py",
    ),
    (
        "agents/td3/agent.py",
        'action = self.actor.apply(target_params["actor"]',
        'action = self.actor.apply(params["actor"]',
        "agents/test_td3.py",
    ),
    (
        "agents/off_policy/losses.py",
        "return loss * float(q.shape[0])",
        "return loss",
        "agents",
    ),
    (
        "agents/off_policy/agent.py",
        "action=self.network_action(batch.action)",
        "action=batch.action",
        "agents",
    ),
    (
        "agents/dqn/agent.py",
        "self.network.apply(state.target_params",
        "self.network.apply(state.params",
        "agents/test_dqn.py",
    ),
    ("rollout/step.py", "tf.gather(self.keys, t)", "self.keys[0]", "rollout"),
    (
        "rollout/step.py",
        "return where_rows(starts, self.fresh_carry, carry)",
        "return where_rows(starts, carry, self.fresh_carry)",
        "rollout",
    ),
    (
        "replay/ring_reader.py",
        "goes_on = there[:, 1:] & tf.equal(frame[:, 1:], frame[:, :-1] + 1)",
        "goes_on = there[:, 1:]",
        "replay/test_items.py",
    ),
    (
        "replay/ring_reader.py",
        "powers = [self._replay.discount**j for j in range(n + 1)]",
        "powers = [self._replay.discount ** (j + 1) for j in range(n + 1)]",
        "replay",
    ),
    (
        "replay/items.py",
        'node = tf.searchsorted(sums, targets, side="right"',
        'node = tf.searchsorted(sums, targets, side="left"',
        "replay",
    ),
    (
        "learners/train_step.py",
        "weights = {m: counts[m] / tf.maximum(totals[m], 1.0) for m in counts}",
        "weights = {m: tf.ones_like(counts[m]) for m in counts}",
        "learners/test_replicas.py",
    ),
    (
        "learners/train_step.py",
        "steps % update.every == 0",
        "steps % update.every == 1",
        "learners",
    ),
    (
        "learners/train_step.py",
        "conditions = [tf.math.is_finite(n) for n in computed.norms[owner].values()]",
        "conditions = [tf.constant(True)]",
        "learners",
    ),
    (
        "learners/train_step.py",
        'state.count("learner_steps", 1)',
        'state.count("learner_steps", 2)',
        "learners",
    ),
    (
        "learners/update.py",
        "bad = tf.unstack(computed - sums[1], n)",
        "bad = tf.unstack(computed, n)",
        "learners",
    ),
    (
        "learners/update.py",
        "active = tf.cast(~stopped[m], tf.float32)",
        "active = tf.cast(stopped[m], tf.float32)",
        "learners",
    ),
    (
        "learning/optimizers/adam.py",
        "beta2_power=tf.pow(beta_2, count)",
        "beta2_power=tf.pow(beta_1, count)",
        "learning",
    ),
]


def copy_of_the_project(folder: pathlib.Path) -> pathlib.Path:
    """Copies what the tests need; returns the copy."""
    copy = folder / "project"
    copy.mkdir()
    for name in _COPIED:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, copy / path.name)
    return copy


def is_found(copy: pathlib.Path, file: str, old: str, new: str, tests: str) -> bool:
    """Puts one fault in, runs the tests until one fails, and takes it out again."""
    path = copy / "tfrl" / file
    whole = path.read_text()
    assert whole.count(old) == 1, f"{file} has {old!r} {whole.count(old)} times, not once"
    path.write_text(whole.replace(old, new))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", f"tests/{tests}"]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ran = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    finally:
        path.write_text(whole)
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    return ran.returncode == 1


def main() -> int:
    """Tries the faults one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="packages or files, such as ops,learners/update")
    only = tuple(parser.parse_args().only.split(","))
    chosen = [fault for fault in FAULTS if fault[0].startswith(only)]
    found = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = copy_of_the_project(pathlib.Path(folder))
        for file, old, new, tests in chosen:
            begun = time.monotonic()
            right = is_found(copy, file, old, new, tests)
            found += right
            seconds = time.monotonic() - begun
            word = "found " if right else "MISSED"
            print(f"{word} {seconds:5.1f} s  {file}: {old.splitlines()[-1].strip()}", flush=True)
    print(f"found {found} of {len(chosen)}")
    return 0 if found == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
