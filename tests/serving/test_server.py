"""Requests over HTTP and gRPC beside what the policy itself predicts."""

import asyncio
import concurrent.futures
import contextlib
import http.client
import json
import threading
import time

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from tfrl import seeding, specs
from tfrl.agents import DQN, PPO
from tfrl.episodes import SingleAgentEpisode, read_episodes, write_episodes
from tfrl.errors import UserError
from tfrl.launch import serve
from tfrl.launch.launch import free_ports
from tfrl.learners import Learner
from tfrl.rollout.policy import Policy
from tfrl.serving import grpc_service
from tfrl.serving.batcher import Batcher, Busy
from tfrl.serving.episode_log import EpisodeLog
from tfrl.serving.served_policy import RequestRows, ServedPolicy
from tfrl.serving.server import PolicyServer, ServingOptions

STATE = ("state_policy_hidden", "state_value_hidden")
OBS = {"b": tf.TensorSpec([2], tf.float32), "a": specs.DiscreteSpec(3)}


def recurrent(seed=0):
    agent = PPO(
        obs_spec=OBS,
        action_spec=specs.BoundedTensorSpec([1], tf.float32, -1.0, 1.0),
        hidden=(8,),
        memory="gru",
        memory_size=4,
    )
    return Policy(agent, agent.init(seeding.key(seed)))


def greedy():
    agent = DQN(
        obs_spec=tf.TensorSpec([2], tf.float32), action_spec=specs.DiscreteSpec(4), hidden=(8,)
    )
    return agent, Policy(agent, agent.init(seeding.key(0)))


class Running:
    """A server in a thread, and its clients."""

    def __init__(self, server, grpc_port=None):
        self._listening = serve.listen("127.0.0.1", 0)
        self._port = self._listening.getsockname()[1]
        self._server = serve.uvicorn_server(server)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(server, grpc_port)))
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)

    async def _run(self, server, grpc_port):
        made = None
        if grpc_port is not None:
            made = await grpc_service.start(server, f"127.0.0.1:{grpc_port}")
        await self._server.serve(sockets=[self._listening])
        if made is not None:
            await made.stop(None)
        server.close()

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self._port)

    def call(self, path, body=None):
        with contextlib.closing(self.connect()) as connection:
            text = None if body is None else body if isinstance(body, str) else json.dumps(body)
            connection.request("GET" if body is None else "POST", path, text)
            response = connection.getresponse()
            content = response.read().decode()
        json_ = response.headers["Content-Type"] == "application/json"
        return response.status, json.loads(content) if json_ else content

    def predict(self, body, model="play"):
        return self.call(f"/v1/models/{model}:predict", body)

    def stop(self):
        self._server.should_exit = True
        self._thread.join()


@pytest.fixture(name="two_versions", scope="module")
def fixture_two_versions():
    policies = [ServedPolicy(recurrent(0), 100), ServedPolicy(recurrent(1), 200)]
    options = ServingOptions(name="play", max_batch_size=4)
    server = PolicyServer(policies, options, {"best": 100})
    (port,) = free_ports(1)
    running = Running(server, port)
    yield running, policies, port
    running.stop()


def rows(size, seed=0):
    generator = np.random.default_rng(seed)
    b, a = generator.normal(size=[size, 2]).astype(np.float32), generator.integers(3, size=size)
    columns = {"observation_a": a.tolist(), "observation_b": b.tolist()}
    instances = [
        dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
    ]
    return {"a": a, "b": b}, columns, instances


def test_rows_and_columns_with_memory(two_versions):
    running, (_, newest), _ = two_versions
    obs, columns, instances = rows(3)
    action, state = newest.policy.predict(obs)
    code, answer = running.predict({"instances": instances})
    assert code == 200
    assert [set(row) for row in answer["predictions"]] == [{"action", *STATE}] * 3
    np.testing.assert_allclose([r["action"] for r in answer["predictions"]], action, atol=1e-6)
    # The state goes in as it came out, but for a row where an episode starts.
    after = {name: [row[name] for row in answer["predictions"]] for name in STATE}
    for name, leaf in zip(STATE, tf.nest.flatten(state), strict=True):
        np.testing.assert_allclose(after[name], leaf, atol=1e-6)
    starts = [False, True, False]
    action, _ = newest.policy.predict(obs, state=state, episode_start=starts)
    code, answer = running.predict(
        {"inputs": {**columns, **after, "episode_start": starts}, "signature_name": "action"}
    )
    assert code == 200 and set(answer["outputs"]) == {"action", *STATE}
    np.testing.assert_allclose(answer["outputs"]["action"], action, atol=1e-6)
    code, drawn = running.predict({"inputs": columns, "signature_name": "explore"})
    assert code == 200 and not np.allclose(drawn["outputs"]["action"], action)


def test_versions_labels_status_and_metadata(two_versions):
    running, (old, newest), _ = two_versions
    ok = {"error_code": "OK", "error_message": ""}
    states = [{"version": v, "state": "AVAILABLE", "status": ok} for v in ("200", "100")]
    assert running.call("/v1/models/play") == (200, {"model_version_status": states})
    assert running.call("/v1/models/play/versions/100")[1] == {"model_version_status": states[1:]}
    obs, columns, _ = rows(2)
    for path in ("versions/100", "labels/best"):
        code, answer = running.call(f"/v1/models/play/{path}:predict", {"inputs": columns})
        assert code == 200
        np.testing.assert_allclose(
            answer["outputs"]["action"], old.policy.predict(obs)[0], atol=1e-6
        )
    code, found = running.call("/v1/models/play/metadata")
    assert found["model_spec"] == {"name": "play", "signature_name": "", "version": "200"}
    signature = found["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert set(signature["inputs"]) == {*columns, *STATE, "episode_start"}
    sizes = [d["size"] for d in signature["inputs"]["observation_b"]["tensor_shape"]["dim"]]
    assert (signature["inputs"]["observation_b"]["dtype"], sizes) == ("DT_FLOAT", ["-1", "2"])
    assert signature["inputs"]["observation_a"]["dtype"] == "DT_INT64"
    for path, got in (
        ("/v1/models/other", "model other: expected play"),
        ("/v1/models/play/versions/3", "version 3 of play: expected 100, 200"),
        ("/v1/models/play/labels/x", "label x: expected best"),
        ("/nowhere", "GET /nowhere"),
    ):
        code, answer = running.call(path)
        assert code == 404 and got in answer["error"]
    for path in ("play:predict", "play/labels/best:predict", "play/versions/100:predict"):
        code, answer = running.call(f"/v1/models/{path}")
        assert (code, answer) == (
            405,
            {"error": f"GET /v1/models/{path}: Method Not Allowed"},
        )


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"observation_b": [[0, 1], [2]]}, "observation_b: expected numbers, in lists of equal"),
        ({"observation_b": [[0, 1, 2]] * 2}, "obs/b: expected float32 of shape [2], or a batch"),
        ({"observation_b": [[0, 1]]}, "expected the same batch size in all parts, got 1, 2"),
        ({"observation_a": [0.5, 1.0]}, "obs/a: expected int64"),
        ({"observation_a": [1, 7]}, "obs/a: expected whole numbers from 0 to 2, got 1 to 7"),
        ({"observation_b": [[0, 1], [0, float("nan")]]}, "expected JSON, got NaN, which JSON does"),
        (
            {name: [[0.0] * 4, [1e39] * 4] for name in STATE},
            "state_policy_hidden: expected finite numbers, got inf at [1, 0]",
        ),
        ({"observation_a": ["x", "y"]}, "observation_a: expected numbers"),
        ({"c": [1, 2]}, "the inputs of the request: expected observation_a, observation_b, state"),
        (
            {name: [[0.0] * 3] * 2 for name in STATE},
            "state_policy_hidden: expected float32 of shape [2, 4], got float32 of shape [2, 3]",
        ),
        ({STATE[0]: [[0.0] * 4] * 2}, "expected all of state_policy_hidden, state_value_hidden"),
        ({"episode_start": [1, 0]}, "episode_start: expected bool of shape [2], got int64"),
        (
            {"episode_id": ["x", "y"]},
            "expected no episode_id, got a server without episode logging",
        ),
    ],
)
def test_wrong_inputs(two_versions, change, error):
    running, _, _ = two_versions
    _, columns, _ = rows(2)
    code, answer = running.predict({"inputs": {**columns, **change}})
    assert code == 400 and error in answer["error"], answer


def test_wrong_requests(two_versions):
    running, _, _ = two_versions
    _, columns, instances = rows(2)
    for body, error in (
        ("{", "the request: expected JSON"),
        ([], "expected an object with instances or inputs"),
        (
            {"instances": instances, "inputs": columns},
            "expected an object with instances or inputs",
        ),
        ({"instances": instances, "x": 1}, "expected an object with instances or inputs"),
        ({"instances": []}, "instances: expected a list of at least one observation"),
        ({"instances": [[0, 1]]}, "expected an object with observation_a, observation_b"),
        ({"instances": [instances[0], {}]}, "instance 1: expected the names of the first"),
        (
            {"instances": instances, "signature_name": "x"},
            "signature_name: expected serving_default",
        ),
        ({"instances": instances, "signature_name": []}, "signature_name: expected serving"),
        (
            '{"inputs": {"observation_a": [0, 1], "observation_b": [[0, 1], [0, 1e400]]}}',
            "observation_b: expected finite numbers, got inf at [1, 1]",
        ),
        ("[" * 100_000, "the request: expected JSON, got maximum recursion depth"),
    ):
        code, answer = running.predict(body)
        assert code == 400 and error in answer["error"], answer


@pytest.fixture(name="small")
def fixture_small(monkeypatch):
    """A server that takes one MB, and waits 0.2 s for requests when it ends."""
    monkeypatch.setattr(serve, "_GRACE_SECONDS", 0.2)
    _, policy = greedy()
    server = PolicyServer([ServedPolicy(policy, 1)], ServingOptions(max_request_mb=1), {})
    running = Running(server)
    yield running
    running.stop()


def test_large_bodies(small):
    body = json.dumps({"instances": [[0.0, 0.0]]})
    for size, expected in ((2**20, 200), (2**20 + 1, 413)):
        code, answer = small.predict(body.ljust(size), "policy")
        assert code == expected, answer
    assert "the request: expected at most 1 MB, got 1,048,577 bytes" in answer["error"]
    with contextlib.closing(small.connect()) as connection:  # without a Content-Length
        path = "/v1/models/policy:predict"
        connection.request("POST", path, iter([b" " * 2**19] * 3), encode_chunked=True)
        response = connection.getresponse()
        assert response.status == 413 and "got more" in json.load(response)["error"]
        connection.request("POST", path, body)  # the connection goes on
        assert connection.getresponse().status == 200


def half_sent(running):
    connection = running.connect()
    connection.putrequest("POST", "/v1/models/policy:predict")
    connection.putheader("Content-Length", "100")
    connection.endheaders(b'{"instances"')
    return connection


def test_clients_that_leave_within_a_request(small, caplog, capfd):
    half_sent(small).close()
    start = time.monotonic()
    while 'tfrl_requests_total{code="400"} 1.0' not in small.call("/metrics")[1]:
        assert time.monotonic() - start < 10
        time.sleep(0.01)
    assert not caplog.records
    # The end does not wait for the rest of a request.
    with contextlib.closing(half_sent(small)) as connection:
        time.sleep(0.1)
        start = time.monotonic()
        small.stop()
        assert time.monotonic() - start < 5
        response = connection.getresponse()
        assert (response.status, json.load(response)) == (
            503,
            {"error": "the server is shutting down"},
        )
    assert "Exception" not in caplog.text and "Exception" not in capfd.readouterr().err


def test_many_clients_at_once(two_versions):
    """More rows than a batch has, of requests of 1 to 6 rows: each gets its own."""
    running, (_, newest), _ = two_versions
    asked = [rows(1 + i % 6, seed=i) for i in range(24)]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda r: running.predict({"inputs": r[1]}), asked))
    for (obs, _, _), (code, answer) in zip(asked, answers, strict=True):
        one_by_one = [
            newest.policy.predict({"a": a, "b": b})[0]
            for a, b in zip(obs["a"], obs["b"], strict=True)
        ]
        assert code == 200
        np.testing.assert_allclose(answer["outputs"]["action"], one_by_one, atol=1e-5)
    _, text = running.call("/metrics")
    assert 'tfrl_requests_total{code="200"}' in text and "tfrl_batch_rows_bucket" in text
    assert running.call("/monitoring/prometheus/metrics")[0] == 200
    assert running.call("/healthz") == (200, {"status": "ok", "versions": [100, 200]})


def test_grpc(two_versions):
    _, (old, newest), port = two_versions
    obs, _, _ = rows(2)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        predict = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "play"
        for name, x in obs.items():
            request.inputs[f"observation_{name}"].CopyFrom(tf.make_tensor_proto(x))
        answer = predict.Predict(request)
        action, state = newest.policy.predict(obs)
        np.testing.assert_allclose(tf.make_ndarray(answer.outputs["action"]), action, atol=1e-6)
        assert answer.model_spec.version.value == 200
        for name in STATE:
            request.inputs[name].CopyFrom(answer.outputs[name])
        request.output_filter.append("action")
        answer = predict.Predict(request)
        np.testing.assert_allclose(
            tf.make_ndarray(answer.outputs["action"]),
            newest.policy.predict(obs, state=state)[0],
            atol=1e-6,
        )
        assert set(answer.outputs) == {"action"}
        request.model_spec.version_label = "best"
        for name in STATE:
            del request.inputs[name]
        answer = predict.Predict(request)
        np.testing.assert_allclose(
            tf.make_ndarray(answer.outputs["action"]), old.policy.predict(obs)[0], atol=1e-6
        )
        request.inputs["observation_b"].CopyFrom(tf.make_tensor_proto([[0.0]]))
        with pytest.raises(grpc.RpcError) as error:
            predict.Predict(request)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        details = error.value.details()
        assert details.startswith("observation_b: expected shape [2], or a batch of at most 4096")
        request.model_spec.name = "other"
        with pytest.raises(grpc.RpcError) as error:
            predict.Predict(request)
        assert error.value.code() == grpc.StatusCode.NOT_FOUND
        request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        request.model_spec.name = "play"
        found = get_model_metadata_pb2.SignatureDefMap()
        predict.GetModelMetadata(request).metadata["signature_def"].Unpack(found)
        inputs = found.signature_def["serving_default"].inputs
        assert inputs["observation_b"].dtype == tf.float32.as_datatype_enum
        request = get_model_status_pb2.GetModelStatusRequest()
        request.model_spec.name = "play"
        status = model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus(request)
        assert [s.version for s in status.model_version_status] == [200, 100]


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "error"),
    [
        ("observation_b", tf.float32, [2**33, 2], "expected shape [2], or a batch of at most 4096"),
        ("observation_b", tf.float32, [1, 2**33], "got shape [1, 8589934592]"),
        ("observation_b", tf.float32, [-1, 2], "got shape [-1, 2]"),
        ("observation_a", tf.int64, [4097], "expected shape [], or a batch of at most 4096"),
        ("state_policy_hidden", tf.float32, [4, 2**33], "expected shape [4]"),
        ("episode_start", tf.bool, [2**40], "expected shape []"),
        ("episode_id", tf.string, [2**40], "expected shape []"),
        ("observation_b", tf.complex128, [1, 2], "a tensor of float32, got complex128"),
        ("observation_b", tf.string, [1, 2], "a tensor of float32, got string"),
        ("other", tf.float32, [2**40], "expected observation_a, observation_b, state"),
    ],
)
def test_small_messages_of_large_tensors(two_versions, name, dtype, shape, error):
    """One value stands for all: nothing is allocated for a shape that does not fit."""
    _, _, port = two_versions
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "play"
    tensor = request.inputs[name]
    tensor.dtype, _ = dtype.as_datatype_enum, tensor.float_val.append(0.5)
    for size in shape:
        tensor.tensor_shape.dim.add(size=size)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.RpcError) as found:
            prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request, timeout=10)
    assert found.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert error in found.value.details()


def test_episodes_over_grpc(tmp_path):
    """They go on, and are kept, after HTTP has ended."""
    _, policy = greedy()
    options = ServingOptions(max_batch_size=2, log_episodes=tmp_path)
    server = PolicyServer([ServedPolicy(policy, 1)], options, {})
    (port,) = free_ports(1)
    obs = np.random.default_rng(0).normal(size=[3, 1, 2]).astype(np.float32)

    async def play():
        started = await grpc_service.start(server, f"127.0.0.1:{port}")
        http_server = serve.uvicorn_server(server)
        http_server.should_exit = True
        with serve.listen("127.0.0.1", 0) as listening:
            await http_server.serve(sockets=[listening])
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            predict = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            for t in range(3):
                request = predict_pb2.PredictRequest()
                request.model_spec.name = "policy"
                inputs = {"observation": obs[t], "episode_id": ["g\u00fc"]}
                if t:
                    inputs |= {"reward": np.float32([t]), "termination": [t == 2]}
                for name, x in inputs.items():
                    request.inputs[name].CopyFrom(tf.make_tensor_proto(x))
                await predict.Predict(request)
        await started.stop(None)

    asyncio.run(play())
    server.close()
    (episode,) = read_episodes(tmp_path)
    assert (episode.id_, episode.is_terminated) == ("g\u00fc", True)
    np.testing.assert_array_equal(episode.obs, obs[:, 0])
    np.testing.assert_array_equal(episode.reward, [1.0, 2.0])


def test_what_is_served_is_kept_as_episodes_that_train(tmp_path):
    agent, policy = greedy()
    options = ServingOptions(max_batch_size=2, log_episodes=tmp_path / "log")
    running = Running(PolicyServer([ServedPolicy(policy, 1)], options, {}))
    obs = np.random.default_rng(0).normal(size=[2, 5, 2]).astype(np.float32)  # [episodes, steps]
    taken = []
    for t in range(5):
        more = {"termination": [t == 4, False], "reward": [float(t), 10.0 * t]} if t else {}
        inputs = {"observation": obs[:, t].tolist(), "episode_id": ["x", "y"], **more}
        code, answer = running.predict({"inputs": inputs}, "policy")
        assert code == 200, answer
        taken.append(answer["outputs"])
    instance = {"observation": [0.0, 0.0], "episode_id": "y"}
    code, answer = running.predict({"instances": [instance]}, "policy")
    assert code == 400 and "reward of episode y: expected a number" in answer["error"]
    code, answer = running.predict({"instances": [{**instance, "episode_id": "z"}]}, "policy")
    assert code == 200 and answer["predictions"][0] in range(4)  # a reset alone is no episode
    assert "tfrl_logged_episodes_total 1.0" in running.call("/metrics")[1]
    running.stop()
    first, second = read_episodes(tmp_path / "log")
    for number, episode in enumerate((first, second)):
        np.testing.assert_array_equal(episode.obs, obs[number])
        np.testing.assert_array_equal(episode.action, [step[number] for step in taken[:4]])
        np.testing.assert_array_equal(episode.reward, np.arange(1, 5) * 10.0**number)
    assert (first.id_, first.is_terminated) == ("x", True)
    assert (second.id_, second.is_done) == ("y", False)
    learner = Learner(agent)
    learner.build(0)
    results = learner.update_from_episodes([first, second], minibatch_size=8)
    assert results["default_policy"]["gradient_steps"] == 1


def test_two_starts_of_one_episode_at_once(tmp_path):
    """Both requests were read before either was added: the second is a step without a reward."""
    _, policy = greedy()
    served, log = ServedPolicy(policy, 1), EpisodeLog(tmp_path)
    given = served.read({"observation": [[0.0, 1.0]]})
    first, second = (log.read({"episode_id": ["x"]}, 1) for _ in range(2))
    log.add(served, first, given, {"action": np.array([2])})
    with pytest.raises(UserError, match="reward of episode x: expected a number"):
        log.add(served, second, given, {"action": np.array([1])})
    found = log.read({"episode_id": ["x"], "reward": [3]}, 1)
    log.add(served, found, given, {"action": np.array([1])})
    log.close()
    (episode,) = read_episodes(tmp_path)
    assert (episode.action.tolist(), episode.reward.tolist()) == ([2], [3.0])


def test_an_episode_that_terminates_at_its_limit(tmp_path):
    _, policy = greedy()
    served, log = ServedPolicy(policy, 1), EpisodeLog(tmp_path)
    row, action = served.read({"observation": [[0.0, 1.0]]}), {"action": np.array([2])}
    log.add(served, log.read({"episode_id": ["x"]}, 1), row, action)
    ends = {"termination": [True], "truncation": [True], "reward": [1]}
    log.add(served, log.read({"episode_id": ["x"], **ends}, 1), row, action)
    (episode,) = read_episodes(tmp_path)
    assert episode.is_terminated and episode.is_truncated


def test_episodes_of_nests_come_back(tmp_path):
    episode = SingleAgentEpisode("name", agent_id="me")
    obs = {"image": np.zeros([2, 2], np.uint8), "pair": (np.float32(1.0), np.arange(2))}
    episode.add_env_reset(obs, {"level": 3})
    episode.add_env_step(obs, np.float32([0.5]), 1.0, extra_model_outputs={"log_prob": -0.5})
    write_episodes(tmp_path / "a.episodes.npz", [episode, episode.cut()])
    found, chunk = read_episodes(tmp_path)
    tf.nest.map_structure(np.testing.assert_array_equal, found.get_state(), episode.get_state())
    assert isinstance(found.obs["pair"], tuple) and (chunk.t_started, len(chunk)) == (1, 0)
    with pytest.raises(UserError, match="a name that ends with .episodes.npz"):
        write_episodes(tmp_path / "a.npz", [])
    with pytest.raises(UserError, match="expected files .*, got no such file"):
        read_episodes(tmp_path / "missing")
    (tmp_path / "b.episodes.npz").write_bytes(b"x")
    with pytest.raises(UserError, match="b.episodes.npz: expected a file from write_episodes"):
        read_episodes(tmp_path)


def numbers(*values):
    x = np.array(values, np.float32)
    return RequestRows((x,), (), np.zeros([len(x)], bool), len(x))


def test_batches_wait_for_others_and_no_longer():
    sizes = []

    def double(given):
        if given.size == 16:
            raise UserError("here", expected="a", got="b")
        sizes.append(given.size)
        return {"y": 2 * given.obs[0]}

    async def ask(wait, max_batch_size, requests, max_queue=100):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            batcher = Batcher(
                double, pool, max_batch_size=max_batch_size, wait_seconds=wait, max_queue=max_queue
            )

            async def later(request, delay):
                await asyncio.sleep(delay)
                return (await batcher.submit(request))["y"].tolist()

            return await asyncio.gather(
                *(later(r, 0.01 * i) for i, r in enumerate(requests)), return_exceptions=True
            )

    requests = [numbers(1.0), numbers(2.0, 3.0), numbers(4.0)]
    expected = [[2.0], [4.0, 6.0], [8.0]]
    # All within the wait: one batch of the next power of two, which does not wait any longer.
    start = time.monotonic()
    assert asyncio.run(ask(30.0, 4, requests)) == expected
    assert sizes == [4] and time.monotonic() - start < 5
    sizes.clear()
    assert asyncio.run(ask(0.0, 4, requests)) == expected
    assert sizes[0] == 1 and sum(sizes) >= 4  # what is there at once
    sizes.clear()
    assert asyncio.run(ask(0.0, 2, [numbers(*range(5))])) == [[0.0, 2.0, 4.0, 6.0, 8.0]]
    assert sizes == [2, 2, 1]
    first, second = asyncio.run(ask(0.1, 64, [numbers(1.0), numbers(2.0)], max_queue=1))
    assert first == [2.0] and isinstance(second, Busy) and "at most 1 waiting rows" in str(second)
    (error,) = asyncio.run(ask(0.0, 16, [numbers(*range(16))]))
    assert str(error) == "here: expected a, got b."


def test_mistakes_of_options(tmp_path):
    with pytest.raises(UserError, match="max_batch_size: expected a power of two, got 3"):
        ServingOptions(max_batch_size=3)
    log = EpisodeLog(tmp_path)
    with pytest.raises(UserError, match="expected an episode_id with reward"):
        log.read({"reward": [1.0]}, 1)
    with pytest.raises(UserError, match="reward: expected a list of 2"):
        log.read({"reward": [1.0], "episode_id": ["a", "b"]}, 2)
    two = {"episode_id": ["a", "b"], "reward": [1.0, 2.0]}
    for change, error in (
        ({"episode_id": ["a", "a"]}, "episode_id: expected one row per episode, got 2 rows of 'a'"),
        ({"episode_id": ["a", None]}, "episode_id: expected strings or numbers, got None"),
        ({"termination": [False, 1]}, "termination: expected true or false, got 1"),
        ({"truncation": [None, True]}, "truncation: expected true or false, got None"),
    ):
        with pytest.raises(UserError, match=error):
            log.read({**two, **change}, 2)
    for reward in ("x", float("nan"), float("inf"), 10**400, 1e39, True):
        with pytest.raises(UserError, match="reward of episode b: expected a number, the reward"):
            log.read({"episode_id": ["a", "b"], "reward": [None, reward]}, 2)
    with serve.listen("127.0.0.1", 0) as taken:
        with pytest.raises(UserError, match="expected an address of this machine and a free port"):
            serve.listen("127.0.0.1", taken.getsockname()[1])
