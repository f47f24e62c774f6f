"""Requests and answers of servers behind the gateway, in two dialects.

A Firstline gateway gets the client's input in its smallest form, the bundle's name and version, and the digest of the
full model, which also covers the processing: it refuses to answer with another model. Any other V2 server gets the
model's own inputs; the bundle's processing is done here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from threading import Lock
from urllib.parse import quote

import numpy as np
from msgspec.structs import replace

from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.bundle.loading import load_around
from firstline_core.bundle.store import Bundle
from firstline_core.errors import (
    CapacityError,
    FirstlineError,
    InferenceError,
    LinkError,
    ModelLoadError,
    ModelMismatchError,
    ProtocolError,
    RequestError,
)
from firstline_core.processing.cost import as_sent
from firstline_core.protocol.http import error_from, header_length, is_own_error, json_object
from firstline_core.protocol.http_client import HttpReply
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.oip import Encoded, decode_response, encode_request
from firstline_core.protocol.tensors import shown
from firstline_core.runtime.base import cast_feed, fits
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.base import check_outputs
from firstline_core.types import (
    DATATYPES,
    Array,
    Arrays,
    InferRequest,
    InferResponse,
    RequestedOutput,
    Tensor,
    TensorSpec,
    row_count,
)
from firstline_gateway.models.repository import ServedModel

SHA256 = "sha256"
"""The parameter of a model's configuration (Triton's `config.pbtxt`) that says which file it was made of."""

_ERROR_CHARS = 300


class RemoteModel(ABC):
    """A model on the servers behind the gateway: the requests for it, and how their answers are read.

    Args:
        served: the model.
        limits: of answers.

    Attributes:
        batch: the most rows in one request; None if the model sets no limit.
        loaded: its processing; None if the servers do it, or as long as no server is known.
        needs_thread: whether `prepare` may take milliseconds, and needs a thread.
        check_loads: whether `check` may load the bundle's processing, and needs a thread.
        path: of its requests.
        questions: paths whose replies show whether a server has it.
        error_statuses: statuses of errors that concern a request also without a code of Firstline; others come from
            a proxy.
    """

    batch: int | None = None
    loaded: LoadedModel | None = None
    needs_thread = False
    check_loads = False
    questions: tuple[str, ...]
    error_statuses: frozenset[int]

    def __init__(self, served: ServedModel, limits: Limits) -> None:
        self._served = served
        self._limits = limits
        self._address = f"/v2/models/{quote(served.key.name, safe='')}/versions/{served.key.version}"
        self.path = f"{self._address}/infer"

    @abstractmethod
    def check(self, replies: Mapping[str, HttpReply]) -> str:
        """Returns what is wrong with the model of a server with these replies; "" if nothing is."""

    @abstractmethod
    def prepare(self, inputs: Arrays) -> Arrays:
        """Returns the rows to send for a request's inputs.

        Raises:
            RequestError: they cannot be made of it.
        """

    def encode(self, rows: Arrays, request_id: str, deadline_s: float | None, now_s: float) -> Encoded:
        """The body of a request; the server echoes the id."""
        request = replace(self._request(rows), id=request_id, deadline_s=deadline_s)
        return encode_request(request, now_s=now_s)

    def read(self, reply: HttpReply, request_id: str, rows: Arrays) -> Arrays:
        """Returns the task's outputs from the answer to a request with these rows.

        Raises:
            FirstlineError: the server's error, a malformed answer, or another request's.
        """
        return self._outputs(self._response(reply, request_id), rows)

    @abstractmethod
    def _request(self, rows: Arrays) -> InferRequest:
        """Returns the request for these rows, without its id and deadline."""

    @abstractmethod
    def _outputs(self, response: InferResponse, rows: Arrays) -> Arrays:
        """Returns the task's outputs for these rows."""

    def _response(self, reply: HttpReply, request_id: str) -> InferResponse:
        if reply.status != 200:
            raise self._refusal(reply)
        try:
            length = header_length(reply.headers)
        except RequestError as error:
            raise ProtocolError(error.message) from error
        response = decode_response(reply.body, length, self._limits)
        if response.id != request_id:
            raise ProtocolError(f"It gave the answer to request {shown(response.id)}, not to {request_id}.")
        # V2 lets a server leave the version out; the request's address named it.
        key = self._served.key
        if response.model != key.name or response.version not in ("", str(key.version)):
            raise ModelMismatchError(
                f"Version {key.version} of '{key.name}' was requested, and it answered with "
                f"{shown(response.version)} of {shown(response.model)}."
            )
        return response

    def _refusal(self, reply: HttpReply) -> FirstlineError:
        """Returns the error of a reply; that of a proxy does not concern the request, so it must not end a promise."""
        body = reply.body[: self._limits.json_bytes]
        error = error_from(reply.status, body, reply.headers)
        if isinstance(error, CapacityError | LinkError) or reply.status in self.error_statuses or is_own_error(body):
            return error
        return ProtocolError(f"HTTP status {reply.status} does not come from an inference server: {error.message}")


class FirstlineModel(RemoteModel):
    """A bundle that a Firstline gateway serves: it is asked as a client of this gateway would ask it.

    That gateway obeys the bundle's own limit of rows.
    """

    questions = ("/firstline/v1/models",)
    error_statuses = frozenset({401, 403, 413})

    def check(self, replies: Mapping[str, HttpReply]) -> str:
        reply = replies[self.questions[0]]
        if reply.status != 200:
            return error_from(reply.status, reply.body).message
        key, listed = self._served.key, json_object(reply.body).get("models")
        entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        for entry in entries:
            if (entry.get("name"), entry.get("version")) == (key.name, str(key.version)):
                return self._other(entry.get("full_model_digest"))
        return f"There is no version {key.version} of '{key.name}'."

    def prepare(self, inputs: Arrays) -> Arrays:
        return as_sent(inputs)

    def _request(self, rows: Arrays) -> InferRequest:
        digest = self._served.digest
        return InferRequest(self._served.key.name, _tensors(rows), "", binary_output=True, full_model_digest=digest)

    def _outputs(self, response: InferResponse, rows: Arrays) -> Arrays:
        if response.answer is None:
            raise ProtocolError("It answered, but not as a Firstline gateway does.")
        if problem := self._other(response.answer.model_digest):
            raise ModelMismatchError(problem)
        try:
            check_outputs(self._served.manifest.outputs_of(self._served.full), response.arrays, row_count(rows))
        except InferenceError as error:
            raise ProtocolError(error.message) from error
        return response.arrays_of(self._served.manifest.task.outputs)

    def _other(self, digest: object) -> str:
        if digest == self._served.digest:
            return ""
        key = self._served.key
        return f"Version {key.version} of '{key.name}' there has full model {shown(digest)}, not {self._served.digest}."


class V2Model(RemoteModel):
    """A full model that any server of V2 runs, between the bundle's processing here.

    The first server that has it says what it takes and gives; the others must say the same.
    """

    error_statuses = frozenset({400, 401, 403, 404, 409, 413, 422, 500, 501})

    def __init__(self, served: ServedModel, options: RuntimeOptions, limits: Limits) -> None:
        super().__init__(served, limits)
        self._options = options
        self._loading, self.check_loads = Lock(), True
        self.batch = served.full.batch
        self.needs_thread = bool(served.full.presteps)
        self.questions = (self._address, f"{self._address}/ready", f"{self._address}/config")

    def check(self, replies: Mapping[str, HttpReply]) -> str:
        metadata, ready, config = (replies[question] for question in self.questions)
        if metadata.status != 200:
            return error_from(metadata.status, metadata.body).message
        if ready.status != 200:
            return f"Version {self._served.key.version} of '{self._served.key.name}' is not ready."
        if config.status == 200 and (declared := _sha256_in(config.body)) not in (
            "",
            self._served.full.artefact.sha256,
        ):
            return f"It was built from the file {shown(declared)}, not {self._served.full.artefact.sha256}."
        if (
            self._served.full.batch is not None
            and config.status == 200
            and "dynamic_batching" in json_object(config.body)
        ):
            return "It joins requests, but this model's rows run alone: remove dynamic_batching from its config.pbtxt."
        if self._served.full.without_rows:
            return "This model has no axis of rows, which the protocol of servers needs; run it on the gateway itself."
        try:
            inputs, outputs = (_specs(metadata.body, key) for key in ("inputs", "outputs"))
            with self._loading:  # several servers may be asked for the first time at once
                if self.loaded is None:
                    bundle = Bundle(self._served.path, self._served.manifest)
                    self.loaded = load_around(_Elsewhere(inputs, outputs), bundle, self._served.full, self._options)
                    self.check_loads = False
        except FirstlineError as error:
            return error.message
        expected = self.loaded.runtime
        if (expected.inputs, expected.outputs) != (inputs, outputs):
            return "It takes or gives something else than it does on another server."
        if any(int(entry["shape"][0]) == 1 for entry in json_object(metadata.body)["inputs"]):
            self.batch = 1  # the rows of one request travel one by one, also to the other servers
        return ""

    def prepare(self, inputs: Arrays) -> Arrays:
        loaded = self._known()
        rows = loaded.prepare(inputs)
        ports = [each.port for each in loaded.inputs]
        return {**rows, **{port.name: _sendable(port, rows[port.name]) for port in ports}}

    def _request(self, rows: Arrays) -> InferRequest:
        loaded = self._known()
        outputs = tuple(RequestedOutput(name, binary=True) for name in loaded.output_names)
        return InferRequest(self._served.key.name, _tensors(loaded.feeds(rows)), "", outputs=outputs)

    def _outputs(self, response: InferResponse, rows: Arrays) -> Arrays:
        loaded = self._known()
        outputs = {name: _output_of(response, name) for name in loaded.output_names}
        try:
            return loaded.finish(outputs, rows)
        except (ValueError, TypeError, IndexError) as error:  # NumPy's
            if self._are_as_declared(outputs, row_count(loaded.feeds(rows))):
                raise InferenceError(
                    f"The bundle's postprocessing of '{self._served.key.name}' failed: {str(error)[:_ERROR_CHARS]}."
                ) from error
            raise ProtocolError(
                f"Its outputs for '{self._served.key.name}' have another shape or datatype than its metadata says: "
                f"{str(error)[:_ERROR_CHARS]}."
            ) from error

    def _are_as_declared(self, outputs: Arrays, rows: int) -> bool:
        """Returns whether a server gave what it declares, so that not the server is at fault."""
        specs = {spec.name: spec for spec in self._known().runtime.outputs}
        return all(
            array.shape[:1] == (rows,)
            and array.dtype == DATATYPES[specs[name].datatype]
            and (not specs[name].shape or fits(array.shape, specs[name].shape))
            for name, array in outputs.items()
        )

    def _known(self) -> LoadedModel:
        assert self.loaded is not None  # noqa: S101 (no server gets a batch before one is known to have the model)
        return self.loaded


class _Elsewhere:
    """A model's inputs and outputs, as its server describes them; the server runs it."""

    ranges: Mapping[str, tuple[float, float]] = {}
    provider = "oip"

    def __init__(self, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> None:
        self.inputs, self.outputs = inputs, outputs

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        raise InferenceError("This model runs on another server.")

    def close(self) -> None:
        """Nothing is held here."""


def _sendable(port: TensorSpec, rows: Array) -> Array:
    """Returns rows in the datatype that a model's input takes; texts as bytes."""
    if port.datatype != "BYTES":
        return cast_feed(port.name, rows, DATATYPES[port.datatype])
    texts = np.empty(rows.size, object)
    texts[:] = [text.encode() for text in rows.flat]
    return texts.reshape(rows.shape)


def _tensors(arrays: Arrays) -> tuple[Tensor, ...]:
    return tuple([Tensor(name, array) for name, array in arrays.items()])


def _output_of(response: InferResponse, name: str) -> Array:
    try:
        return response.output(name)
    except RequestError as error:
        raise ProtocolError(error.message) from error


def _specs(metadata: bytes, key: str) -> tuple[TensorSpec, ...]:
    """Returns the inputs or outputs of V2 metadata, the first axis always free: one of several servers may fix it.

    Raises:
        ModelLoadError: they are not there, or not of V2.
    """
    try:
        specs = tuple(
            TensorSpec(str(entry["name"]), _datatype(entry["datatype"]), _shape(entry["shape"]))
            for entry in json_object(metadata)[key]
        )
        if key == "inputs" and not all(spec.shape for spec in specs):  # an output may also be one that is not used
            raise ValueError("a tensor without an axis of rows")
        return specs
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ModelLoadError(
            f"Its metadata has no '{key}' as V2 describes them: {str(error)[:_ERROR_CHARS]}."
        ) from error


def _datatype(found: object) -> str:
    if found not in DATATYPES:
        raise ValueError(f"datatype {shown(found)}")
    return str(found)


def _shape(found: object) -> tuple[int, ...]:
    if not isinstance(found, list):
        raise TypeError(f"shape {shown(found)}")
    sizes = tuple(map(int, found))
    return (-1, *sizes[1:]) if sizes else ()


def _sha256_in(config: bytes) -> str:
    """Triton's model configuration: `parameters { key: "sha256" value: { string_value: "..." } }`."""
    parameters = json_object(config).get("parameters")
    entry = parameters.get(SHA256) if isinstance(parameters, dict) else None
    declared = entry.get("string_value") if isinstance(entry, dict) else entry
    return declared.lower() if isinstance(declared, str) else ""
