"""Where both tiers decode images: small ones where the model runs, large ones in the threads for images."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from support.agent import DIGITS
from support.either_tier import either_tier
from support.gateway import serving
from support.images import grey, image_threads
from support.small_models import small_gateway

from firstline_core.processing.decoding import LIGHT_PIXELS

SIDE = int(LIGHT_PIXELS**0.5)


@asynccontextmanager
async def mixed_gateway(folder: Path) -> AsyncIterator[str]:
    """A gateway that runs the model itself, and has another engine too."""
    executors = {"here": {"engine": "local"}, "far": {"engine": "oip", "endpoints": ["http://127.0.0.1:1"]}}
    async with serving(small_gateway(folder, executors=executors)) as url:
        yield url


@pytest.mark.parametrize("tier", ["gateway", "agent", "mixed"])
async def test_only_large_images_are_decoded_in_a_thread_for_images(tier: str, tmp_path: Path) -> None:
    before = image_threads()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "digits").symlink_to(DIGITS)
    opened = mixed_gateway(tmp_path) if tier == "mixed" else either_tier(tier, tmp_path)
    async with (
        opened as found,
        httpx.AsyncClient(base_url=found if isinstance(found, str) else found[0], trust_env=False, timeout=30) as http,
    ):
        for side, threads in ((SIDE, 0), (SIDE + 1, 1)):
            answer = await http.post("/firstline/v1/models/digits/infer", content=grey(side=side))
            assert answer.status_code == 200, answer.text
            assert len(image_threads() - before) == threads
