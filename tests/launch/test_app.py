import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from tfrl import loading
from tfrl.envs.env_calls import HostErrors, env_error
from tfrl.errors import UserError
from tfrl.launch import app

PROGRAM = """
import sys
from absl import flags
from tfrl.errors import UserError
from tfrl.launch import app
from tfrl.launch.flags import check_strategy, common

flags.DEFINE_enum("mode", "ok", ["ok", "user", "gin", "interrupt", "exit", "bug", "none"], "Mode.")


def main():
    mode = flags.FLAGS.mode
    if mode == "user":
        raise UserError("num_envs", expected="a positive number", got=-1, remedy="Raise it.")
    if mode == "gin":
        import gin
        def part():
            raise UserError("num_envs", expected="a positive number", got=-1, remedy="Raise it.")
        outer = gin.external_configurable(part, "outer", module="test")
        gin.external_configurable(lambda: outer(), "outermost", module="test")()
    if mode == "interrupt":
        raise KeyboardInterrupt
    if mode == "exit":
        raise SystemExit(143)
    if mode == "bug":
        raise RuntimeError("a bug")
    if mode == "none":
        return None
    check_strategy(common().strategy, common().tpu)
    print(common())
    return 0


app.run(main, doc="Does a thing.")
"""


@pytest.fixture(name="call", scope="module")
def fixture_call(tmp_path_factory):
    program = tmp_path_factory.mktemp("app") / "program.py"
    program.write_text(PROGRAM)

    def call(*args, stdout=subprocess.PIPE):
        return subprocess.run(
            [sys.executable, str(program), *args],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )

    return call


def test_defaults_and_values(call):
    result = call()
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.strip() == (
        "CommonFlags(seed=0, if_exists='resume', strategy='auto', num_logical_cpus=1, "
        "deterministic_ops=False, root_dir=None, gin_file=(), gin_bindings=(), tpu=None, "
        "allow_code=False)"
    )
    result = call(
        "--root_dir=/x", "--gin_file=a.gin", "--gin_file=b.gin", "--gin_bindings=a.b='c, d'",
        "--gin_bindings", "e.f=1", "--seed=7", "--if_exists=new", "--strategy=one_device",
        "--deterministic_ops",
    )  # fmt: skip
    assert result.stdout.strip() == (
        "CommonFlags(seed=7, if_exists='new', strategy='one_device', num_logical_cpus=1, "
        "deterministic_ops=True, root_dir='/x', gin_file=('a.gin', 'b.gin'), "
        "gin_bindings=(\"a.b='c, d'\", 'e.f=1'), tpu=None, allow_code=False)"
    )


@pytest.mark.parametrize("flag", ["--help", "-h", "--helpshort", "--helpfull"])
def test_help(call, flag):
    result = call(flag)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("Does a thing.\n\nFlags:\n")
    for name in ("root_dir", "gin_file", "gin_bindings", "seed", "tpu", "num_logical_cpus", "mode"):
        assert f"  --{name}=<" in result.stdout
    assert "  --if_exists=<resume|fail|new>\n" in result.stdout
    assert "  --[no]deterministic_ops\n" in result.stdout
    assert "overrides the files; may be repeated.\n" in result.stdout
    assert ("pdb" in result.stdout) == (flag == "--helpfull")
    assert (
        "--mode=<ok|user|gin|interrupt|exit|bug|none>\n      Mode. Default: ok.\n" in result.stdout
    )


def test_help_into_a_pipe_that_closes(call):
    read, write = os.pipe()
    os.close(read)
    result = call("--help", stdout=write)
    os.close(write)
    assert (result.returncode, result.stderr) == (0, "")


def test_help_after_a_double_dash_is_no_help(call):
    assert call("--", "--help").returncode == 2


def _times(call, *args):
    for _ in range(5):
        start = time.perf_counter()
        call(*args)
        yield time.perf_counter() - start


def test_help_is_quick(call):
    # The best of five, since other processes may hold the cores.
    assert min(_times(call, "--help")) < 0.7


def test_front_door_imports_no_tensorflow():
    code = """
        import sys
        import tfrl
        from tfrl.launch import app, flags, gin_files
        heavy = {"tensorflow", "numpy", "gymnasium", "tf_agents", "reverb"} & set(sys.modules)
        assert not heavy, heavy
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["--root_dri=x"],
            "Error: Flag --root_dri: expected a flag of this binary, got an unknown flag. Did you "
            "mean root_dir? --help explains them.\n",
        ),
        (
            ["--seed=abc"],
            "Error: Flag --seed: expected a non-negative integer, got 'abc' (invalid literal for "
            "int() with base 10: 'abc'). --help explains the flags.\n",
        ),
        (
            ["--seed=-1"],
            "Error: Flag --seed: expected a non-negative integer, got '-1' (-1 is not a "
            "non-negative integer). --help explains the flags.\n",
        ),
        (
            ["--if_exists=maybe"],
            "Error: Flag --if_exists: expected one of resume, fail, new, got 'maybe' (value "
            "should be one of <resume|fail|new>). --help explains the flags.\n",
        ),
        (
            ["train.total_env_steps=3"],
            "Error: Argument 'train.total_env_steps=3': expected flags of the form --name=value "
            "only, got 1 argument without a flag. Pass it with its flag, or leave it out; --help "
            "lists the flags.\n",
        ),
        (
            ["--strategy=multi_worker"],
            "Error: --strategy=multi_worker: expected the environment variable TF_CONFIG with the "
            "addresses of all workers, got no TF_CONFIG. Set TF_CONFIG in every process, or leave "
            "--strategy out to "
            "train in one.\n",
        ),
        (
            ["--tpu=local", "--strategy=one_device"],
            "Error: --tpu: expected no TPU with --strategy=one_device, got 'local'.\n",
        ),
        (
            ["--mode=user"],
            "Error: num_envs: expected a positive number, got -1. Raise it.\n",
        ),
        (  # gin appends "In call to configurable ..." to what passes through it.
            ["--mode=gin"],
            "Error: num_envs: expected a positive number, got -1. Raise it.\n",
        ),
    ],
)
def test_mistakes_are_one_paragraph_and_code_2(call, args, message):
    result = call(*args)
    assert result.stderr == message
    assert result.stdout == ""
    assert result.returncode == 2


def test_missing_value_names_the_flag(call):
    result = call("--seed")
    assert result.returncode == 2
    assert result.stderr.startswith("Error: ")
    assert "seed" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(("mode", "code"), [("interrupt", 130), ("exit", 143), ("none", 0)])
def test_other_ends(call, mode, code):
    result = call(f"--mode={mode}")
    assert result.returncode == code
    assert "Traceback" not in result.stderr


def test_a_bug_keeps_its_traceback(call):
    result = call("--mode=bug")
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert "RuntimeError: a bug" in result.stderr


def test_common_before_parsing_is_a_bug():
    code = "from tfrl.launch import flags; flags.common()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "RuntimeError: flags.common() was called before" in result.stderr


def test_help_text_without_doc_starts_with_the_flags():
    assert app.help_text("").startswith("Flags:\n")


def test_an_error_of_an_environment_shows_the_users_traceback_then_the_paragraph(capsys):
    def main():
        try:
            try:
                raise KeyError("missing")
            except KeyError as error:
                raise env_error(error, "step() of x", "Repeat it.") from error
        except UserError as error:  # as a check before the training does
            raise UserError("y", expected="z", got=error.got, remedy="Mend it.") from error

    with pytest.raises(SystemExit) as end:
        app._call(main)
    assert end.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-2] == "KeyError: 'missing'"
    assert lines[-1] == "Error: y: expected z, got KeyError: 'missing'. Mend it."


def test_an_error_of_a_host_call_in_a_graph_is_its_paragraph(capsys, monkeypatch):
    told = UserError("reward of x", expected="a number", got=None, remedy="Return float(reward).")
    monkeypatch.setattr(HostErrors, "last", told)

    def main():
        raise RuntimeError(f"{{{{function_node __inference_1}}}} UserError: {told}")

    with pytest.raises(SystemExit) as end:
        app._call(main)
    assert end.value.code == 2
    assert capsys.readouterr().err == f"Error: {told}\n"


@pytest.mark.parametrize("end", [None, UserError("a", expected="b", got="c", remedy="D.")])
def test_names_are_distrusted_for_one_program_alone(end):
    def main():
        loading.distrust("/runs/foreign/operative_config.gin")
        if end is not None:
            raise end

    with pytest.raises(SystemExit):
        app._call(main)
        raise SystemExit(0)
    assert loading.distrusted() is None


def test_an_error_of_tensorboards_thread_is_left_to_the_main_one(capsys):
    class Writer(threading.Thread):
        __module__ = "tensorboard.summary.writer.event_file_writer"

    for kind in (Writer, threading.Thread):
        args = threading.ExceptHookArgs((OSError, OSError("full"), None, kind()))
        app._show_thread_error(args)
        assert ("full" in capsys.readouterr().err) == (kind is threading.Thread)
