"""One batch on a server behind the gateway: prepared here, sent, and handed out to its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

from firstline_core.clock import Clock
from firstline_core.errors import DeadlineExceededError, FirstlineError, RequestError, RuntimeFailure
from firstline_core.ids import new_request_id
from firstline_core.protocol.http import headers_for
from firstline_core.protocol.http_client import HttpReply
from firstline_core.telemetry.trace import CURRENT
from firstline_core.types import Arrays, join_rows, row_count, slice_rows
from firstline_gateway.executors.base import Outcome
from firstline_gateway.executors.local import Group, Prepared, joined_rows, prepare_batch, split_results
from firstline_gateway.executors.oip.dialects import RemoteModel

# A server reports itself that a deadline has passed; one that does not has failed.
_GRACE_S = 0.25

Exchange = Callable[[str, str, dict[str, str], bytes, float], Awaitable[HttpReply]]


class RemoteBatch:
    """A batch for one server.

    Args:
        model: as the server has it.
        inputs: see `Executor.run`.
        deadlines_s: see `Executor.run`.
        exchange: sends a request to the server.
        translated: returns the error of the batch for one of the server.
        timeout_s: the longest that one request may take.
        max_rows: the most rows in one request.
        clock: for deadlines.

    Attributes:
        rows: of the batch.
        input_s: processing time of this process before sending, in seconds.
        output_s: the same after the answer.
    """

    def __init__(
        self,
        model: RemoteModel,
        inputs: Sequence[Arrays],
        deadlines_s: Sequence[float | None],
        *,
        exchange: Exchange,
        translated: Callable[[FirstlineError], FirstlineError],
        timeout_s: float,
        max_rows: int,
        clock: Clock,
    ) -> None:
        self._model = model
        self._inputs = inputs
        self._deadlines_s = deadlines_s
        self._exchange = exchange
        self._translated = translated
        self._timeout_s = timeout_s
        self._max_rows = model.batch or max_rows
        self._clock = clock
        self.rows = sum([row_count(each) for each in inputs])
        self.input_s = self.output_s = 0.0

    async def run(self, threads: ThreadPoolExecutor, *, may_split: bool) -> list[Outcome]:
        """Runs it; see `Executor.run` and `SplitsBatches.run_whole`."""
        if self._model.needs_thread:
            prepared = await asyncio.get_running_loop().run_in_executor(threads, self._prepare)
        else:
            prepared = self._prepare()
        outcomes = prepared.outcomes
        for found in await asyncio.gather(*(self._run_group(each, may_split=may_split) for each in prepared.groups)):
            outcomes |= found
        return [outcomes[position] for position in range(len(self._inputs))]

    def _prepare(self) -> Prepared:
        started_s = perf_counter()
        found = prepare_batch(self._model.prepare, self._inputs, self._deadlines_s, self._clock)
        self.input_s = perf_counter() - started_s
        return found

    async def _run_group(self, group: Group, *, may_split: bool) -> dict[int, Outcome]:
        """Sends a group as one request, by the deadline of its most urgent member."""
        due_s = [self._deadlines_s[position] for position, _ in group]
        first_s = min((each for each in due_s if each is not None), default=None)
        try:
            rows, size = joined_rows(group), self._max_rows
            steps = [slice_rows(rows, at, at + size) for at in range(0, row_count(rows), size)]
            return split_results(group, join_rows([await self._send(step, first_s) for step in steps]))
        except DeadlineExceededError as error:
            late = [member for member, each in zip(group, due_s, strict=True) if each == first_s]
            others = [member for member, each in zip(group, due_s, strict=True) if each != first_s]
            outcomes: dict[int, Outcome] = {position: error for position, _ in late}
            if others:
                outcomes |= await self._run_group(others, may_split=may_split)
            return outcomes
        except (RequestError, RuntimeFailure) as error:
            if len(group) == 1 or (isinstance(error, RuntimeFailure) and not may_split):
                return {position: error for position, _ in group}
            # One request's rows may be at fault: alone, the others still get their answers.
            alone = await asyncio.gather(*(self._run_group([member], may_split=False) for member in group))
            return {position: outcome for each in alone for position, outcome in each.items()}
        except FirstlineError as error:
            return {position: error for position, _ in group}

    async def _send(self, rows: Arrays, deadline_s: float | None) -> Arrays:
        """Sends one request.

        Raises:
            DeadlineExceededError: the deadline passed before an answer.
            FirstlineError: see `translated`.
        """
        now_s, timeout_s = self._clock.monotonic_s(), self._timeout_s
        if deadline_s is not None:
            timeout_s = min(timeout_s, max(0.0, deadline_s - now_s) + _GRACE_S)
        try:
            started_s = perf_counter()
            request_id = new_request_id()
            encoded = self._model.encode(rows, request_id, deadline_s, now_s)
            encoding_s = perf_counter() - started_s
            headers, trace = headers_for(encoded), CURRENT.get()
            if trace is not None:
                headers |= trace.headers()
            reply = await self._exchange("POST", self._model.path, headers, encoded.body, timeout_s)
            started_s = perf_counter()
            found = self._model.read(reply, request_id, rows)
        except FirstlineError as error:
            if deadline_s is not None and deadline_s <= self._clock.monotonic_s():
                raise DeadlineExceededError(
                    "The request's deadline passed before a server answered; allow more time."
                ) from error
            raise self._translated(error) from error
        self.input_s += encoding_s
        self.output_s += perf_counter() - started_s
        return found
