import subprocess
import sys
import textwrap

import pytest

from tfrl.errors import UserError
from tfrl.launch import flags


def _python(code):
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120
    )
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


@pytest.mark.parametrize("strategy", ["auto", "one_device"])
def test_available_strategies(strategy):
    flags.check_strategy(strategy)


@pytest.mark.parametrize("strategy", ["mirrored", "multi_worker", "tpu"])
def test_unavailable_strategies(strategy):
    with pytest.raises(UserError, match=f"{strategy}, which is not available in this version"):
        flags.check_strategy(strategy)


def test_configure_tensorflow_makes_logical_cpus():
    out = _python("""
        from absl import flags as absl_flags
        from tfrl.launch import flags
        absl_flags.FLAGS(["program", "--num_logical_cpus=3", "--deterministic_ops"])
        flags.configure_tensorflow(flags.capture())
        import tensorflow as tf
        from tensorflow.python.framework import config
        print(len(tf.config.list_logical_devices("CPU")), config.is_op_determinism_enabled())
    """)
    assert out.split() == ["3", "True"]
