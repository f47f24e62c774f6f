"""One log line and one count for every request, whichever transport brought it."""

from __future__ import annotations

from typing import Literal

from firstline_core.errors import FirstlineError, RuntimeFailure
from firstline_core.telemetry.logs import logger
from firstline_gateway.metrics import GatewayMetrics

log = logger("firstline_gateway.requests")


def record(
    metrics: GatewayMetrics,
    *,
    transport: Literal["http", "mqtt"],
    model: str,
    principal: str,
    seconds: float,
    error: FirstlineError | None = None,
) -> None:
    """Writes down how a request ended. The data plane bound its id, rows, tier and reason to the log's context.

    Args:
        metrics: counts errors here; answers are counted where they are made.
        transport: what brought it.
        model: as the caller wrote it.
        principal: who asked, "" where it is not known.
        seconds: from the first byte read to the answer made.
        error: why there is no answer.
    """
    # A caller's text must not steer a terminal.
    facts = {
        "transport": transport,
        "model": model if model.isprintable() else ascii(model),
        "principal": principal,
        "ms": round(seconds * 1000, 3),
    }
    if error is None:
        log.info("answered", outcome="ok", **facts)
        return
    metrics.error(error)
    if type(error) is FirstlineError or isinstance(error, RuntimeFailure):  # ours to mend, not the caller's
        log.error("failed", outcome=error.code, error=error.message, **facts)
    else:
        log.info("refused", outcome=error.code, error=error.message, **facts)
