"""Triton's extensions for REST and gRPC: repository, model configuration and statistics.

https://github.com/triton-inference-server/server/tree/main/docs/protocol
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from firstline_core.errors import InvalidTensorError, RequestError, UnknownModelError
from firstline_core.protocol.data_plane import DataPlane, ModelState
from firstline_core.protocol.http import Reply, json_reply
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.oip import parse_json
from firstline_core.protocol.tensors import shown
from firstline_core.telemetry.statistics import as_json
from firstline_core.types import DEFAULT_PRIORITY, LOWEST_PRIORITY, ModelMetadata, TensorSpec

INDEX_PATH = "/v2/repository/index"

REPOSITORY_LIMITS = Limits(body_bytes=65_536, json_bytes=65_536)
"""The limits of requests about the repository."""

T = TypeVar("T")


def index_json(states: Sequence[ModelState], *, ready_only: bool) -> list[dict[str, str]]:
    """Returns Triton's index of the repository."""
    return [
        {"name": each.name, "version": each.version, "state": each.state, "reason": each.reason}
        for each in states
        if each.ready or not ready_only
    ]


def index_reply(plane: DataPlane, body: bytes) -> Reply:
    """Answers `POST /v2/repository/index`; the body may be empty, or say {"ready": true}.

    Raises:
        RequestError: the body is invalid.
    """
    ready_only = _field(body, "ready", False, '{"ready": true}')
    return json_reply(index_json(plane.index(), ready_only=ready_only))


async def load_reply(plane: DataPlane, model: str, body: bytes) -> Reply:
    """Answers `POST /v2/repository/models/{model}/load`; the body may be empty.

    Raises:
        RequestError: the body is not an object of parameters, or has unsupported ones; or see `DataPlane.load`.
    """
    check_load_parameters(_field(body, "parameters", {}, '{"parameters": {}}'))
    await plane.load(model)
    return json_reply({"name": model, "load": True})


async def unload_reply(plane: DataPlane, model: str, body: bytes) -> Reply:
    """Answers `POST /v2/repository/models/{model}/unload`; the body may be empty. No model here depends on another.

    Raises:
        RequestError: the body is not an object of parameters; or see `DataPlane.unload`.
    """
    _field(body, "parameters", {}, '{"parameters": {}}')
    await plane.unload(model)
    return json_reply({"name": model, "unload": True})


def check_load_parameters(names: Iterable[str]) -> None:
    """Refuses parameters with which Triton would load something else than the repository's content.

    Raises:
        RequestError: a configuration or a file comes with the request.
    """
    for name in names:
        if name == "config" or name.startswith("file:"):
            raise RequestError(
                f"Parameter {shown(name)} is not taken: a model is what its signed bundle says. Put the bundle into "
                "the models folder, and load it without parameters."
            )


def _field(body: bytes, name: str, default: T, example: str) -> T:
    """Returns a field of a body that may be empty, of the type of its default."""
    document = parse_json(body, REPOSITORY_LIMITS) if body.strip() else {}
    found = document.get(name, default) if isinstance(document, dict) else None
    if not isinstance(found, type(default)):
        raise InvalidTensorError(f"The body is {shown(document)}; send nothing, or {example}.")
    return found


def statistics_json(plane: DataPlane, model: str, version: str) -> dict[str, Any]:
    """Returns the statistics of one version, of all versions of a model, or of all models, in Triton's form.

    Raises:
        UnknownModelError: there is no such model or version.
    """
    chosen = [each for each in plane.statistics() if model in ("", each.name) and version in ("", each.version)]
    if model and not chosen:
        plane.metadata(model, version)  # raises an error that lists the served ones
        raise UnknownModelError(f"There are no statistics of model {shown(model)}; it is not served here.")
    return as_json(chosen)


def config_json(metadata: ModelMetadata, limits: Limits, *, batching: bool) -> dict[str, Any]:
    """Returns the fields of Triton's model configuration that apply here.

    Args:
        metadata: metadata of the model.
        limits: limits of requests; `rows` is Triton's batch size.
        batching: whether requests run together, by their priorities.
    """
    config: dict[str, Any] = {
        "name": metadata.name,
        "platform": metadata.platform,
        "backend": metadata.platform.partition("_")[0],
        "max_batch_size": limits.rows,
        "input": [_port(spec) for spec in metadata.inputs],
        "output": [_port(spec) for spec in metadata.outputs],
    }
    if batching:
        config["dynamic_batching"] = {"priority_levels": LOWEST_PRIORITY, "default_priority_level": DEFAULT_PRIORITY}
    return config


def _port(spec: TensorSpec) -> dict[str, Any]:
    datatype = "STRING" if spec.datatype == "BYTES" else spec.datatype
    # Triton omits the axis of rows, which is the batch size; a vector of strings then has one axis of size 1.
    return {"name": spec.name, "data_type": f"TYPE_{datatype}", "dims": list(spec.shape[1:]) or [1]}
