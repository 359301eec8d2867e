import subprocess
import sys
import textwrap
import types

import pytest
from absl.testing import flagsaver

from tests import forked
from tfrl import distribute
from tfrl.errors import UserError
from tfrl.launch import flags, shared_flags


def _python(code):
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def _with_tensorflow(code):
    result = forked.run([sys.executable, "-c", textwrap.dedent(code)])
    assert result.returncode == 0, result.stderr
    return result.stdout


# What tf_agents/train/utils/strategy_utils.py does at import.
TF_AGENTS = """
import types
module = types.ModuleType("strategy_utils")
exec(compile(
    "from absl import flags\\n"
    "flags.DEFINE_string('tpu', None, 'BNS address for the TPU')\\n", "strategy_utils", "exec",
), module.__dict__)
"""


@pytest.mark.parametrize("first", [True, False])
def test_tpu_stands_beside_tf_agents_own(first):
    ours = "from tfrl.launch import flags"
    code = (TF_AGENTS + ours) if first else (ours + TF_AGENTS)
    code += textwrap.dedent("""
        from absl import flags as absl_flags
        absl_flags.FLAGS(["program", "--tpu=local", "--seed=3"])
        assert flags.capture().tpu == "local"
        assert flags.common().seed == 3
    """)
    _python(code)


@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False])
def test_tpu_stands_beside_the_real_tf_agents(first):
    ours = "from tfrl.launch import flags\n"
    theirs = "from tf_agents.train.utils import strategy_utils\n"
    code = (theirs + ours) if first else (ours + theirs)
    _python(code + "from absl import flags as f; f.FLAGS(['program', '--tpu=x'])")


def test_value_outlives_a_later_definition():
    _python(
        "from tfrl.launch import flags\n"
        "from absl import flags as absl_flags\n"
        "absl_flags.FLAGS(['program', '--tpu=local'])\n"
        "flags.capture()\n" + TF_AGENTS + "assert flags.common().tpu == 'local'\n"
    )


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch):
    for name in ("TF_CONFIG", "TPU_NAME", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("right", "wrong", "flag"),
    [
        (("auto",), ("auto", ""), "--tpu"),
        (("one_device",), ("one_device", "local"), "--tpu"),
        (("mirrored", None, 2), ("one_device", None, 2), "--num_logical_cpus=2"),
        (("auto", "local"), ("auto", "local", 2), "--num_logical_cpus=2"),
        (("tpu",), ("tpu", None, 2), "--num_logical_cpus=2"),
    ],
)
def test_flags_that_go_together(right, wrong, flag):
    flags.check_strategy(*right)
    with pytest.raises(UserError, match=f"^{flag}: expected "):
        flags.check_strategy(*wrong)


def test_strategy_is_checked_without_tensorflow():
    out = _python("""
        import sys
        from absl import flags as absl_flags
        from tfrl.errors import UserError
        from tfrl.launch import flags
        absl_flags.FLAGS(["program", "--strategy=mirrored", "--tpu=x"])
        values = flags.capture()
        try:
            flags.check_strategy(values.strategy, values.tpu, values.num_logical_cpus)
        except UserError as error:
            print(error, "tensorflow" in sys.modules)
    """)
    assert out.startswith("--tpu: expected no TPU with --strategy=mirrored, got 'x'.")
    assert out.endswith(" False\n")


def test_malformed_tf_config_is_a_mistake(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{")
    with pytest.raises(UserError, match="TF_CONFIG: expected a description of the workers"):
        flags.check_strategy("auto")


FROM_FLAGS = """
    from absl import flags as absl_flags
    from tfrl.distribute import describe
    from tfrl.errors import UserError
    from tfrl.launch import flags
    absl_flags.FLAGS(["program", *{arguments}])
    values = flags.capture()
    flags.configure_tensorflow(values)
    try:
        print(describe(flags.strategy_from_flags(values)))
    except UserError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "one_device, 1 replica on CPU:0"),
        (["--num_logical_cpus=2"], "mirrored, 2 replicas on CPU:0, CPU:1"),
        (["--strategy=mirrored"], "--strategy=mirrored: expected a GPU, or a CPU split into "),
    ],
)
@pytest.mark.variants(1)
def test_strategy_from_flags(arguments, expected):
    assert _with_tensorflow(FROM_FLAGS.format(arguments=arguments)).startswith(expected)


def test_workers_wait_for_each_other_as_long_as_for_other_processes(monkeypatch):
    monkeypatch.setattr(distribute, "make_strategy", lambda *args, **options: options)
    values = types.SimpleNamespace(strategy="multi_worker", tpu=None, num_logical_cpus=1)
    shared_flags.define("wait_seconds")
    with flagsaver.as_parsed(wait_seconds="7"):
        assert flags.strategy_from_flags(values)["startup_seconds"] == 7.0
    with flagsaver.as_parsed(wait_seconds="inf"):  # of an evaluator that a launcher started
        assert "startup_seconds" not in flags.strategy_from_flags(values)


@pytest.mark.parametrize(
    ("binary", "missing"),
    [
        ("collect", ["root_dir", "if_exists", "strategy", "num_logical_cpus", "allow_code"]),
        ("reverb_server", ["seed", "if_exists", "tpu", "num_logical_cpus", "deterministic_ops"]),
        ("launch", ["allow_code"]),
        ("learn", ["check_env", "replay_reconnect_seconds"]),
    ],
)
def test_a_binary_has_only_flags_that_it_reads(binary, missing):
    shown = forked.run([sys.executable, f"bin/{binary}.py", "--help"]).stdout
    assert not [name for name in missing if f"--{name}=" in shown or f"]{name}\n" in shown]
    assert "--gin_file=" in shown and "quiet\n" in shown


def test_configure_tensorflow_makes_logical_cpus():
    out = _with_tensorflow("""
        from absl import flags as absl_flags
        from tfrl.launch import flags
        absl_flags.FLAGS(["program", "--num_logical_cpus=3", "--deterministic_ops"])
        flags.configure_tensorflow(flags.capture())
        import tensorflow as tf
        from tensorflow.python.framework import config
        print(len(tf.config.list_logical_devices("CPU")), config.is_op_determinism_enabled())
    """)
    assert out.split() == ["3", "True"]
