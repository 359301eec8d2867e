"""TensorFlow Serving's REST API: https://www.tensorflow.org/tfx/serving/api_rest."""

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfrl import extras
from tfrl.errors import UserError
from tfrl.serving.batcher import Busy
from tfrl.serving.metadata import metadata
from tfrl.serving.served_policy import ServedPolicy
from tfrl.serving.server import NotFound, PolicyServer


class TooLarge(UserError):
    """The body of a request is larger than the server's limit."""


# HTTP codes by error; 400 for any other error of a request.
_CODES: dict[type, int] = {NotFound: 404, Busy: 503, TooLarge: 413}
_FORM = 'Write {"instances": [observation, ...]} or {"inputs": {name: [value, ...]}}.'


def make_app(server: PolicyServer) -> Any:
    """Returns the ASGI application (Starlette) of a server."""
    applications = extras.require("starlette.applications", "serve")
    routing = extras.require("starlette.routing", "serve")
    exceptions = extras.require("starlette.exceptions", "serve")
    responses = extras.require("starlette.responses", "serve")
    disconnect = extras.require("starlette.requests", "serve").ClientDisconnect

    def answer(content: Any, code: int = 200) -> Any:
        text = json.dumps(content, separators=(",", ":"))
        return responses.Response(text, code, media_type="application/json")

    def refused(error: UserError) -> Any:
        return answer({"error": str(error)}, _CODES.get(type(error), 400))

    def asked(request: Any) -> ServedPolicy:
        params = request.path_params
        return server.policy_of(params["name"], params.get("version"), params.get("label"))

    async def predict(request: Any) -> Any:
        started = time.perf_counter()
        try:
            policy, body = asked(request), await _body(request, server.options.max_request_mb)
            response = answer(await predicted(server, policy, body))
        except UserError as error:
            response = refused(error)
        except disconnect:
            response = answer(
                {"error": "the client disconnected before the end of its request"}, 400
            )
        except asyncio.CancelledError:  # uvicorn ends without waiting for the request
            response = answer({"error": "the server is shutting down"}, 503)
        except Exception:
            server.metrics.answered(500, started)
            raise
        server.metrics.answered(response.status_code, started)
        return response

    async def status(request: Any) -> Any:
        try:
            policy = asked(request)
        except UserError as error:
            return refused(error)
        chosen = "version" in request.path_params or "label" in request.path_params
        versions = [policy.version] if chosen else sorted(server.policies, reverse=True)
        ok = {"error_code": "OK", "error_message": ""}
        states = [{"version": str(v), "state": "AVAILABLE", "status": ok} for v in versions]
        return answer({"model_version_status": states})

    async def described(request: Any) -> Any:
        try:
            return answer(metadata(server.options.name, asked(request)))
        except UserError as error:
            return refused(error)

    async def health(_: Any) -> Any:
        return answer({"status": "ok", "versions": sorted(server.policies)})

    async def metrics(_: Any) -> Any:
        content, kind = server.metrics.text()
        return responses.Response(content, media_type=kind)

    async def only_post(_: Any) -> None:
        raise exceptions.HTTPException(405, headers={"Allow": "POST"})

    model = "/v1/models/{name:str}"
    routes = []
    for path in (model, model + "/versions/{version:int}", model + "/labels/{label:str}"):
        routes += [
            routing.Route(path + ":predict", predict, methods=["POST"]),
            routing.Route(path + ":predict", only_post),  # otherwise the name of a model
            routing.Route(path + "/metadata", described),
            routing.Route(path, status),
        ]
    routes += [
        routing.Route("/healthz", health),
        routing.Route("/metrics", metrics),
        routing.Route("/monitoring/prometheus/metrics", metrics),  # TensorFlow Serving's path
    ]

    async def unknown(request: Any, error: Any) -> Any:
        text = f"{request.method} {request.url.path}: {error.detail}"
        response = answer({"error": text}, error.status_code)
        response.headers.update(error.headers or {})
        return response

    handlers = {404: unknown, 405: unknown}
    return applications.Starlette(routes=routes, exception_handlers=handlers)


async def _body(request: Any, max_mb: int) -> bytes:
    """Reads the body of a request up to the server's limit.

    Raises:
      TooLarge: The body is larger.
    """
    body, most = bytearray(), max_mb << 20
    announced = int(request.headers.get("content-length", 0))
    if announced <= most:
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                break
        else:
            return bytes(body)
    raise TooLarge(
        "the request",
        expected=f"at most {max_mb} MB",
        got=f"{announced:,} bytes" if announced else "more",
        remedy="Send fewer rows per request, or start the server with a larger --max_request_mb.",
    )


async def predicted(server: PolicyServer, policy: ServedPolicy, body: bytes) -> dict[str, Any]:
    """Returns the response to the body of a request.

    Raises:
      UserError: For a wrong request.
    """
    try:
        content = json.loads(body, parse_constant=_not_json)
    except (ValueError, RecursionError) as error:
        raise UserError("the request", expected="JSON", got=str(error), remedy=_FORM) from error
    keys = set(content) if isinstance(content, Mapping) else set()
    if len(keys & {"instances", "inputs"}) != 1 or keys - {"instances", "inputs", "signature_name"}:
        raise UserError(
            "the request",
            expected="an object with instances or inputs, and optionally signature_name",
            got=", ".join(sorted(keys)) or ("{}" if content == {} else type(content).__name__),
            remedy=_FORM,
        )
    signature = content.get("signature_name", "serving_default")
    if "instances" in content:
        columns, size = _columns(policy, content["instances"])
        return {"predictions": _rows(await server.predict(policy, signature, columns, size))}
    inputs = content["inputs"]
    columns = dict(inputs) if isinstance(inputs, Mapping) else {_only_input(policy): inputs}
    first: Any = next(iter(columns.values()), None)
    size = len(first) if isinstance(first, list) else 0
    outputs = await server.predict(policy, signature, columns, size)
    named = {name: x.tolist() for name, x in outputs.items()}
    return {"outputs": next(iter(named.values())) if len(named) == 1 else named}


def _not_json(constant: str) -> None:
    raise ValueError(f"{constant}, which JSON does not have")


def _columns(policy: ServedPolicy, instances: Any) -> tuple[dict[str, Any], int]:
    """Returns the columns of a list of instances, and its length."""
    if not isinstance(instances, list) or not instances:
        raise UserError(
            "instances",
            expected="a list of at least one observation",
            got="an empty list" if instances == [] else type(instances).__name__,
            remedy=_FORM,
        )
    if not isinstance(instances[0], Mapping):
        return {_only_input(policy): instances}, len(instances)
    names = list(instances[0])
    for number, instance in enumerate(instances):
        if not isinstance(instance, Mapping) or instance.keys() != instances[0].keys():
            got = list(instance) if isinstance(instance, Mapping) else type(instance).__name__
            raise UserError(
                f"instance {number}",
                expected=f"the names of the first instance: {', '.join(names)}",
                got=str(got),
            )
    return {name: [instance[name] for instance in instances] for name in names}, len(instances)


def _only_input(policy: ServedPolicy) -> str:
    if len(policy.inputs) > 1:
        raise UserError(
            "the inputs of the request",
            expected=f"an object with {', '.join(policy.inputs)}",
            got="values without names",
        )
    return next(iter(policy.inputs))


def _rows(outputs: Mapping[str, np.ndarray]) -> list[Any]:
    """Converts outputs to a list of rows: values for a single output, else objects."""
    columns = {name: x.tolist() for name, x in outputs.items()}
    if len(columns) == 1:
        return list(next(iter(columns.values())))
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
