import json

import pytest

from tfrl.distribute import choice
from tfrl.errors import UserError


def config(count):
    cluster = {"worker": [f"h{i}:1" for i in range(count)]}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})}


TPU = {"TPU_NAME": "mine"}
GKE = {"KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://h:1"}


@pytest.mark.parametrize(
    ("name", "tpu", "cpus", "environ", "expected"),
    [
        ("auto", None, 1, {}, "auto"),
        ("auto", None, 2, {}, "mirrored"),
        ("auto", "local", 1, {}, "tpu"),
        ("auto", None, 1, TPU, "tpu"),
        ("auto", None, 1, GKE, "tpu"),
        ("auto", None, 1, {**TPU, **config(2)}, "tpu"),
        ("auto", None, 1, config(2), "multi_worker"),
        ("auto", None, 1, config(1), "auto"),
        ("auto", None, 2, config(1), "mirrored"),
        ("one_device", None, 1, {**TPU, **config(2)}, "one_device"),
        ("mirrored", None, 4, config(2), "mirrored"),
        ("multi_worker", None, 1, config(1), "multi_worker"),
        ("tpu", None, 1, {}, "tpu"),
    ],
)
def test_choice(name, tpu, cpus, environ, expected):
    assert choice.choose(name, tpu=tpu, num_logical_cpus=cpus, environ=environ) == expected


@pytest.mark.parametrize(
    ("name", "tpu", "cpus", "environ", "message"),
    [
        (
            "mirored", None, 1, {},
            "--strategy: expected one of auto, one_device, mirrored, multi_worker, tpu, got "
            "'mirored'. Did you mean mirrored?",
        ),
        (
            "mirrored", "x", 1, {},
            "--tpu: expected no TPU with --strategy=mirrored, got 'x'.",
        ),
        (
            "auto", "", 1, {},
            "--tpu: expected a TPU's name, its address grpc://host:port, or 'local', got an empty "
            "string. Pass the address, or leave --tpu out.",
        ),
        (
            "one_device", None, 2, {},
            "--num_logical_cpus=2: expected --strategy=mirrored, which alone uses several CPU "
            "devices, got --strategy=one_device. Leave --num_logical_cpus out, or choose "
            "--strategy=mirrored.",
        ),
        ("auto", None, 2, TPU, "several CPU devices, got the TPU 'mine' in TPU_NAME. Leave"),
        ("auto", None, 2, config(3), "several CPU devices, got TF_CONFIG with 3 workers. Leave"),
        ("auto", None, 1, {"TF_CONFIG": "{"}, "TF_CONFIG: expected a description of the workers"),
        (
            "multi_worker", None, 1, {},
            "--strategy=multi_worker: expected the environment variable TF_CONFIG with the "
            "addresses of all workers, got no TF_CONFIG. Set TF_CONFIG in every process, or leave "
            "--strategy out to train "
            "in one.",
        ),
        ("multi_worker", None, 1, {"TF_CONFIG": "{}"}, "got a TF_CONFIG without a cluster."),
    ],
)  # fmt: skip
def test_mistakes(name, tpu, cpus, environ, message):
    with pytest.raises(UserError) as error:
        choice.choose(name, tpu=tpu, num_logical_cpus=cpus, environ=environ)
    assert message in str(error.value)


def test_the_flag_goes_before_the_environment(monkeypatch):
    assert choice.tpu_address("a", TPU) == ("a", "--tpu")
    assert choice.tpu_address(None, {**TPU, **GKE}) == (
        "grpc://h:1", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS",
    )  # fmt: skip
    assert choice.tpu_address(None, {"TPU_NAME": ""}) == (None, "")
    monkeypatch.setenv("TPU_NAME", "mine")
    assert choice.choose() == "tpu"
