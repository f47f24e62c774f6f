"""Many requests at once: the agent answers those that it can in time, and refuses the others with advice."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from pathlib import Path

import pytest
from support.agent import edge_settings, serving_agent

from firstline.demo.site import digits_folder
from firstline.workbench.dataset import open_dataset
from firstline_core.runtime import base

BURST = 500
Answer = tuple[int, dict[str, str], dict[str, object], float]


async def burst(folder: Path, timeout_s: float) -> list[Answer]:
    contents = [content for content, _ in open_dataset(digits_folder() / "heldout", 50).read()]
    async with serving_agent(edge_settings(folder)) as (agent, url):
        port = int(url.rpartition(":")[2])
        asking = [ask(port, contents[number % 50] + b"%d" % number, timeout_s) for number in range(BURST)]
        answers = await asyncio.gather(*asking)
        assert len(agent.data_plane._admission) == 0
    return answers


async def ask(port: int, content: bytes, timeout_s: float) -> Answer:
    """One request on a connection of its own; status, headers, body and how long it took."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    address = f"/firstline/v1/models/digits/infer?timeout={timeout_s * 1e6:.0f}"
    head = f"POST {address} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(content)}\r\n"
    began_s = time.monotonic()
    writer.write(f"{head}Content-Type: image/png\r\nConnection: close\r\n\r\n".encode() + content)
    answer = await reader.read()
    took_s = time.monotonic() - began_s
    writer.close()
    said, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = said.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(first.split()[1]), headers, json.loads(body), took_s


@pytest.mark.parametrize("loop_limit_s", [0.001, 0.0], ids=["on the loop", "in threads"])
async def test_a_burst_is_answered_where_there_is_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop_limit_s: float
) -> None:
    monkeypatch.setattr(base, "LOOP_LIMIT_S", loop_limit_s)
    answers = await burst(tmp_path, timeout_s=15.0)  # a busy machine's 2 s, the default
    assert Counter(status for status, *_ in answers) == {200: BURST}
    assert max(took_s for *_, took_s in answers) < 15


async def test_who_comes_too_late_is_refused_with_advice(tmp_path: Path) -> None:
    answers = await burst(tmp_path, timeout_s=0.1)
    statuses = {status for status, *_ in answers}
    assert 503 in statuses and statuses <= {200, 503}
    for status, headers, body, _ in answers:
        if status == 503:
            assert int(headers["retry-after"]) >= 1
            assert body["code"] == "queue_full"
