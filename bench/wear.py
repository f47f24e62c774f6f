"""What a request writes to the device's flash: bytes that the agent has the kernel send to the disk, by route.

The agent is a process of its own beside a real gateway, asked one request after the other, as from one application:
requests at once would share commits, and cost less. Its answers are 10 probabilities for 64 pixels, so what is
counted is the cost of keeping, more than what is kept. Without a result cache on disk it is the outbox's and the
decision log's.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
from figures import Figure, report

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # both tiers as processes

from chaos.kills import scans
from chaos.soak import SMALL_CACHE, sample
from chaos.victims import MODEL, Tier, victims

_CACHES = {
    "no result cache on disk": "[cache]\ndisk_limit_bytes = 0\n",
    "with a result cache that is full": SMALL_CACHE,
}
_ROUTES = {"kept on the device": "", "escalated": "?route=cloud", "promised": "?route=cloud&wait=first"}
_WARM_UP = 150  # requests, until log and cache are as they stay
_SETTLE_S = 2.0  # until the last promises are kept, and what is written behind is written
_AIM_BYTES = 32 * 1024


async def measure(requests: int) -> list[Figure]:
    """Bytes for each of so many requests, by cache and by route."""
    found = []
    for said, cache in _CACHES.items():
        with tempfile.TemporaryDirectory(prefix="firstline-wear-", ignore_cleanup_errors=True) as folder:
            async with victims(Path(folder), 1, mqtt=False, cache=cache) as house:
                for tier in (house.gateway, house.agent):
                    await tier.start()
                    await tier.ready()
                contents = scans(1)
                for route, query in _ROUTES.items():
                    await _ask(house.agent.url, query, contents, _WARM_UP)
                    before_bytes = _written_bytes(house.agent)
                    await _ask(house.agent.url, query, contents, requests)
                    each_bytes = (_written_bytes(house.agent) - before_bytes) / requests
                    aimed = route == "promised" and cache is not SMALL_CACHE
                    found.append(
                        Figure(
                            f"{said}, {route}: written for each request",
                            round(each_bytes),
                            "bytes",
                            f"below {_AIM_BYTES}" if aimed else None,
                            each_bytes < _AIM_BYTES if aimed else None,
                        )
                    )
    return found


async def _ask(url: str, query: str, contents: Iterator[bytes], count: int) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client:
        for _ in range(count):
            asked = await client.post(f"/firstline/v1/models/{MODEL}/infer{query}", content=next(contents))
            asked.raise_for_status()
            await asyncio.sleep(0.02)  # a promise is kept before the next one is made
    await asyncio.sleep(_SETTLE_S)


def _written_bytes(tier: Tier) -> int:
    assert tier.process is not None
    return sample(tier.process, 0.0).written_bytes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200, help="that are counted, of each route")
    return report("wear", asyncio.run(measure(parser.parse_args().requests)))


if __name__ == "__main__":
    sys.exit(main())
