"""A real link that carries less than is asked: how long an answer takes is known before one is late."""

import asyncio
import random
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from support.gateway import serving_gateway
from support.proxy import ChaosProxy, Network

from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.ids import new_request_id
from firstline_core.types import InferRequest, Tensor
from firstline_edge.cloud.breaker import CircuitBreaker
from firstline_edge.cloud.chain import LinkChain
from firstline_edge.cloud.http_link import HttpLink
from firstline_edge.settings.settings import LinkSection

_CARRIED_BYTES_S = 400_000
_ROWS = np.zeros((320, 8, 8, 1), np.uint8)  # 20 kB: 51 ms on the link, and their answer as long again
_DEPTH = 8


def asked() -> InferRequest:
    return InferRequest("digits", (Tensor("image", _ROWS),), new_request_id(), binary_output=True)


async def test_requests_in_flight_delay_the_prediction(tmp_path: Path) -> None:
    async with serving_gateway(tmp_path, auth__mode="off") as (_, url), ChaosProxy(httpx.URL(url).port or 0) as narrow:
        await narrow.become(Network(delay_s=0.005, total_bytes_s=_CARRIED_BYTES_S))
        link = HttpLink(LinkSection(kind="http", url=f"http://127.0.0.1:{narrow.port}"))
        chain = LinkChain([link], [CircuitBreaker(SYSTEM_CLOCK, random.Random(1))], SYSTEM_CLOCK)
        await chain.start()

        async def ask() -> float:
            began_s = time.monotonic()
            await chain.infer(asked(), None, [])
            return time.monotonic() - began_s

        for together in (1, 2, 4, 1, 3, 4, 2):
            await asyncio.gather(*(ask() for _ in range(together)))
        size_bytes = asked().size_bytes

        def median_s() -> float | None:
            return chain._links[0].timing.predicted_s(size_bytes, 0.5, SYSTEM_CLOCK.monotonic_s())

        alone_s, alone_took_s = median_s(), await ask()
        sent = [asyncio.create_task(ask()) for _ in range(_DEPTH)]
        await asyncio.sleep(0)
        behind_s = median_s()  # no request ever waited behind this many
        took_s = await ask()
        await asyncio.gather(*sent)
        await chain.close()
    assert alone_s == pytest.approx(alone_took_s, rel=0.4)
    assert behind_s == pytest.approx(took_s, rel=0.4)
    assert took_s > max(_DEPTH * size_bytes / _CARRIED_BYTES_S, 3 * alone_took_s)
