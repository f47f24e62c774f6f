"""The synchronous client: `Client` for either tier. `async_client.py` is the same for asyncio."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx
from numpy.typing import ArrayLike

from firstline.client import answer_stream, calls, tracing
from firstline.client.answer_stream import DEFAULT_PATIENCE_S
from firstline.client.calls import Call, RequestOptions
from firstline.client.connection import DEFAULT_TIMEOUT_S, BaseClient, link_error
from firstline.client.infer_many import DEFAULT_IN_FLIGHT, Outcome, Progress, in_threads
from firstline.client.infer_many import DEFAULT_PATIENCE_S as RETRY_PATIENCE_S
from firstline.client.prediction import Prediction
from firstline_core.errors import DeadlineExceededError, FirstlineError, RemoteTimeoutError
from firstline_core.protocol.http_client import open_client
from firstline_core.types import InferResponse, ModelMetadata, Status, Wait

Inputs = Mapping[str, ArrayLike | bytes | Sequence[bytes]]

T = TypeVar("T")

POLL_S = 0.1


class Client(BaseClient[httpx.Client]):
    """A client of an edge agent or a gateway. Thread-safe; close it, or use it in a `with` statement.

    Args:
        url: address of the tier; this machine's agent by default.
        token: API key; a gateway requires one, an agent only if it is configured so.
        timeout_s: the longest that the server may stay silent (seconds).
        ca_file: CA certificate used to verify a gateway with its own certificate authority (`authorities.pem`); by
            default the authorities that this system trusts.
        socket: Unix socket of this machine's agent (its `api.socket`), used instead of the port in `url`.

    Raises:
        ConfigError: `url`, `token` or `ca_file` is not valid.

    Every method raises the server's error as its class in `firstline.errors`. It raises `LinkDownError`,
    `RemoteTimeoutError` or `ProtocolError` if the server did not answer properly.
    """

    _open = staticmethod(open_client)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def infer(
        self,
        model: str,
        inputs: Inputs,
        *,
        version: str | int = "",
        id: str = "",  # noqa: A002 (V2's own name)
        outputs: Sequence[str] = (),
        **options: Unpack[RequestOptions],
    ) -> InferResponse:
        """Runs the model on tensors.

        Args:
            model: the bundle's name.
            inputs: by name; arrays with rows on the first axis, or bytes (one or a list) for encoded images.
            version: "" for the current one.
            id: your own id of the request, returned with the answer.
            outputs: names of the outputs to return; all by default.
            **options: see `RequestOptions`.
        """
        call = calls.infer(model, inputs, options, version=version, client_id=id, outputs=outputs)
        return calls.read_infer(self._send(call))

    def infer_many(
        self,
        model: str,
        requests: Iterable[Inputs],
        *,
        version: str | int = "",
        outputs: Sequence[str] = (),
        in_flight: int = DEFAULT_IN_FLIGHT,
        ordered: bool = True,
        patience_s: float = RETRY_PATIENCE_S,
        on_progress: Progress | None = None,
        **options: Unpack[RequestOptions],
    ) -> Iterator[Outcome]:
        """Runs the model on many requests; an error of one request is returned as its outcome.

        Args:
            model: the bundle's name.
            requests: the inputs of each request; consumed only as fast as requests are sent.
            version: "" for the current one.
            outputs: names of the outputs to return; all by default.
            in_flight: requests at the same moment.
            ordered: yield outcomes in the order of the requests, or as they arrive.
            patience_s: how long a request is retried if the server is overloaded or cannot be reached (seconds).
            on_progress: called after each outcome with the number of outcomes so far.
            **options: see `RequestOptions`.
        """
        traced = tracing.with_current_trace(options)  # other threads do not have this span
        return in_threads(
            lambda inputs: self.infer(model, inputs, version=version, outputs=outputs, **traced),
            requests,
            in_flight=in_flight,
            ordered=ordered,
            patience_s=patience_s,
            on_progress=on_progress,
        )

    def submit(
        self,
        model: str,
        inputs: Inputs,
        *,
        version: str | int = "",
        id: str = "",  # noqa: A002 (V2's own name)
        outputs: Sequence[str] = (),
        **options: Unpack[RequestOptions],
    ) -> str:
        """Submits a job to a gateway: like `infer`, but the answer is fetched later with `result`.

        Returns:
            The job's id, once the gateway has stored the job durably.
        """
        call = calls.infer(model, inputs, options, version=version, client_id=id, outputs=outputs)
        return calls.read_job(self._send(calls.as_job(call)))

    def submit_file(self, model: str, file: str | Path | bytes, **options: Unpack[RequestOptions]) -> str:
        """Submits a job: like `infer_file`, but the answer is fetched later with `result_file`."""
        return calls.read_job(self._send(calls.as_job(calls.infer_file(model, file, options))))

    def result(self, job_id: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> InferResponse:
        """Waits for a job of yours and returns its answer.

        Raises:
            RemoteTimeoutError: the job was not answered within `timeout_s`.
            UnknownAnswerError: the gateway has no job with this id for you.
            FirstlineError: the job failed.
        """
        return self._result(calls.answer(job_id), calls.read_infer, job_id, timeout_s)

    def result_file(self, job_id: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Prediction:
        """Like `result`, as a label, for a job of `submit_file`."""
        return self._result(calls.answer_as_label(job_id), calls.read_prediction, job_id, timeout_s)

    def forget(self, job_id: str) -> None:
        """Deletes a job and its answer from the gateway; a job that has not begun is not run."""
        calls.read_deleted(self._send(calls.forget(job_id)))

    def _result(self, call: Call, read: Callable[[httpx.Response], T], job_id: str, timeout_s: float) -> T:
        end_s = time.monotonic() + timeout_s
        while True:
            try:
                return read(self._send(calls.long_polling(call, self.silence_limit_s(end_s))))
            except DeadlineExceededError:  # the job's
                raise
            except answer_stream.PASSING as error:
                check_job(job_id, error, end_s, timeout_s)
            time.sleep(POLL_S)

    def infer_file(
        self,
        model: str,
        file: str | Path | bytes,
        **options: Unpack[RequestOptions],
    ) -> Prediction:
        """Runs the model on one file and returns a label.

        Args:
            model: the bundle's name.
            file: its path, or its content as bytes: an encoded image, or one row as JSON for a model of numbers.
            **options: see `RequestOptions`.
        """
        call = calls.infer_file(model, file, options)
        return calls.read_prediction(self._send(call))

    def answer(self, request_id: str) -> InferResponse:
        """Returns the latest answer to a request of yours: the correction, once there is one.

        Only agents store answers.

        Raises:
            UnknownAnswerError: there is no answer with this id for you.
        """
        return calls.read_infer(self._send(calls.answer(request_id)))

    def prediction(self, request_id: str) -> Prediction:
        """Like `answer`, as the label and its probability.

        Raises:
            UnknownAnswerError: there is no answer with this id for you.
            InvalidTensorError: the request held several rows, or its model is not a classifier.
        """
        return calls.read_prediction(self._send(calls.answer_as_label(request_id)))

    def wait_for_final(self, request_id: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> InferResponse:
        """Polls until the answer with an id is final or expired.

        Returns:
            The correction, or the provisional outputs with status `expired` if no correction was possible.

        Raises:
            RemoteTimeoutError: the answer was still provisional after `timeout_s`.
        """
        end_s = time.monotonic() + timeout_s
        while True:
            found = self.answer(request_id)
            if found.answer is None or found.answer.status is not Status.PROVISIONAL:
                return found
            check_time(request_id, end_s, timeout_s)
            time.sleep(POLL_S)

    def events(self, request_id: str, *, patience_s: float = DEFAULT_PATIENCE_S) -> Iterator[InferResponse]:
        """Yields the current answer to a request of yours, then the final one as soon as the agent has it.

        Reconnects if the connection drops: no answer is missed or repeated.

        Args:
            request_id: id of a provisional answer.
            patience_s: how long to retry while the agent cannot be reached (seconds).

        Raises:
            UnknownAnswerError: there is no answer with this id for you.
        """
        return answer_stream.follow(self._http, answer_stream.tensors_of(request_id, patience_s))

    def stream_file(
        self,
        model: str,
        file: str | Path | bytes,
        *,
        patience_s: float = DEFAULT_PATIENCE_S,
        **options: Unpack[RequestOptions],
    ) -> Iterator[Prediction]:
        """Runs the model on one file in one call: yields the first usable answer, then a better one if one is expected.

        Args:
            model: the bundle's name.
            file: see `infer_file`.
            patience_s: see `events`.
            **options: see `RequestOptions`; `wait` is "first" by default.
        """
        call = calls.infer_file(model, file, {"wait": Wait.FIRST, **options})
        return answer_stream.follow(self._http, answer_stream.prediction_of(call, patience_s))

    def metadata(self, model: str, version: str | int = "") -> ModelMetadata:
        """Returns a model's inputs, outputs and labels."""
        return calls.read_metadata(self._send(calls.metadata(model, version)))

    def status(self) -> dict[str, Any]:
        """Returns an agent's status: its models, links, outbox and cache. A gateway does not offer it."""
        return calls.read_status(self._send(calls.status()))

    def ready(self) -> bool:
        """Returns whether the tier is ready for requests."""
        return calls.read_ready(self._send(calls.ready()))

    def _send(self, call: Call) -> httpx.Response:
        try:
            return self._http.request(
                call.method, call.path, content=call.content, headers=call.headers, params=call.params
            )
        except httpx.HTTPError as error:
            raise link_error(error, self.url) from error


def check_job(job_id: str, error: FirstlineError, end_s: float, timeout_s: float) -> None:
    """Raises RemoteTimeoutError once `end_s`, on the monotonic clock, has come."""
    if time.monotonic() >= end_s:
        raise RemoteTimeoutError(
            f"The job {job_id} was not answered within {timeout_s} s; ask again later. {error.message}"
        ) from error


def check_time(request_id: str, end_s: float, timeout_s: float) -> None:
    """Raises RemoteTimeoutError once `end_s`, on the monotonic clock, has come."""
    if time.monotonic() >= end_s:
        raise RemoteTimeoutError(f"The answer {request_id} was still provisional after {timeout_s} s; ask again later.")
