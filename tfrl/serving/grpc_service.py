"""TensorFlow Serving's gRPC services; needs `tensorflow-serving-api`."""

import time
from typing import Any

import tensorflow as tf

from tfrl import extras
from tfrl.errors import UserError
from tfrl.serving.batcher import Busy
from tfrl.serving.metadata import metadata
from tfrl.serving.served_policy import EPISODE_START, LOGGED, ServedPolicy
from tfrl.serving.server import NotFound, PolicyServer


async def start(server: PolicyServer, address: str) -> Any:
    """Starts the services PredictionService and ModelService.

    Args:
      server: The server that predicts.
      address: "host:port".

    Returns:
      The `grpc.aio` server.

    Raises:
      UserError: The package is not installed, or the port is taken.
    """
    grpc = extras.require("grpc.aio", "grpc")
    apis = "tensorflow_serving.apis"
    prediction = extras.require(f"{apis}.prediction_service_pb2_grpc", "grpc")
    model = extras.require(f"{apis}.model_service_pb2_grpc", "grpc")
    services = _Services(server)
    grpc_server = grpc.server(
        options=[("grpc.max_receive_message_length", server.options.max_request_mb << 20)]
    )
    prediction.add_PredictionServiceServicer_to_server(services, grpc_server)
    model.add_ModelServiceServicer_to_server(services, grpc_server)
    try:
        port = grpc_server.add_insecure_port(address)
    except RuntimeError:
        port = 0
    if not port:
        raise UserError(
            f"gRPC at {address}",
            expected="a free port",
            got="a port that is in use or not permitted",
            remedy="Choose a different --grpc_port.",
        )
    await grpc_server.start()
    return grpc_server


_DTYPES = zip((EPISODE_START, *LOGGED), ("bool", "string", "float32", "bool", "bool"), strict=True)
_ROW = {name: tf.TensorSpec([], dtype) for name, dtype in _DTYPES}


def _array(name: str, tensor: Any, spec: Any, most: int) -> Any:
    """Converts a tensor to an array after a check of its size.

    A few bytes of a request can encode a tensor of any size.
    """
    shape, row = [dim.size for dim in tensor.tensor_shape.dim], spec.shape.as_list()
    rows = shape[0] if len(shape) > len(row) else 1
    if shape[len(shape) - len(row) :] != row or len(shape) > len(row) + 1 or not 0 <= rows <= most:
        raise UserError(
            name,
            expected=f"shape {row}, or a batch of at most {most}",
            got=f"shape {shape}",
        )
    try:
        dtype = tf.as_dtype(tensor.dtype)
        plain = dtype.is_floating or dtype.is_integer or dtype.is_bool
        if not plain and (name, dtype) != (LOGGED[0], tf.string):
            raise TypeError(dtype.name)
        array = tf.make_ndarray(tensor)
    except (TypeError, ValueError) as error:
        wanted = f"a tensor of {spec.dtype.name}"
        raise UserError(name, expected=wanted, got=str(error)) from error
    return _listed(array) if name in LOGGED else array


def _listed(array: Any) -> Any:
    """Converts an array for the episode log: Python values, strings instead of bytes."""
    values = array.tolist()
    if array.dtype.kind == "O" and array.ndim:
        return [text.decode(errors="backslashreplace") for text in values]
    return values


class _Services:
    """The methods of both services, by their names."""

    def __init__(self, server: PolicyServer):
        self._server = server
        apis = "tensorflow_serving.apis"
        self._predict = extras.require(f"{apis}.predict_pb2", "grpc")
        self._metadata = extras.require(f"{apis}.get_model_metadata_pb2", "grpc")
        self._status = extras.require(f"{apis}.get_model_status_pb2", "grpc")
        self._codes = extras.require("grpc", "grpc").StatusCode

    def __getattr__(self, name: str) -> Any:
        """Answers the services' other methods: UNIMPLEMENTED."""
        if not name[:1].isupper():
            raise AttributeError(name)

        async def unimplemented(request: Any, context: Any) -> None:
            await context.abort(
                self._codes.UNIMPLEMENTED, f"{name}: this server supports only Predict."
            )

        return unimplemented

    async def Predict(self, request: Any, context: Any) -> Any:
        started = time.perf_counter()
        try:
            policy = self._policy(request.model_spec)
            columns = self._columns(policy, request.inputs)
            sizes = [dims[0].size for x in request.inputs.values() if (dims := x.tensor_shape.dim)]
            size = max(sizes, default=0)
            signature = request.model_spec.signature_name or "serving_default"
            outputs = await self._server.predict(policy, signature, columns, size)
        except UserError as error:
            self._server.metrics.answered(self._code(error).name, started)
            await context.abort(self._code(error), str(error))
        answer = self._predict.PredictResponse()
        answer.model_spec.name = request.model_spec.name
        answer.model_spec.version.value = policy.version
        answer.model_spec.signature_name = signature
        for name in list(request.output_filter) or list(outputs):
            if name in outputs:
                answer.outputs[name].CopyFrom(tf.make_tensor_proto(outputs[name]))
        self._server.metrics.answered("OK", started)
        return answer

    async def GetModelMetadata(self, request: Any, context: Any) -> Any:
        policy = await self._find_policy(request.model_spec, context)
        described = metadata(self._server.options.name, policy)
        answer = self._metadata.GetModelMetadataResponse()
        answer.model_spec.name = self._server.options.name
        answer.model_spec.version.value = policy.version
        signatures = self._metadata.SignatureDefMap()
        parse = extras.require("google.protobuf.json_format", "grpc").ParseDict
        parse(
            {"signature_def": described["metadata"]["signature_def"]["signature_def"]}, signatures
        )
        answer.metadata["signature_def"].Pack(signatures)
        return answer

    async def GetModelStatus(self, request: Any, context: Any) -> Any:
        policy = await self._find_policy(request.model_spec, context)
        version_choice = request.model_spec.WhichOneof("version_choice")
        versions = (
            [policy.version] if version_choice else sorted(self._server.policies, reverse=True)
        )
        answer = self._status.GetModelStatusResponse()
        for version in versions:
            state = self._status.ModelVersionStatus.AVAILABLE
            answer.model_version_status.add(version=version, state=state)
        return answer

    def _columns(self, policy: ServedPolicy, inputs: Any) -> dict[str, Any]:
        """Returns the inputs as arrays; unknown names get None, and `predict` rejects them."""
        known = {**_ROW, **policy.inputs, **policy.state}
        most = self._server.options.max_queue
        return {
            name: _array(name, x, known[name], most) if name in known else None
            for name, x in inputs.items()
        }

    async def _find_policy(self, spec: Any, context: Any) -> ServedPolicy:
        try:
            return self._policy(spec)
        except UserError as error:
            await context.abort(self._code(error), str(error))
            raise

    def _policy(self, spec: Any) -> ServedPolicy:
        choice = spec.WhichOneof("version_choice")
        version = spec.version.value if choice == "version" else None
        label = spec.version_label if choice == "version_label" else None
        return self._server.policy_of(spec.name, version, label)

    def _code(self, error: UserError) -> Any:
        kinds = {NotFound: self._codes.NOT_FOUND, Busy: self._codes.RESOURCE_EXHAUSTED}
        return kinds.get(type(error), self._codes.INVALID_ARGUMENT)
