"""Where both tiers decode images: small ones where the model runs, large ones in the threads for images."""

from __future__ import annotations

import threading
from pathlib import Path

import httpx
import pytest
from support.agent import DIGITS
from support.either_tier import either_tier
from support.images import grey

from firstline_core.processing.decoding import LIGHT_PIXELS

SIDE = int(LIGHT_PIXELS**0.5)


def image_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("images")}


@pytest.mark.parametrize("tier", ["gateway", "agent"])
async def test_only_large_images_are_decoded_in_a_thread_for_images(tier: str, tmp_path: Path) -> None:
    before = image_threads()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "digits").symlink_to(DIGITS)
    async with (
        either_tier(tier, tmp_path) as (url, _),
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as http,
    ):
        for side, threads in ((SIDE, 0), (SIDE + 1, 1)):
            answer = await http.post("/firstline/v1/models/digits/infer", content=grey(side=side))
            assert answer.status_code == 200, answer.text
            assert len(image_threads() - before) == threads
