"""One log line and one count for every request, whichever transport brought it."""

from __future__ import annotations

import time
from typing import Literal

from firstline_core.errors import CapacityError, FirstlineError, RuntimeFailure
from firstline_core.ids import new_request_id
from firstline_core.telemetry import logs
from firstline_core.telemetry.metrics import RequestMetrics

log = logs.logger("firstline_gateway.requests")

# Refusals for lack of room that are logged one by one, in a second: writing a line takes longer than refusing.
_REFUSALS_PER_S = 20


class _Flood:
    """Keeps refusals under overload from becoming an overload of the log."""

    def __init__(self) -> None:
        self._second = 0
        self._refusals = 0

    def passes(self, second: int) -> bool:
        """Whether this one is written; the first of a new second says how many were not."""
        if second != self._second:
            if self._refusals > _REFUSALS_PER_S:
                log.info("more refused", requests=self._refusals - _REFUSALS_PER_S, code=CapacityError.code)
            self._second, self._refusals = second, 0
        self._refusals += 1
        return self._refusals <= _REFUSALS_PER_S


_flood = _Flood()


def record(
    metrics: RequestMetrics,
    *,
    transport: Literal["http", "grpc", "mqtt"],
    model: str,
    principal: str,
    seconds: float,
    error: FirstlineError | None = None,
) -> None:
    """Writes down how a request ended. The data plane bound its id, rows, tier and reason to the log's context.

    Args:
        metrics: counts errors here; answers are counted where they are made.
        transport: the transport.
        model: as the caller wrote it.
        principal: the caller; "" if it is not known.
        seconds: from the first byte read to the answer made.
        error: why there is no answer.
    """
    if error is not None:
        metrics.count_error(error)
        if isinstance(error, CapacityError) and not _flood.passes(int(time.monotonic())):
            return
    model = model if model.isprintable() else ascii(model)  # a caller's text must not steer a terminal
    ms = round(seconds * 1000, 3)
    facts: dict[str, object] = {"transport": transport, "model": model, "principal": principal, "ms": ms}
    if error is None:
        log.info("answered", outcome="ok", **facts)
        return
    if "request_id" not in (logs.FACTS.get() or dict)():  # it was not read
        facts["request_id"] = error.identify()
    if type(error) is FirstlineError or isinstance(error, RuntimeFailure):  # ours to mend, not the caller's
        log.error("failed", outcome=error.code, error=error.message, **facts)
    else:
        log.info("refused", outcome=error.code, error=error.message, **facts)


def unexpected(failure: Exception, **where: str) -> FirstlineError:
    """Logs a failure of the gateway's own code under an id, and returns the error for the caller, which names this id.

    Args:
        failure: its traceback is logged.
        where: the path or the topic of the request.
    """
    request_id = new_request_id()
    where = {name: ascii(text) for name, text in where.items()}
    log.error("request failed unexpectedly", exc_info=failure, request_id=request_id, **where)
    described = FirstlineError(f"The gateway failed on this request; its log has the reason under {request_id}.")
    described.request_id = request_id
    return described
