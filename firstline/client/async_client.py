"""`AsyncClient`: `Client` for asyncio, the same calls against either tier."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx

from firstline.client import answer_stream, calls, retries
from firstline.client.answer_stream import DEFAULT_PATIENCE_S
from firstline.client.calls import Call, FileOptions, Inputs, RequestOptions
from firstline.client.connection import DEFAULT_TIMEOUT_S, BaseClient, link_error, this_loop
from firstline.client.infer_many import DEFAULT_IN_FLIGHT, Progress, in_tasks
from firstline.client.infer_many import DEFAULT_PATIENCE_S as RETRY_PATIENCE_S
from firstline.client.results import Prediction
from firstline.client.retries import Outcome, Steps
from firstline_core.errors import FirstlineError, ProtocolError
from firstline_core.protocol.http_client import open_async_client
from firstline_core.types import InferResponse, ModelMetadata, Wait

T = TypeVar("T")


class AsyncClient(BaseClient[httpx.AsyncClient]):
    """`Client` for asyncio: the same calls, awaited; in every event loop over connections of its own."""

    _open = staticmethod(open_async_client)
    _place = staticmethod(this_loop)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections of this process and event loop."""
        http = self._clients.get(self._place())
        if http is not None:
            await http.aclose()

    async def infer(
        self,
        model: str,
        inputs: Inputs,
        *,
        version: str | int = "",
        id: str = "",  # noqa: A002 (V2's own name)
        outputs: Sequence[str] = (),
        **options: Unpack[RequestOptions],
    ) -> InferResponse:
        """See `Client.infer`."""
        call = calls.infer(model, inputs, options, version=version, client_id=id, outputs=outputs)
        return await self._send(call)

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
    ) -> AsyncIterator[Outcome[InferResponse]]:
        """See `Client.infer_many`."""
        traced = calls.with_current_trace(options)  # the trace of the call, not of a later iteration
        infer = partial(calls.infer, model, options=traced, version=version, outputs=outputs)
        sent = (retries.retried(at, partial(infer, inputs), patience_s) for at, inputs in enumerate(requests))
        return in_tasks(self._run, sent, in_flight=in_flight, ordered=ordered, on_progress=on_progress)

    async def submit(
        self,
        model: str,
        inputs: Inputs,
        *,
        version: str | int = "",
        id: str = "",  # noqa: A002 (V2's own name)
        outputs: Sequence[str] = (),
        **options: Unpack[RequestOptions],
    ) -> str:
        """See `Client.submit`."""
        call = calls.infer(model, inputs, options, version=version, client_id=id, outputs=outputs)
        return await self._send(calls.as_job(call))

    async def submit_file(self, model: str, file: str | Path | bytes, **options: Unpack[FileOptions]) -> str:
        """See `Client.submit_file`."""
        return await self._send(calls.as_job(calls.infer_file(model, file, options)))

    async def result(self, job_id: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> InferResponse:
        """See `Client.result`."""
        return await self._run(self._job_result(calls.answer(job_id), job_id, timeout_s))

    async def result_file(self, job_id: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Prediction:
        """See `Client.result_file`."""
        return await self._run(self._job_result(calls.prediction(job_id), job_id, timeout_s))

    async def forget(self, job_id: str) -> None:
        """See `Client.forget`."""
        await self._send(calls.forget(job_id))

    async def infer_file(
        self,
        model: str,
        file: str | Path | bytes,
        **options: Unpack[FileOptions],
    ) -> Prediction:
        """See `Client.infer_file`."""
        call = calls.infer_file(model, file, options)
        return await self._send(call)

    async def infer_document(
        self, model: str, file: str | Path | bytes, **options: Unpack[FileOptions]
    ) -> dict[str, Any]:
        """Like `Client.infer_document`."""
        return await self._send(calls.infer_document(model, file, options))

    def infer_files(
        self,
        model: str,
        files: Iterable[str | Path | bytes],
        *,
        in_flight: int = DEFAULT_IN_FLIGHT,
        ordered: bool = True,
        patience_s: float = RETRY_PATIENCE_S,
        on_progress: Progress | None = None,
        **options: Unpack[FileOptions],
    ) -> AsyncIterator[Outcome[Prediction]]:
        """See `Client.infer_files`."""
        infer = partial(calls.infer_file, model, options=calls.with_current_trace(options))
        sent = (retries.retried(at, partial(infer, file), patience_s) for at, file in enumerate(files))
        return in_tasks(self._run, sent, in_flight=in_flight, ordered=ordered, on_progress=on_progress)

    async def answer(self, request_id: str) -> InferResponse:
        """See `Client.answer`."""
        return await self._send(calls.answer(request_id))

    async def prediction(self, request_id: str) -> Prediction:
        """See `Client.prediction`."""
        return await self._send(calls.prediction(request_id))

    async def wait_for_final(self, request_id: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> InferResponse:
        """See `Client.wait_for_final`."""
        return await self._run(retries.final_answer(request_id, timeout_s=timeout_s))

    def events(self, request_id: str, *, patience_s: float = DEFAULT_PATIENCE_S) -> AsyncIterator[InferResponse]:
        """See `Client.events`."""
        return answer_stream.follow_async(self._http, answer_stream.tensors_of(request_id, patience_s))

    def stream_file(
        self,
        model: str,
        file: str | Path | bytes,
        *,
        patience_s: float = DEFAULT_PATIENCE_S,
        **options: Unpack[FileOptions],
    ) -> AsyncIterator[Prediction]:
        """See `Client.stream_file`."""
        call = calls.infer_file(model, file, {"wait": Wait.FIRST, **options})
        return answer_stream.follow_async(self._http, answer_stream.prediction_of(call, patience_s))

    async def metadata(self, model: str, version: str | int = "") -> ModelMetadata:
        """See `Client.metadata`."""
        return await self._send(calls.metadata(model, version))

    async def status(self) -> dict[str, Any]:
        """See `Client.status`."""
        return await self._send(calls.status())

    async def ready(self) -> bool:
        """See `Client.ready`."""
        return await self._send(calls.ready())

    async def _send(self, call: Call[T]) -> T:
        try:
            response = await self._http.request(
                call.method, call.path, content=call.content, headers=call.headers, params=call.params
            )
        except httpx.HTTPError as error:
            raise link_error(error, self.url) from error
        try:
            return call.read(response)
        except ProtocolError:  # what else comes over this connection may be wrong as well
            if (connection := response.extensions.get("network_stream")) is not None:
                await connection.aclose()
            raise

    async def _run(self, steps: Steps[T]) -> T:
        """Sends the calls of some steps, and waits between them."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, float):
                    await asyncio.sleep(step)
                    step = next(steps)
                    continue
                try:
                    answer = await self._send(step)
                except FirstlineError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
