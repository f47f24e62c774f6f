"""Each call of the REST API as two pure functions: build the request, and read the response. No I/O.

`Client` and `AsyncClient` share these functions.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, TypeAlias, TypedDict, TypeVar
from urllib.parse import quote

import httpx
import msgspec
import numpy as np
import orjson
from msgspec import structs
from numpy.typing import ArrayLike

from firstline.client.results import Prediction, check_id, prediction_from, read_task
from firstline_core.errors import (
    InvalidTensorError,
    NotReadyError,
    ProtocolError,
    RequestError,
    UnknownModelError,
    listed,
)
from firstline_core.ids import new_request_id
from firstline_core.protocol import http, oip
from firstline_core.protocol.http import error_from
from firstline_core.protocol.parameters import timeout_us
from firstline_core.protocol.tensors import shown
from firstline_core.storage.files import unreadable
from firstline_core.storage.structs import fault_of
from firstline_core.telemetry.trace import restored
from firstline_core.telemetry.wording import counted
from firstline_core.types import (
    DATATYPES,
    LOWEST_PRIORITY,
    SOURCE_LIMIT,
    InferRequest,
    InferResponse,
    ModelMetadata,
    Privacy,
    RequestedOutput,
    Route,
    Tensor,
    Wait,
    object_array,
)

T = TypeVar("T")
Answered = TypeVar("Answered", bound=InferResponse | Prediction)
"""An answer as tensors, or as the class of its task."""

Inputs: TypeAlias = Mapping[str, ArrayLike | bytes | Sequence[bytes | str]]
"""Arrays with rows on the first axis, or bytes or text (one or a list), by the inputs' names."""

_WAIT_S = 5
_ANSWER_S = 5.0  # for one more answer at the end of a wait
_TIMEOUT_LIMIT_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request before it is sent; `read` decodes the response, or raises the server's error.

    The server may be silent for `silence_s` (seconds), or for the client's `timeout_s` if that is shorter.
    """

    method: str
    path: str
    read: Callable[[httpx.Response], T]
    content: bytes = b""
    headers: Mapping[str, str] | None = None
    params: Mapping[str, Any] | None = None
    silence_s: float = math.inf


class RequestOptions(TypedDict, total=False):
    """Options of every request; any other name is a `TypeError`.

    Attributes:
        route: auto, edge or cloud.
        privacy: any, or local_only for inputs that must not leave the device.
        wait: final, or first for the fastest usable answer.
        timeout_ms: the deadline; the edge then returns the best answer that it has.
        priority: 1 (first) to 3 (last), for a gateway under load; 2 is the default.
        source: name of the camera, microphone or machine that the input comes from, at most 128 characters. Audits of
            one source keep a minimum distance in time, because its inputs resemble each other.
        traceparent: the trace that the request belongs to (W3C Trace Context), e.g. the header of the request that your
            program is answering; by default that of OpenTelemetry's current span, if there is one.
        tracestate: the header that accompanies `traceparent`.
    """

    route: Route | Literal["auto", "edge", "cloud"]
    privacy: Privacy | Literal["any", "local_only"]
    wait: Wait | Literal["final", "first"]
    timeout_ms: float
    priority: int
    source: str
    traceparent: str | None
    tracestate: str | None


class FileOptions(RequestOptions, total=False):
    """Options of requests with a file. Those below select what the answer shows; a task refuses those it does not have.

    Attributes:
        min_score: leave out objects below this score, 0 to 1.
        classes: show only objects of these labels.
        max_objects: maximum number of objects, best first.
        masks: masks as a PNG or as run lengths.
    """

    min_score: float
    classes: Sequence[str]
    max_objects: int
    masks: Literal["png", "rle"]


Options = TypeVar("Options", RequestOptions, FileOptions)


def infer(
    model: str,
    inputs: Inputs,
    options: RequestOptions,
    *,
    version: str | int = "",
    client_id: str = "",
    outputs: Sequence[str] = (),
) -> Call[InferResponse]:
    """Returns a V2 request with binary tensors.

    Raises:
        InvalidTensorError: an input is not an array that V2 can carry, or an option is not valid.
    """
    _check_options(options, RequestOptions)
    if not isinstance(inputs, Mapping):
        raise InvalidTensorError(f"inputs is {type(inputs).__name__}; give arrays by the names of the model's inputs.")
    if isinstance(outputs, str):
        raise InvalidTensorError(f"outputs is the string {shown(outputs)}; give a list of names.")
    _check_text(client_id, "id")
    for names, kind in ((inputs, "input"), (outputs, "output")):
        for name in names:
            _check_text(name, f"the name of an {kind}")
    sent_id = client_id or new_request_id()
    request = InferRequest(
        model=model,
        inputs=tuple(_tensor(name, value) for name, value in inputs.items()),
        request_id="",
        id=sent_id,
        outputs=tuple(RequestedOutput(name) for name in outputs),
        binary_output=True,
        route=_choice(Route, "route", options.get("route", Route.AUTO)),
        privacy=_choice(Privacy, "privacy", options.get("privacy", Privacy.ANY)),
        wait=_choice(Wait, "wait", options.get("wait", Wait.FINAL)),
        deadline_s=_timeout_s(options),
        priority=_priority(options),
        source=_source(options),
    )
    encoded = oip.encode_request(request, now_s=0.0)
    headers = http.headers_for(encoded) | _traced(options)
    rows = request.inputs[0].shape[:1] if request.inputs else ()

    def read(response: httpx.Response) -> InferResponse:
        answered = read_infer(response)
        check_id(answered.id, sent_id, str(response.url))
        for tensor in answered.outputs:
            if tensor.shape[:1] != rows:
                raise ProtocolError(
                    f"{response.url} gave output {shown(tensor.name)} the shape {list(tensor.shape)}, but the request "
                    f"has {counted(sum(rows), 'row')}."
                )
        return answered if client_id else structs.replace(answered, id="")

    return Call("POST", f"{_v2(model, version)}/infer", read, encoded.body, headers)


def read_infer(response: httpx.Response) -> InferResponse:
    """Returns the tensors and the description of the answer."""
    _check(response)
    try:
        return oip.decode_response(response.content, http.header_length(response.headers))
    except (ProtocolError, RequestError) as error:
        raise ProtocolError(f"{response.url} did not answer as a V2 server does. {error.message}") from error


def as_job(call: Call[Any]) -> Call[str]:
    """Returns the same request as a job, whose answer is fetched later (RFC 7240)."""
    return replace(call, read=read_job, headers={**(call.headers or {}), "Prefer": "respond-async"})


def read_job(response: httpx.Response) -> str:
    """Returns the id of a job.

    Raises:
        ProtocolError: the server answered at once, because it does not support jobs.
    """
    if response.status_code != httpx.codes.ACCEPTED:
        _check(response)
        raise ProtocolError(f"{response.url} answered at once, because it takes no jobs; submit them to a gateway.")
    try:
        return str(orjson.loads(response.content)["request_id"])
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise ProtocolError(f"{response.url} did not say under which id it keeps the job.") from error


def forget(job_id: str) -> Call[None]:
    """Returns the request that deletes a job."""
    return Call("DELETE", _answer_path(job_id), _check)


def infer_file(model: str, file: str | Path | bytes, options: FileOptions, *, client_id: str = "") -> Call[Prediction]:
    """Returns a request with an encoded image or JSON as its body.

    Raises:
        InvalidTensorError: the file cannot be read, or an option is not valid.
    """
    _check_options(options, FileOptions)
    content = _content(file)
    params: dict[str, Any] = {key: str(options[key]) for key in ("route", "privacy", "wait") if key in options}
    timeout_s = _timeout_s(options)
    if timeout_s is not None:
        params["timeout"] = str(timeout_us(timeout_s, now_s=0.0))
    if "priority" in options:
        params["priority"] = str(_priority(options))
    if source := _source(options):
        params["source"] = source
    params |= _selection(options)
    path = f"/firstline/v1/models/{_in_path(model, 'model')}/infer"
    headers = {http.CONTENT_TYPE: http.BINARY_TYPE} | _traced(options)
    sent_id = params["id"] = client_id or new_request_id()
    return Call("POST", path, partial(read_prediction, sent_id=sent_id), content, headers, params)


def _selection(options: FileOptions) -> dict[str, Any]:
    """Returns the parameters that select what an answer shows."""
    params: dict[str, Any] = {
        name: str(options[name]) for name in ("min_score", "max_objects", "masks") if name in options
    }
    if "classes" in options:
        if isinstance(options["classes"], str):
            raise InvalidTensorError(f"classes is the string {shown(options['classes'])}; give a list of labels.")
        params["classes"] = list(options["classes"])  # repeated, because labels may hold commas
        for label in params["classes"]:
            _check_text(label, "a label of classes")
    return params


def check_files(files: Iterable[str | Path | bytes]) -> None:
    """Refuses one path or content where many files are expected: each of its letters would be a file."""
    if isinstance(files, str | bytes | os.PathLike):
        raise InvalidTensorError(f"files is {shown(files)}; give a list of files, or one file to `infer_file`.")


def _content(file: str | Path | bytes) -> bytes:
    if isinstance(file, bytes):
        return file
    if not isinstance(file, str | os.PathLike):
        raise InvalidTensorError(
            f"file is {type(file).__name__}; give a path, or the content of a file as bytes. Arrays go to `infer`."
        )
    try:
        return Path(file).read_bytes()
    except ValueError as error:  # a null character, or half of a surrogate pair
        raise InvalidTensorError(f"file is the path {str(file)!a:.80}, which no system has; {error}.") from error
    except OSError as error:
        is_text = isinstance(file, str) and Path(file).name == file and not Path(file).suffix
        advice = " A string is a path; give a text as bytes." if is_text else ""
        raise InvalidTensorError(f"{file!s} {unreadable(error)}{advice}") from error


def infer_document(model: str, file: str | Path | bytes, options: FileOptions) -> Call[dict[str, Any]]:
    """Returns the request of `infer_file`, whose answer is read as the server's JSON: a model of any task."""
    sent_id = new_request_id()
    call: Call[Any] = infer_file(model, file, options, client_id=sent_id)

    def read(response: httpx.Response) -> dict[str, Any]:
        document = _json(response)
        check_id(document.pop("id", None), sent_id, str(response.url))
        return document

    return replace(call, read=read)


def read_prediction(response: httpx.Response, sent_id: str = "") -> Prediction:
    """Returns the typed answer.

    Args:
        response: of the server.
        sent_id: see `prediction_from`.
    """
    return prediction_from(_json(response), str(response.url), sent_id)


def answer(request_id: str) -> Call[InferResponse]:
    """Returns the request for the latest answer with an id, as tensors."""
    return Call("GET", _answer_path(request_id), partial(_read_answer, read_infer, request_id), params={"form": "v2"})


def prediction(request_id: str, options: FileOptions) -> Call[Prediction]:
    """Returns the request for the latest answer with an id, as a typed answer that shows what the options select."""
    read = partial(_read_answer, read_prediction, request_id)
    return Call("GET", _answer_path(request_id), read, params=_selection(options))


def _answer_path(request_id: str) -> str:
    return f"/firstline/v1/answers/{_in_path(request_id, 'the id of an answer')}"


def _read_answer(read: Callable[[httpx.Response], Answered], request_id: str, response: httpx.Response) -> Answered:
    """Reads the answer with an id.

    Raises:
        ProtocolError: the answer says that it belongs to another request.
    """
    answered = read(response)
    described = answered.answer
    if described is not None and described.request_id.lower() != request_id.lower():
        raise ProtocolError(f"{response.url} gave the answer to request {described.request_id}, not to {request_id}.")
    return answered


def long_polling(call: Call[T], left_s: float) -> Call[T]:
    """Returns the same request with long polling (RFC 7240): the gateway may hold it for up to `left_s`."""
    return replace(call, headers={**(call.headers or {}), "Prefer": f"wait={int(max(0, min(_WAIT_S, left_s)))}"})


def ending(call: Call[T], left_s: float) -> Call[T]:
    """Returns the same request for a caller that waits for another `left_s`: a silent server is left soon after."""
    return replace(call, silence_s=max(0.0, left_s) + _ANSWER_S)


def metadata(model: str, version: str | int = "") -> Call[ModelMetadata]:
    return Call("GET", _v2(model, version), read_metadata)


def read_metadata(response: httpx.Response) -> ModelMetadata:
    """Returns the model's inputs and outputs."""
    document = {"versions": (), "platform": ""} | _json(response)
    document["task"] = read_task(document.get("task"))
    try:
        return msgspec.convert(document, ModelMetadata)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"{response.url} did not describe a V2 model: {fault_of(error)}.") from error


def models() -> Call[dict[str, tuple[str, ...]]]:
    """Returns the request for the models that are ready, which is Triton's index."""
    return Call("POST", "/v2/repository/index", read_models, b'{"ready":true}')


def read_models(response: httpx.Response) -> dict[str, tuple[str, ...]]:
    """Returns the versions of each model by its name."""
    _check(response)
    found: dict[str, tuple[str, ...]] = {}
    try:
        for entry in orjson.loads(response.content):
            found[entry["name"]] = (*found.get(entry["name"], ()), str(entry["version"]))
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise ProtocolError(f"{response.url} did not list its models as Triton does.") from error
    return found


def status() -> Call[dict[str, Any]]:
    """Returns the request for an agent's status."""
    return Call("GET", "/firstline/v1/status", _json)


def ready() -> Call[bool]:
    return Call("GET", "/v2/health/ready", read_ready)


def read_ready(response: httpx.Response) -> bool:
    """Returns False while the server reports that it is not ready; raises any other error."""
    if response.status_code == httpx.codes.BAD_REQUEST:
        return False
    _check(response)
    return True


def _v2(model: str, version: str | int) -> str:
    path, text = f"/v2/models/{_in_path(model, 'model')}", str(version)
    return f"{path}/versions/{_in_path(text, 'version')}" if text else path


def _in_path(text: str, name: str) -> str:
    """Returns a text as one part of a path."""
    _check_text(text, name)
    return quote(text, safe="")


def _check_text(text: str, name: str) -> None:
    try:
        text.encode()
    except (AttributeError, UnicodeEncodeError) as error:
        raise InvalidTensorError(f"{name} is {text!a:.80}, which cannot be sent as text; use a string.") from error


def _tensor(name: str, value: ArrayLike | bytes | Sequence[bytes | str]) -> Tensor:
    elements: object = [value] if isinstance(value, bytes | str) else value
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "UO":
        elements = value.tolist()
    if isinstance(elements, list | tuple) and elements and all(isinstance(each, bytes | str) for each in elements):
        for each in elements:
            if isinstance(each, str):
                _check_text(each, f"Input '{name}'")
        return Tensor(name, object_array([each.encode() if isinstance(each, str) else each for each in elements]))
    try:
        array = np.ascontiguousarray(value)
    except ValueError as error:
        raise InvalidTensorError(f"Input '{name}' is not an array: {error}") from error
    if array.dtype not in DATATYPES.values():
        raise InvalidTensorError(
            f"Input '{name}' has dtype {array.dtype}, which V2 cannot carry; "
            f"use text, bytes, or one of {', '.join(str(dtype) for dtype in DATATYPES.values())}."
        )
    return Tensor(name, array)


_Choice = TypeVar("_Choice", bound=StrEnum)


def _choice(kind: type[_Choice], name: str, value: str) -> _Choice:
    try:
        return kind(value)
    except ValueError:
        raise InvalidTensorError(f"{name} is '{value}'{listed(value, kind)}") from None


def _check_options(options: Mapping[str, object], known: type[RequestOptions]) -> None:
    # `privcy="local_only"` must not be passed over in silence.
    for name in options:
        if name not in known.__annotations__:
            raise TypeError(f"'{name}' is not an option of requests; there are {', '.join(known.__annotations__)}.")


def _traced(options: RequestOptions) -> dict[str, str]:
    return trace_headers(options.get("traceparent"), options.get("tracestate"))


def _timeout_s(options: RequestOptions) -> float | None:
    if "timeout_ms" not in options:
        return None
    timeout_ms = options["timeout_ms"]
    if not isinstance(timeout_ms, int | float | np.number) or not 0 < timeout_ms <= _TIMEOUT_LIMIT_MS:
        raise InvalidTensorError(
            f"timeout_ms is {timeout_ms!r:.80}; give a number above 0 and at most {_TIMEOUT_LIMIT_MS} ms (a day), or "
            "leave it out for the tier's default."
        )
    return timeout_ms / 1000


def _priority(options: RequestOptions) -> int:
    priority = options.get("priority", 0)
    if priority not in range(LOWEST_PRIORITY + 1):
        raise InvalidTensorError(f"priority is {priority}; use 1 (the highest) to {LOWEST_PRIORITY}, or leave it out.")
    return priority


def _source(options: RequestOptions) -> str:
    source = options.get("source", "")
    _check_text(source, "source")
    if len(source) > SOURCE_LIMIT:
        raise InvalidTensorError(f"source has {len(source)} characters; name it with at most {SOURCE_LIMIT}.")
    return source


def _check(response: httpx.Response) -> None:
    if response.status_code == httpx.codes.OK:
        return
    if response.status_code == httpx.codes.ACCEPTED:
        raise NotReadyError("The job is not answered yet; ask again in a moment.", retry_after_s=1.0)
    error = error_from(response.status_code, response.content, response.headers)
    # A proxy or another server at this address also answers 404, which says nothing about the request.
    if type(error) in (RequestError, UnknownModelError, ProtocolError) and not _has_sentence(response):
        raise ProtocolError(
            f"{response.url} answered with HTTP status {response.status_code}, and not as a V2 server does; "
            "is the address right?"
        )
    raise error


def _has_sentence(response: httpx.Response) -> bool:
    return isinstance(http.json_object(response.content).get("error"), str)


def _json(response: httpx.Response) -> dict[str, Any]:
    _check(response)
    try:
        document = orjson.loads(response.content)
    except orjson.JSONDecodeError as error:
        raise ProtocolError(f"{response.url} did not answer in JSON.") from error
    if not isinstance(document, dict):
        raise ProtocolError(f"{response.url} did not answer with a JSON object.")
    return document


def trace_headers(traceparent: str | None, tracestate: str | None) -> dict[str, str]:
    """Returns the trace headers of a request; none without a trace.

    Args:
        traceparent: of the caller, e.g. the header of the request that it answers; a malformed one is ignored (W3C
            Trace Context).
        tracestate: the header that accompanies `traceparent`.
    """
    named = restored(traceparent or "", tracestate or "")
    return named.headers() if named is not None else _current_span()


def _current_span() -> dict[str, str]:
    """Returns the headers of OpenTelemetry's current span, if the program has imported OpenTelemetry."""
    api: Any = sys.modules.get("opentelemetry.trace")
    current = getattr(api, "get_current_span", None)  # absent while another thread imports it
    if current is None:
        return {}
    span = current().get_span_context()
    if not span.is_valid:
        return {}
    trace = restored(
        f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}", span.trace_state.to_header()
    )
    return {} if trace is None else trace.headers()


def with_current_trace(options: Options) -> Options:
    """Returns the options with the current trace, for calls from other threads."""
    return {**options, **_traced(options)}  # type: ignore[typeddict-item]  # the headers have the options' names
