from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.edge import MakeScene, Scene


@pytest.fixture
async def make_scene() -> AsyncIterator[MakeScene]:
    scenes: list[Scene] = []

    def make(**arguments: Any) -> Scene:
        scenes.append(Scene(**arguments))
        return scenes[-1]

    yield make
    for scene in scenes:
        await scene.close()


@pytest.fixture
async def scene(make_scene: MakeScene) -> Scene:
    return make_scene()
