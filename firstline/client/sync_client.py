"""The synchronous client: `Client` for either tier.

`AsyncClient` has the same methods, made from these: they only build calls, for `_send`, `_run`, `_many` or `_follow`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx

from firstline.client import calls, retries
from firstline.client.calls import Answered, Call, FileOptions, Inputs, RequestOptions
from firstline.client.connection import DEFAULT_TIMEOUT_S, BaseClient, link_error, read_whole, this_process
from firstline.client.infer_many import DEFAULT_IN_FLIGHT, Pause, Progress, in_threads
from firstline.client.results import Prediction
from firstline.client.retries import DEFAULT_PATIENCE_S, Outcome, Steps
from firstline_core.errors import FirstlineError, ProtocolError
from firstline_core.protocol.http_client import open_client
from firstline_core.types import InferResponse, ModelMetadata, Wait

T = TypeVar("T")


class Client(BaseClient[httpx.Client]):
    """A client of an edge agent or a gateway. Close it, or use it in a `with` statement.

    Threads can share it. A process that forks can also use it in its children, which open connections of their own.

    Args:
        url: address of the tier; this machine's agent by default.
        token: API key; a gateway requires one, an agent only if it is configured so.
        timeout_s: the longest that the server may stay silent (seconds), at most a day.
        ca_file: CA certificate used to verify a gateway with its own certificate authority (`authorities.pem`); by
            default the authorities that this system trusts.
        socket: Unix socket of this machine's agent (its `api.socket`), used instead of the port in `url`.

    Raises:
        ConfigError: `url`, `token`, `timeout_s` or `ca_file` is not valid.

    Every method raises the server's error as its class in `firstline.errors`. It raises `LinkDownError`,
    `RemoteTimeoutError` or `ProtocolError` if the server did not answer properly, and `ConfigError` after `close`.
    """

    _open = staticmethod(open_client)
    _place = staticmethod(this_process)
    _many = staticmethod(in_threads)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections of this process."""
        http = self._clients.get(self._place())
        if http is not None:
            http.close()

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
            inputs: by name; arrays with rows on the first axis, or bytes or text (one or a list).
            version: "" for the current one.
            id: your own id of the request, returned with the answer.
            outputs: names of the outputs to return; all by default.
            **options: see `RequestOptions`.
        """
        call = calls.infer(model, inputs, options, version=version, client_id=id, outputs=outputs)
        return self._send(call)

    def infer_many(
        self,
        model: str,
        requests: Iterable[Inputs],
        *,
        version: str | int = "",
        outputs: Sequence[str] = (),
        in_flight: int = DEFAULT_IN_FLIGHT,
        ordered: bool = True,
        patience_s: float = DEFAULT_PATIENCE_S,
        on_progress: Progress | None = None,
        **options: Unpack[RequestOptions],
    ) -> Iterator[Outcome[InferResponse]]:
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
        traced = calls.with_current_trace(options)  # other threads do not have this span
        infer = partial(calls.infer, model, options=traced, version=version, outputs=outputs)
        sent = (retries.retried(at, partial(infer, inputs), patience_s) for at, inputs in enumerate(requests))
        return self._many(self._run, sent, in_flight=in_flight, ordered=ordered, on_progress=on_progress)

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
        return self._send(calls.as_job(call))

    def submit_file(self, model: str, file: str | Path | bytes, **options: Unpack[FileOptions]) -> str:
        """Submits a job: like `infer_file`, but the answer is fetched later with `result_file`."""
        return self._send(calls.as_job(calls.infer_file(model, file, options)))

    def result(self, job_id: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> InferResponse:
        """Waits for a job of yours and returns its answer.

        Raises:
            RemoteTimeoutError: the job was not answered within `timeout_s`.
            UnknownAnswerError: the gateway has no job with this id for you.
            FirstlineError: the job failed.
        """
        return self._run(self._job_result(calls.answer(job_id), job_id, timeout_s))

    def result_file(self, job_id: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Prediction:
        """Like `result`, as a typed answer, for a job of `submit_file`."""
        return self._run(self._job_result(calls.prediction(job_id, {}), job_id, timeout_s))

    def forget(self, job_id: str) -> None:
        """Deletes a job and its answer from the gateway; a job that has not begun is not run."""
        return self._send(calls.forget(job_id))

    def infer_file(self, model: str, file: str | Path | bytes, **options: Unpack[FileOptions]) -> Prediction:
        """Runs the model on one file.

        Args:
            model: the bundle's name.
            file: its path, or its content as bytes: an image, a recording, text, or JSON for numbers. Give an array of
                pixels to `infer`.
            **options: see `FileOptions`.

        Returns:
            The class of the model's task, such as `Classification` or `Detections`; `Rows` for JSON with several rows.
        """
        call = calls.infer_file(model, file, options)
        return self._send(call)

    def infer_document(self, model: str, file: str | Path | bytes, **options: Unpack[FileOptions]) -> dict[str, Any]:
        """Runs a model of any task on one file, and returns the answer as JSON values; see `infer_file`."""
        return self._send(calls.infer_document(model, file, options))

    def infer_files(
        self,
        model: str,
        files: Iterable[str | Path | bytes],
        *,
        in_flight: int = DEFAULT_IN_FLIGHT,
        ordered: bool = True,
        patience_s: float = DEFAULT_PATIENCE_S,
        on_progress: Progress | None = None,
        **options: Unpack[FileOptions],
    ) -> Iterator[Outcome[Prediction]]:
        """Runs the model on many files; an error of one file is returned as its outcome.

        Args:
            model: the bundle's name.
            files: see `infer_file`; read only as fast as they are sent.
            in_flight: requests at the same moment.
            ordered: yield outcomes in the order of the files, or as they arrive.
            patience_s: how long a file is sent again if the server is overloaded or cannot be reached (seconds).
            on_progress: called after each outcome with the number of outcomes so far.
            **options: see `FileOptions`.
        """
        calls.check_files(files)
        infer = partial(calls.infer_file, model, options=calls.with_current_trace(options))
        sent = (retries.retried(at, partial(infer, file), patience_s) for at, file in enumerate(files))
        return self._many(self._run, sent, in_flight=in_flight, ordered=ordered, on_progress=on_progress)

    def answer(self, request_id: str) -> InferResponse:
        """Returns the latest answer to a request of yours: of a promise at an agent, of a job at a gateway.

        Raises:
            NotReadyError: the job is not answered yet.
            UnknownAnswerError: there is no answer with this id for you.
        """
        return self._send(calls.answer(request_id))

    def prediction(self, request_id: str) -> Prediction:
        """Like `answer`, as a typed answer."""
        return self._send(calls.prediction(request_id, {}))

    def wait_for_final(self, request_id: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> InferResponse:
        """Polls until the answer with an id is final or expired, also while the agent restarts.

        Returns:
            The correction, or the provisional outputs with status `expired` if no correction was possible.

        Raises:
            RemoteTimeoutError: the answer was still provisional after `timeout_s`.
        """
        return self._run(retries.final_answer(request_id, timeout_s=timeout_s))

    def events(self, request_id: str, *, patience_s: float = DEFAULT_PATIENCE_S) -> Iterator[InferResponse]:
        """Yields the current answer to a request of yours, then the final one, for which it polls.

        Args:
            request_id: id of a provisional answer.
            patience_s: how long to retry while the agent is overloaded or cannot be reached (seconds).

        Raises:
            UnknownAnswerError: there is no answer with this id for you.
        """
        first = self._followed(calls.answer(request_id), patience_s, final=False)
        return self._follow(first, calls.answer, patience_s)

    def stream_file(
        self,
        model: str,
        file: str | Path | bytes,
        *,
        patience_s: float = DEFAULT_PATIENCE_S,
        **options: Unpack[FileOptions],
    ) -> Iterator[Prediction]:
        """Runs the model on one file: yields the first usable answer, then a better one if one is expected.

        Args:
            model: the bundle's name.
            file: see `infer_file`.
            patience_s: see `events`.
            **options: see `FileOptions`; `wait` is "first" by default.
        """
        call = calls.infer_file(model, file, {"wait": Wait.FIRST, **options})
        return self._follow(retries.once(call), partial(calls.prediction, options=options), patience_s)

    def metadata(self, model: str, version: str | int = "") -> ModelMetadata:
        """Returns a model's inputs, outputs and labels."""
        return self._send(calls.metadata(model, version))

    def models(self) -> dict[str, tuple[str, ...]]:
        """Returns the models that are ready: their versions by name."""
        return self._send(calls.models())

    def status(self) -> dict[str, Any]:
        """Returns an agent's status: its models, links, outbox and cache. A gateway does not offer it."""
        return self._send(calls.status())

    def ready(self) -> bool:
        """Returns whether the tier is ready for requests."""
        return self._send(calls.ready())

    def _send(self, call: Call[T]) -> T:
        try:
            with self._http.stream(**self._arguments(call)) as streamed:
                response = read_whole(streamed)
        except httpx.HTTPError as error:
            raise link_error(error, self.url) from error
        try:
            return call.read(response)
        except ProtocolError:  # what else comes over this connection may be wrong as well
            if (connection := response.extensions.get("network_stream")) is not None:
                connection.close()
            raise

    def _follow(
        self, first: Steps[Answered], later: Callable[[str], Call[Answered]], patience_s: float
    ) -> Iterator[Answered]:
        """Yields the first answer, and the final one, for which `later` asks by its id, if the first is provisional."""
        answered = self._run(first)
        yield answered
        if request_id := retries.provisional_id(answered):
            yield self._run(self._followed(later(request_id), patience_s))

    def _run(self, steps: Steps[T], pause: Pause = time.sleep) -> T:
        """Sends the calls of some steps, and waits between them."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, float):
                    pause(step)
                    step = next(steps)
                    continue
                try:
                    answer = self._send(step)
                except FirstlineError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
