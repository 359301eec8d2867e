"""Counts of the code: its size, the calls of one PPO iteration, the longest functions, the checks.

    python -m benchmarks.structure

One JSON line each. Code lines have a token of code: no comments, no docstrings. The walk lists the
Python functions from the training loop to the end of one PPO iteration, traced and run, in the
packages between the loop and the loss; environments, networks and formulas are leaves.
"""

import ast
import functools
import io
import pathlib
import sys
import tempfile
import tokenize
from typing import Any

from absl import app

from benchmarks.measure import ROOT, emit

PACKAGE = ROOT / "tfrl"
# Packages of formulas, networks and environments: calls into them are leaves of the walk.
LEAVES = (
    "checks.py",
    "distributions",
    "envs",
    "errors.py",
    "metrics",
    "networks",
    "ops",
    "seeding.py",
    "specs.py",
    "storage",
    "struct.py",
    "types.py",
    "xla.py",
)
_NO_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


@functools.cache
def _tree(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def code_lines(path: pathlib.Path) -> int:
    """Returns the number of code lines of a file."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, docstring.end_lineno + 1))
    return len(lines)


def _length(node: Any) -> int:
    return node.end_lineno - node.lineno + 1


def _check_lines(path: pathlib.Path) -> int:
    """Lines of `raise` statements, and of functions with names of checks."""
    lines: set[int] = set()
    for node in ast.walk(_tree(path)):
        checks = isinstance(node, ast.FunctionDef) and node.name.lstrip("_").startswith("check")
        if checks or isinstance(node, ast.Raise):
            lines.update(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def _sizes() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    functions, classes = [], []
    for path in files:
        for node in ast.walk(_tree(path)):
            name = f"{path.relative_to(ROOT)}:{getattr(node, 'name', '')}"
            if isinstance(node, ast.FunctionDef):
                functions.append((_length(node), name))
            elif isinstance(node, ast.ClassDef):
                methods = sum(isinstance(n, ast.FunctionDef) for n in node.body)
                classes.append((_length(node), name, methods))
    total = sum(map(code_lines, files))
    tests = sorted((ROOT / "tests").rglob("*.py"))
    emit(count="size", files=len(files), code_lines=total, folders=len({p.parent for p in files}))
    emit(count="tests", files=len(tests), code_lines=sum(map(code_lines, tests)))
    emit(
        count="checks",
        lines=sum(map(_check_lines, files)),
        share=sum(map(_check_lines, files)) / total,
    )
    emit(count="longest_functions", functions=sorted(functions, reverse=True)[:8])
    emit(count="largest_classes", classes=sorted(classes, reverse=True)[:8])


class _Walk:
    """Collects the functions of the library that Python enters, with their depth."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str]] = set()
        self.depth = self.loss_depth = 0

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        if event not in ("call", "return") or not self._counts(frame):
            return
        self.depth += 1 if event == "call" else -1
        if event == "call":
            file = frame.f_code.co_filename
            self.functions.add((file, frame.f_code.co_qualname))
            if pathlib.Path(file).name == "losses.py":
                self.loss_depth = max(self.loss_depth, self.depth)

    def _counts(self, frame: Any) -> bool:
        file = frame.f_code.co_filename
        if not file.startswith(str(PACKAGE)) or "<" in frame.f_code.co_name:
            return False
        return pathlib.Path(file).relative_to(PACKAGE).parts[0] not in LEAVES


def _walk() -> None:
    import tfrl
    from tfrl.agents import PPO
    from tfrl.workflows import OnPolicyWorkflow

    env = tfrl.make_env("tf:CartPole-v1", num_envs=4)
    agent = PPO(obs_spec=env.obs_spec, action_spec=env.action_spec)
    workflow = OnPolicyWorkflow(env=env, agent=agent, rollout_length=8, compile="graph")
    state = workflow.setup(0)
    walk = _Walk()
    with tempfile.TemporaryDirectory() as folder:
        sys.setprofile(walk)
        try:
            workflow.learn(state, total_env_steps=32, root_dir=folder, recorders=(), progress=False)
        finally:
            sys.setprofile(None)
    files = {pathlib.Path(file) for file, _ in walk.functions}
    emit(
        count="ppo_walk",
        functions=len(walk.functions),
        files=len(files),
        code_lines=sum(map(code_lines, files)),
        depth_to_the_loss=walk.loss_depth,
    )


def main(_: list[str]) -> None:
    """Prints the counts."""
    _sizes()
    _walk()


if __name__ == "__main__":
    app.run(main)
