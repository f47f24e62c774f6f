"""Load on a gateway that serves the digits bundle: pictures by number, and what the full model says of each."""

import asyncio
from collections.abc import Sequence

import httpx
import numpy as np
from support.gateway import DIGITS
from support.images import by_name, images, noise
from support.inference import digits_request, post, read
from support.waiting import until

from firstline_core.bundle.loading import load_model
from firstline_core.bundle.store import open_bundle
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import PROBABILITIES, Array


def picture(number: int) -> bytes:
    return noise(number)


def expected(numbers: Sequence[int]) -> list[Array]:
    """The full model's probabilities for each of these pictures."""
    bundle = open_bundle(DIGITS)
    model = load_model(bundle, bundle.manifest.full, RuntimeOptions())
    found = [model.predict(by_name(images(picture(number)))).outputs[PROBABILITIES] for number in numbers]
    model.close()
    return found


async def ask(client: httpx.AsyncClient, *encoded: bytes, timeout_s: float | None = None) -> httpx.Response:
    return await post(client, digits_request(images(*encoded), deadline_s=timeout_s))


def probabilities(reply: httpx.Response) -> Array:
    return read(reply).output("probabilities")


class Load:
    """Clients that ask without a pause, each with its own images, until they are stopped."""

    def __init__(self, client: httpx.AsyncClient, clients: int = 6) -> None:
        self._client = client
        self._ended = False
        self.answers: list[tuple[int, httpx.Response]] = []
        self._tasks = [asyncio.create_task(self._go(first)) for first in range(clients)]

    async def _go(self, first: int) -> None:
        number = first
        while not self._ended:
            reply = await ask(self._client, picture(number % 50))
            if reply.status_code == 503 and reply.json()["code"] == "queue_full":  # this machine is busy
                await asyncio.sleep(0.05)
                continue
            self.answers.append((number % 50, reply))
            number += 1

    async def more(self, count: int) -> None:
        """Waits for `count` more answers."""
        target = len(self.answers) + count
        await until(lambda: len(self.answers) >= target, 60)

    async def end(self) -> None:
        """Every request was answered, and with what the model says of it."""
        self._ended = True
        await asyncio.gather(*self._tasks)
        assert {reply.text for _, reply in self.answers if reply.status_code != 200} == set()
        right = expected(range(50))
        for number, reply in self.answers:
            np.testing.assert_allclose(probabilities(reply), right[number], atol=1e-5)
