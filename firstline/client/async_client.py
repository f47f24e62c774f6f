"""`AsyncClient`: `Client` for asyncio, the same calls against either tier."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

import httpx

from firstline.client import answer_stream, calls, tracing
from firstline.client.answer_stream import DEFAULT_PATIENCE_S
from firstline.client.calls import Call, RequestOptions
from firstline.client.connection import DEFAULT_TIMEOUT_S, BaseClient, link_error
from firstline.client.infer_many import DEFAULT_IN_FLIGHT, Outcome, Progress, in_tasks
from firstline.client.infer_many import DEFAULT_PATIENCE_S as RETRY_PATIENCE_S
from firstline.client.prediction import Prediction
from firstline.client.sync_client import POLL_S, Inputs, T, check_job, check_time
from firstline_core.errors import DeadlineExceededError
from firstline_core.protocol.http_client import open_async_client
from firstline_core.types import InferResponse, ModelMetadata, Status, Wait


class AsyncClient(BaseClient[httpx.AsyncClient]):
    """`Client` for asyncio: the same calls, awaited."""

    _open = staticmethod(open_async_client)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

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
        return calls.read_infer(await self._send(call))

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
    ) -> AsyncIterator[Outcome]:
        """See `Client.infer_many`."""
        traced = tracing.with_current_trace(options)  # the trace of the call, not of a later iteration
        return in_tasks(
            lambda inputs: self.infer(model, inputs, version=version, outputs=outputs, **traced),
            requests,
            in_flight=in_flight,
            ordered=ordered,
            patience_s=patience_s,
            on_progress=on_progress,
        )

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
        return calls.read_job(await self._send(calls.as_job(call)))

    async def submit_file(self, model: str, file: str | Path | bytes, **options: Unpack[RequestOptions]) -> str:
        """See `Client.submit_file`."""
        return calls.read_job(await self._send(calls.as_job(calls.infer_file(model, file, options))))

    async def result(self, job_id: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> InferResponse:
        """See `Client.result`."""
        return await self._result(calls.answer(job_id), calls.read_infer, job_id, timeout_s)

    async def result_file(self, job_id: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Prediction:
        """See `Client.result_file`."""
        return await self._result(calls.answer_as_label(job_id), calls.read_prediction, job_id, timeout_s)

    async def forget(self, job_id: str) -> None:
        """See `Client.forget`."""
        calls.read_deleted(await self._send(calls.forget(job_id)))

    async def _result(self, call: Call, read: Callable[[httpx.Response], T], job_id: str, timeout_s: float) -> T:
        end_s = time.monotonic() + timeout_s
        while True:
            try:
                return read(await self._send(calls.long_polling(call, self.silence_limit_s(end_s))))
            except DeadlineExceededError:  # the job's
                raise
            except answer_stream.PASSING as error:
                check_job(job_id, error, end_s, timeout_s)
            await asyncio.sleep(POLL_S)

    async def infer_file(
        self,
        model: str,
        file: str | Path | bytes,
        **options: Unpack[RequestOptions],
    ) -> Prediction:
        """See `Client.infer_file`."""
        call = calls.infer_file(model, file, options)
        return calls.read_prediction(await self._send(call))

    async def answer(self, request_id: str) -> InferResponse:
        """See `Client.answer`."""
        return calls.read_infer(await self._send(calls.answer(request_id)))

    async def prediction(self, request_id: str) -> Prediction:
        """See `Client.prediction`."""
        return calls.read_prediction(await self._send(calls.answer_as_label(request_id)))

    async def wait_for_final(self, request_id: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> InferResponse:
        """See `Client.wait_for_final`."""
        end_s = time.monotonic() + timeout_s
        while True:
            found = await self.answer(request_id)
            if found.answer is None or found.answer.status is not Status.PROVISIONAL:
                return found
            check_time(request_id, end_s, timeout_s)
            await asyncio.sleep(POLL_S)

    def events(self, request_id: str, *, patience_s: float = DEFAULT_PATIENCE_S) -> AsyncIterator[InferResponse]:
        """See `Client.events`."""
        return answer_stream.follow_async(self._http, answer_stream.tensors_of(request_id, patience_s))

    def stream_file(
        self,
        model: str,
        file: str | Path | bytes,
        *,
        patience_s: float = DEFAULT_PATIENCE_S,
        **options: Unpack[RequestOptions],
    ) -> AsyncIterator[Prediction]:
        """See `Client.stream_file`."""
        call = calls.infer_file(model, file, {"wait": Wait.FIRST, **options})
        return answer_stream.follow_async(self._http, answer_stream.prediction_of(call, patience_s))

    async def metadata(self, model: str, version: str | int = "") -> ModelMetadata:
        """See `Client.metadata`."""
        return calls.read_metadata(await self._send(calls.metadata(model, version)))

    async def status(self) -> dict[str, Any]:
        """See `Client.status`."""
        return calls.read_status(await self._send(calls.status()))

    async def ready(self) -> bool:
        """See `Client.ready`."""
        return calls.read_ready(await self._send(calls.ready()))

    async def _send(self, call: Call) -> httpx.Response:
        try:
            return await self._http.request(
                call.method, call.path, content=call.content, headers=call.headers, params=call.params
            )
        except httpx.HTTPError as error:
            raise link_error(error, self.url) from error
