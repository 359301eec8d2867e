import sys
import textwrap

import pytest
import tensorflow as tf

from tests import forked
from tfrl.distribute import describe, make_strategy, strategy
from tfrl.errors import UserError


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    for name in ("TF_CONFIG", "TPU_NAME", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(name="machine")
def fixture_machine(monkeypatch):
    """Sets how many devices the machine seems to have, and shows what strategies would be made."""

    def machine(cpus, gpus):
        monkeypatch.setattr(strategy, "num_cpus", lambda: cpus)
        monkeypatch.setattr(strategy, "num_gpus", lambda: gpus)

    made = []
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", made.append)
    monkeypatch.setattr(tf.distribute, "OneDeviceStrategy", made.append)
    machine.made = made
    return machine


GPUS = ["/GPU:0", "/GPU:1"]
CPUS = ["/CPU:0", "/CPU:1", "/CPU:2"]


@pytest.mark.parametrize(
    ("name", "cpus", "gpus", "expected"),
    [
        ("auto", 1, 0, "/CPU:0"),
        ("auto", 1, 1, "/GPU:0"),
        ("auto", 1, 2, GPUS),
        ("auto", 3, 0, CPUS),
        ("one_device", 1, 2, "/GPU:0"),
        ("mirrored", 1, 2, GPUS),
        ("mirrored", 1, 1, GPUS[:1]),
        ("mirrored", 3, 0, CPUS),
        ("mirrored", 3, 2, CPUS),  # splitting the CPU asks for it
    ],
)
def test_devices(machine, name, cpus, gpus, expected):
    machine(cpus, gpus)
    make_strategy(name)
    assert machine.made == [expected]


def test_mirrored_needs_devices(machine):
    machine(1, 0)
    with pytest.raises(UserError) as error:
        make_strategy("mirrored")
    assert str(error.value) == (
        "--strategy=mirrored: expected a GPU, or a CPU split into several devices, got 1 CPU "
        "device and no GPU. Add --num_logical_cpus=2 to try it on the CPU, or leave --strategy out."
    )


def test_splitting_the_cpu_comes_first():
    tf.constant(1.0)
    with pytest.raises(UserError, match="--num_logical_cpus=3: expected a setting before TensorF"):
        make_strategy("mirrored", num_logical_cpus=3)


@pytest.mark.parametrize(
    ("cpus", "gpus", "text"),
    [
        (1, 0, "1 CPU device and no GPU"),
        (2, 1, "2 CPU devices and 1 GPU"),
        (1, 2, "1 CPU device an"),
    ],
)
def test_found(machine, cpus, gpus, text):
    machine(cpus, gpus)
    assert strategy.found_devices().startswith(text)


@pytest.mark.parametrize("count", [0, -1])
def test_at_least_one_logical_cpu(count):
    with pytest.raises(UserError, match=f"--num_logical_cpus: .* of at least 1, got {count}"):
        strategy.make_logical_cpus(count)


def test_describe():
    assert describe(tf.distribute.get_strategy()) == "one_device, 1 replica on CPU:0"
    assert describe(tf.distribute.OneDeviceStrategy("CPU:1")) == "one_device, 1 replica on CPU:1"
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert describe(mirrored) == "mirrored, 2 replicas on CPU:0, CPU:1"


def test_one_device_computes_like_no_strategy():
    strategy = make_strategy("one_device")
    with strategy.scope():
        variable = tf.Variable(2.0)
    assert strategy.num_replicas_in_sync == 1
    assert float(tf.function(lambda: variable * 3.0, jit_compile=True)()) == 6.0


def run(code):
    return forked.run([sys.executable, "-c", textwrap.dedent(code)])


def test_two_logical_cpus_reduce():
    done = run("""
        import tensorflow as tf
        from tfrl.distribute import describe, make_strategy
        strategy = make_strategy("mirrored", num_logical_cpus=2)
        print(describe(strategy))
        @tf.function
        def total():
            # Replicas 0 and 1: 0 + 1 = 1.
            def index():
                context = tf.distribute.get_replica_context()
                x = tf.cast(context.replica_id_in_sync_group, tf.float32)
                return context.all_reduce("SUM", x)
            return strategy.experimental_local_results(strategy.run(index))
        print([float(x) for x in total()])
    """)
    assert done.stdout == "mirrored, 2 replicas on CPU:0, CPU:1\n[1.0, 1.0]\n", done.stderr


# TPUs: none is here, so it is the errors that are tested.


def tpu_error(*args, **kwargs):
    with pytest.raises(UserError) as error:
        make_strategy(*args, **kwargs)
    return str(error.value)


def test_no_tpu_in_this_machine():
    # In a process of its own: the failed start may leave TensorFlow's devices in any state.
    done = run("""
        from tfrl.distribute import make_strategy
        from tfrl.errors import UserError
        for tpu in ("local", None):
            try:
                make_strategy("tpu", tpu=tpu)
            except UserError as error:
                print(error)
    """)
    assert len(lines := done.stdout.splitlines()) == 2, done.stderr
    unnamed = "this machine, as neither --tpu nor TPU_NAME is given"
    for line, source in zip(lines, ("--tpu", unnamed), strict=True):
        assert line.startswith(
            f"--strategy=tpu: expected a TPU at 'local' (from {source}), got 1 CPU device and no "
            "GPU, and no TPU: TPUs not found in the cluster"
        )
        assert "Pass the TPU's address with --tpu" in line


def test_a_tpus_address_that_does_not_answer(free_port):
    message = tpu_error(tpu=f"grpc://127.0.0.1:{free_port}", startup_seconds=0.1)
    assert message == (
        f"The TPU in --tpu: expected an answer from 127.0.0.1:{free_port} within 0.1 s, got "
        "connection refused. Start the TPU, correct the address, or leave it out to train without "
        "a TPU."
    )


def test_an_address_in_the_environment(monkeypatch, free_port):
    monkeypatch.setenv("TPU_NAME", f"127.0.0.1:{free_port}")  # counts as grpc://...
    assert tpu_error(startup_seconds=0.1).startswith("The TPU in TPU_NAME: expected an answer from")


def test_a_malformed_address():
    assert "expected grpc://host:port, got 'grpc://a:b'" in tpu_error(tpu="grpc://a:b")


def test_a_tpus_name_outside_of_google_cloud(monkeypatch):
    def resolver(tpu):
        raise OSError(f"Name or service not known: {tpu}")

    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", resolver)
    message = tpu_error(tpu="mine")
    assert message.startswith("--strategy=tpu: expected a TPU at 'mine' (from --tpu), got")
    assert "no TPU: Name or service not known: mine. Pass" in message


def test_connects_then_initialises_then_makes_the_strategy(monkeypatch):
    calls = []

    def note(name):
        return lambda *args: calls.append((name, *args)) or name

    monkeypatch.setattr(
        tf.distribute.cluster_resolver, "TPUClusterResolver", lambda tpu: f"resolver of {tpu}"
    )
    monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", note("connect"))
    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", note("initialise"))
    monkeypatch.setattr(tf.distribute, "TPUStrategy", note("strategy"))
    assert strategy.tpu_strategy("local", 5.0) == "strategy"
    assert calls == [(n, "resolver of local") for n in ("connect", "initialise", "strategy")]
