import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import textwrap
import venv
import zipfile

import pytest

import tfrl

ROOT = pathlib.Path(__file__).resolve().parents[1]
BINARIES = tuple(sorted(path.stem for path in (ROOT / "bin").glob("*.py")))


def without_xla_lines(stderr):
    """Standard error without the two lines of the first program that XLA compiles."""
    lines = stderr.splitlines(keepends=True)
    known = ("absl::InitializeLog()", "Compiled cluster using XLA!")
    return "".join(line for line in lines if not any(text in line for text in known))


def _run(command, cwd, **env):
    """Runs a command without the variables by which pytest points processes at the checkout."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TF_CPP_MIN_LOG_LEVEL")}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**clean, **env},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=300,
    )


def _command(binary):
    """The name of a binary once it is installed."""
    return f"tfrl-{binary.replace('_', '-')}"


@pytest.fixture(name="wheel", scope="module")
def fixture_wheel(tmp_path_factory):
    """Builds the wheel from a copy of what a clone has, without the network."""
    out = tmp_path_factory.mktemp("wheel")
    source = out / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    for name in ("tfrl", "bin", "gin_configs"):
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for path in [p for p in ROOT.iterdir() if p.suffix in (".md", ".cff", ".py", ".toml", ".txt")]:
        shutil.copy(path, source)
    for name in ("MANIFEST.in", "LICENSE"):
        shutil.copy(ROOT / name, source)
    # The source distribution, and the wheel out of it.
    result = _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source], out)
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(name="installed", scope="module")
def fixture_installed(wheel, tmp_path_factory):
    """A virtual environment with the wheel; dependencies come from the one that runs the tests.

    A line of a .pth file adds a folder without reading the .pth files in it, so an editable tfrl
    over there stays out.
    """
    home = tmp_path_factory.mktemp("installed")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    (site,) = home.glob("lib/python*/site-packages")
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-deps",
        "--no-index",
    ]
    result = _run([*install, "--quiet", "--disable-pip-version-check", wheel], home)
    assert result.returncode == 0, result.stdout + result.stderr
    dependencies = pathlib.Path(pytest.__file__).resolve().parents[1]
    (site / "dependencies.pth").write_text(f"{dependencies}\n")
    return python


def test_version():
    assert tfrl.__version__ == "0.1.0"
    text = (ROOT / "tfrl" / "_version.py").read_text()
    assert f'__version__ = "{tfrl.__version__}"' in text


def test_names_are_lazy():
    assert "make_env" in dir(tfrl)
    with pytest.raises(AttributeError, match="module 'tfrl' has no attribute 'make_evn'"):
        tfrl.make_evn  # noqa: B018
    code = """
        import sys, tfrl
        heavy = {"tensorflow", "numpy", "absl", "tfrl.agents", "tfrl.envs", "tfrl.errors", "gin"}
        names = dir(tfrl)
        assert "PPO" in names and not hasattr(tfrl, "PPQ")
        assert not heavy & set(sys.modules)
        assert tfrl.errors.UserError.__name__ == "UserError"
        assert "tensorflow" not in sys.modules
        assert callable(tfrl.make_env) and tfrl.seeding.key
        assert tfrl.PPO.__name__ == "PPO" and tfrl.build_from_config and tfrl.train
        assert dir(tfrl) == names
        # A program's own flags may have the names of the binaries'.
        import tfrl.launch.training
        from absl import flags
        assert not {"seed", "root_dir", "gin_file"} & set(flags.FLAGS)
        from tfrl.replay import ReverbReplay, TableConfig
        assert "tensorflow" in sys.modules and "reverb" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)


def test_the_top_level_shows_names_that_are_there():
    names = set(dir(tfrl))
    assert {"Learner", "OnPolicyWorkflow", "make_env", "agents", "train"} <= names
    assert {*tfrl.__all__, *tfrl.agents.ALGORITHMS} <= names
    assert not [name for name in names if name.startswith("_") and name != "__version__"]
    for name in names:
        value = getattr(tfrl, name)
        if name in tfrl.__all__ and name != "__version__":
            assert value.__name__ == name and value.__doc__, name
    assert not {"importlib", "TYPE_CHECKING", "Any"} & names


def test_wheel_content(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    gin_files = [p.relative_to(ROOT) for p in (ROOT / "gin_configs").rglob("*.gin")]
    assert pathlib.Path("gin_configs/ppo/tf_cartpole.gin") in gin_files
    for path in gin_files:
        assert f"tfrl/_{path.as_posix()}" in names
    for binary in BINARIES:
        assert f"tfrl/_bin/{binary}.py" in names
    sources = {p.relative_to(ROOT).as_posix() for p in (ROOT / "tfrl").rglob("*.py")}
    assert sources <= names
    assert "tfrl/py.typed" in names
    assert any(name.endswith(".dist-info/LICENSE") or "licenses/LICENSE" in name for name in names)
    top = {name.partition("/")[0] for name in names}
    assert top == {"tfrl", f"tfrl-{tfrl.__version__}.dist-info"}


def test_the_source_distribution_has_what_builds_it(wheel):
    (path,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for file in ("gin_configs/ppo/tf_cartpole.gin", "bin/train.py", "tfrl/py.typed", "setup.py"):
        assert file in names, file
    assert {"CITATION.cff", "CHANGELOG.md", "LICENSE", "constraints.txt"} <= names


@pytest.mark.parametrize(
    ("tags", "commits", "version"),
    [
        ((), 0, tfrl.__version__),
        (("v1.2.3",), 0, "1.2.3"),
        (("v1.2.3", "not_a_version"), 2, "1.2.4.dev2+g"),
    ],
)
def test_the_version_is_that_of_the_tag(tmp_path, tags, commits, version):
    (tmp_path / "tfrl").mkdir()
    shutil.copy(ROOT / "setup.py", tmp_path)
    shutil.copy(ROOT / "tfrl" / "_version.py", tmp_path / "tfrl")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]

    def git(*words):
        assert _run(["git", *identity, *words], tmp_path).returncode == 0, words

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")
    for tag in tags:
        git("tag", tag)
    for _ in range(commits):
        git("commit", "-q", "--allow-empty", "-m", "later")

    def told(folder):
        done = _run([sys.executable, "setup.py", "--version"], folder)
        return done.stdout.splitlines()[-1]

    assert told(tmp_path).startswith(version) and len(told(tmp_path)) < len(version) + 12
    # An unpacked source distribution in the repository of somebody else is none of its commits.
    inner = tmp_path / "inner"
    (inner / "tfrl").mkdir(parents=True)
    shutil.copy(ROOT / "setup.py", inner)
    (inner / "tfrl" / "_version.py").write_text('__version__ = "9.8.7"\n')
    assert told(inner) == "9.8.7"


def test_metadata_leads_to_the_project(wheel):
    (metadata,) = importlib.metadata.distributions(path=[str(wheel)])
    urls = dict(line.split(", ") for line in metadata.metadata.get_all("Project-URL"))
    assert {"Documentation", "Source", "Issues", "Changelog"} <= set(urls)
    assert all(url.startswith("https://") for url in urls.values())
    assert not re.search(r"\]\((?!https://)", metadata.metadata.get_payload())
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"version: {tfrl.__version__}\n" in citation and urls["Source"] in citation
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert f"\n## [{tfrl.__version__}] - " in changes


def test_every_extra_is_in_all(wheel):
    (metadata,) = importlib.metadata.distributions(path=[str(wheel)])
    assert metadata.metadata["License"] == "Apache-2.0" or (
        metadata.metadata["License-Expression"] == "Apache-2.0"
    )
    extras = set(metadata.metadata.get_all("Provides-Extra"))
    assert extras == {
        *("all", "atari", "cuda", "dev", "docs", "envpool", "evolution-references", "export"),
        *("grpc", "jax", "mujoco", "multiagent", "plots", "ray", "report", "reverb", "serve"),
        *("tf-agents", "tune"),
        *("video", "video-writers", "wandb"),
    }
    split = [line.replace("'", '"').split('extra == "') for line in metadata.requires]
    lines = {(parts[0], parts[1].split('"')[0]) for parts in split if len(parts) == 2}
    left_out = ("all", "cuda", "dev", "docs", "evolution-references")  # tools, and GPU libraries
    assert {req for req, extra in lines if extra not in left_out} == {
        req for req, extra in lines if extra == "all"
    }
    page = (ROOT / "docs" / "install.md").read_text()
    assert extras == set(re.findall(r"^\| `([\w-]+)` \|", page, flags=re.MULTILINE)) | {
        "evolution-references"
    }
    scripts = {e.name: e.value for e in metadata.entry_points if e.group == "console_scripts"}
    assert scripts == {_command(name): f"tfrl.launch.{name}:run" for name in BINARIES}


@pytest.mark.parametrize("page", ["README.md", "docs/install.md"])
def test_a_page_names_every_binary(page):
    line = re.search(r"`tfrl-train`(?:,| and)(?:[^.]*)\.", (ROOT / page).read_text())[0]
    assert set(re.findall(r"`([\w-]+)`", line)) == set(map(_command, BINARIES))


def test_packages_are_complete():
    """Every folder of modules is a package; setuptools would leave others out of the wheel."""
    folders = {path.parent for path in (ROOT / "tfrl").rglob("*.py")}
    missing = [str(folder) for folder in folders if not (folder / "__init__.py").exists()]
    assert not missing


def test_constraints_pin_every_requirement():
    pinned = {
        line.partition("==")[0]
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    }
    text = (ROOT / "setup.py").read_text()
    for name in ("tensorflow", "tf-agents", "gymnasium", "envpool", "mypy", "pytest"):
        assert name in pinned
        assert f'"{name}' in text
    assert "pygame-ce" not in pinned, "it would install over the pygame of tf-agents"


@pytest.mark.parametrize("binary", BINARIES)
def test_binaries_answer_help(installed, tmp_path, binary):
    commands = [
        [installed, ROOT / "bin" / f"{binary}.py"],
        [installed.parent / _command(binary)],
    ]
    for command in commands:
        result = _run([*command, "--help"], tmp_path)
        assert (result.returncode, result.stderr) == (0, "")
        flags = {"report": "--comparison_dir", "collect": "--replay_server"}
        assert f"{flags.get(binary, '--root_dir')}=<value>" in result.stdout


def test_wheel_finds_its_gin_files(installed, tmp_path):
    code = """
        import pathlib, sys, tfrl
        from tfrl.launch import gin_files
        print(tfrl.__file__)
        print(gin_files.resolve("ppo/tf_cartpole.gin"))
    """
    result = _run([installed, "-c", textwrap.dedent(code)], tmp_path)
    assert result.returncode == 0, result.stderr
    module, gin_file = result.stdout.split()
    assert pathlib.Path(module).is_relative_to(installed.parents[1])
    assert gin_file == str(pathlib.Path(module).parent / "_gin_configs" / "ppo" / "tf_cartpole.gin")


def test_wheel_trains_from_an_unrelated_folder(installed, tmp_path):
    steps = 512
    result = _run(
        [
            installed.parent / "tfrl-train",
            "--root_dir=run",
            "--gin_file=ppo/tf_cartpole.gin",
            f"--gin_bindings=train.total_env_steps={steps}",
            "--gin_bindings=OnPolicyWorkflow.compile='graph'",
            "--gin_bindings=train.eval_interval=None",
            "--gin_bindings=train.final_eval_episodes=1",
            "--gin_bindings=train.video=False",
        ],
        tmp_path,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["env_steps"] >= steps
    config = (tmp_path / "run" / "operative_config.gin").read_text()
    assert f"total_env_steps = {steps}" in config
    for line in (
        "cuda",
        "CUDA",
        "TensorRT",
        "unmaintained",
        "pkg_resources",
    ):
        assert line not in result.stdout + result.stderr


def test_libraries_say_nothing(tmp_path):
    """tfrl first, then all that is noisy: no line on either stream but of XLA's first program."""
    code = """
        import tfrl
        import tensorflow as tf
        import importlib.util
        import gymnasium, pygame
        if importlib.util.find_spec("tf_agents"):
            import reverb
            from tf_agents.environments import suite_gym
        double = tf.function(lambda x: x + x, jit_compile=True)
        assert double(tf.ones([])) == 2.0
        tf.distribute.MirroredStrategy(["cpu:0"])
        env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
        env.reset(seed=0)
        assert env.render().std() > 0
        env.close()
    """
    result = _run([sys.executable, "-c", textwrap.dedent(code)], tmp_path, PYTHONPATH=str(ROOT))
    assert (result.returncode, result.stdout, without_xla_lines(result.stderr)) == (0, "", "")


@pytest.mark.parametrize("level", ["0", "1", "3"])
def test_the_users_log_level_stays(tmp_path, level):
    code = """
        import os, tfrl
        print(os.environ["TF_CPP_MIN_LOG_LEVEL"], os.environ["SDL_AUDIODRIVER"])
        import logging
        print(logging.getLogger("tensorflow").level == logging.WARNING)
    """
    result = _run(
        [sys.executable, "-c", textwrap.dedent(code)],
        tmp_path,
        PYTHONPATH=str(ROOT),
        TF_CPP_MIN_LOG_LEVEL=level,
        SDL_AUDIODRIVER="alsa",
    )
    assert result.stdout.split() == [level, "alsa", str(level != "0")], result.stderr


_MISSING = """
import tensorflow as tf
from tfrl.replay import ReverbReplay

spec = tf.TensorSpec([])
print(tf.__version__)
try:
    ReverbReplay(obs_spec=spec, action_spec=spec, capacity=3, num_envs=1).make_tables()
except Exception as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("python", "extras"),
    [(f"3.{minor}", "") for minor in range(10, 14)]
    + [(f"3.{minor}", "[reverb,tf-agents]") for minor in (10, 11)],
)
def test_a_fresh_environment_trains(wheel, tmp_path, python, extras):
    """`pip install` of the wheel with its dependencies from the index, then a training."""
    pyenv = sorted(pathlib.Path.home().glob(f".pyenv/versions/{python}.*/bin/python"))
    candidates = [*pyenv, shutil.which(f"python{python}")]
    works = [x for x in candidates if x and _run([x, "-c", ""], tmp_path).returncode == 0]
    if not works:
        pytest.skip(f"no Python {python}")
    interpreter = works[-1]
    home = tmp_path / "env"
    assert _run([interpreter, "-m", "venv", home], tmp_path).returncode == 0
    pip = [home / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = _run([*pip, f"{wheel}{extras}"], tmp_path)
    assert done.returncode == 0, done.stderr
    done = _run([home / "bin" / "python", "-c", _MISSING], tmp_path)
    version, *message = done.stdout.splitlines()
    if extras:
        assert version.startswith("2.15.") and not message
    else:
        assert tuple(map(int, version.split(".")[:2])) >= (2, 18)
        assert "pip install 'tfrl[reverb]'" in message[0] and "InGraphReplay" in message[0]
    done = _run(
        [
            home / "bin" / "tfrl-train",
            "--gin_file=ppo/tf_cartpole.gin",
            "--root_dir=run",
            "--total_env_steps=2_048",
            "--gin_bindings=train.video=False",
        ],
        tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["env_steps"] == 2_048


@pytest.mark.slow
def test_the_types_reach_a_users_program(installed, tmp_path):
    """mypy of a user's file finds types in the installed package, since it has py.typed."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import tfrl
            from tfrl.learners import ModuleConfig
            from tfrl.workflows import OnPolicyWorkflow

            summary = tfrl.train("ppo/tf_cartpole.gin", total_env_steps=1)
            reveal_type(summary)
            reveal_type(tfrl.load("runs/first").predict)
            workflow = OnPolicyWorkflow(env=tfrl.make_env("tf:CartPole-v1"), agent=tfrl.RandomAgent)
            reveal_type(workflow.setup(0).metrics.env_steps)
            OnPolicyWorkflow(env=tfrl.make_env("tf:CartPole-v1"), agent=tfrl.RandomAgent, epochs=1)
            """
        )
    )
    done = _run(
        [sys.executable, "-m", "mypy", "--python-executable", installed, "--cache-dir", tmp_path]
        + ["--ignore-missing-imports", "program.py"],
        tmp_path,
    )
    assert "py.typed" not in done.stdout and "import-untyped" not in done.stdout, done.stdout
    assert 'Revealed type is "builtins.dict[builtins.str, Any]"' in done.stdout
    assert "deterministic" in done.stdout  # of predict
    assert 'Unexpected keyword argument "epochs"' in done.stdout
