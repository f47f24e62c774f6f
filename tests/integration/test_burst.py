"""Many requests at once: the agent answers those that it can in time, and refuses the others with advice."""

import asyncio
import json
import re
import time
from collections import Counter
from pathlib import Path

import pytest
from support.agent import edge_settings, serving_agent
from support.digits import scans
from support.raw_http import RawReply, connected, next_reply

from firstline_core.runtime import batch_times

BURST = 500
SHORT = "/firstline/v1/models/digits/infer"


async def burst(folder: Path, timeout_s: float) -> list[tuple[RawReply, float]]:
    contents = scans(50)
    async with serving_agent(edge_settings(folder)) as (agent, url):
        asking = [ask(url, contents[number % 50] + b"%d" % number, timeout_s) for number in range(BURST)]
        answers = await asyncio.gather(*asking)
        assert len(agent.data_plane._admission) == 0
    return answers


async def ask(url: str, content: bytes, timeout_s: float) -> tuple[RawReply, float]:
    """Sends one request on a connection of its own; returns the reply and how long it took."""
    head = (
        f"POST {SHORT}?timeout={timeout_s * 1e6:.0f} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(content)}\r\n"
    )
    began_s = time.monotonic()
    async with connected(url, 60) as (reader, writer):
        writer.write(f"{head}Content-Type: image/png\r\nConnection: close\r\n\r\n".encode() + content)
        return await next_reply(reader), time.monotonic() - began_s


@pytest.mark.parametrize("loop_limit_s", [0.001, 0.0], ids=["on the loop", "in threads"])
async def test_burst_is_answered_within_a_long_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop_limit_s: float
) -> None:
    monkeypatch.setattr(batch_times, "LOOP_LIMIT_S", loop_limit_s)
    answers = await burst(tmp_path, timeout_s=15.0)  # a busy machine's 2 s, the default
    assert Counter(reply.status for reply, _ in answers) == {200: BURST}
    assert max(took_s for _, took_s in answers) < 15


async def test_requests_that_would_be_late_are_refused_with_retry_after(tmp_path: Path) -> None:
    answers = await burst(tmp_path, timeout_s=0.1)
    statuses = {reply.status for reply, _ in answers}
    codes = {503: "queue_full", 504: "deadline_exceeded"}  # 504 if the deadline passed before the agent read it
    assert 503 in statuses and statuses <= {200, *codes}
    for reply, _ in answers:
        if reply.status != 200:
            assert int(re.search(rb"retry-after: (\d+)", reply.head, re.IGNORECASE)[1]) >= 1
            assert json.loads(reply.body)["code"] == codes[reply.status]
