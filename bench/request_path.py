"""Counts the modules that one request enters: a confident answer on the device, one inference on the gateway.

    python -m bench.request_path

Both tiers run in this process with the digits: the device as a library, the gateway's data plane without a server. A
module of a tier or of the core counts if `sys.setprofile` sees a call into it during each of several requests, so that
background work does not count. Writes bench/results/request-path.json and docs/benchmarks.md.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType

import numpy as np

from bench.agent import agent
from bench.figures import Figure, at_most
from bench.page import report
from firstline.workbench.data.dataset import open_dataset
from firstline_core.ids import new_request_id
from firstline_core.types import InferRequest, InferResponse, Tensor, Tier
from firstline_gateway.app import Gateway, open_gateway
from firstline_gateway.settings.load import load

_DIGITS = Path(__file__).parents[1] / "models" / "digits"
_AIM = 15
_WARM_UP, _REQUESTS = 10, 20

Infer = Callable[[InferRequest], Awaitable[InferResponse]]


class Recorder:
    """A profile function that records the modules of Firstline whose functions are called while it is `on`."""

    def __init__(self) -> None:
        self.on = False
        self.modules: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if self.on and event == "call":
            name = frame.f_globals.get("__name__", "")
            if name.startswith("firstline_"):
                self.modules.add(name)


def requests() -> Iterator[InferRequest]:
    """Yields a request for each image of the digits."""
    for encoded in open_dataset(_DIGITS / "heldout").contents():
        yield InferRequest("digits", (Tensor("image", np.array([encoded], np.object_)),), new_request_id())


async def entered(recorder: Recorder, infer: Infer, tier: Tier) -> list[str]:
    """Returns the modules that every recorded request enters; answers of other tiers do not count."""
    found: list[set[str]] = []
    for request in requests():
        recorder.modules, recorder.on = set(), True
        response = await infer(request)
        recorder.on = False
        if response.answer is not None and response.answer.tier is tier:
            found.append(recorder.modules)
        if len(found) == _WARM_UP + _REQUESTS:
            return sorted(set.intersection(*found[_WARM_UP:]))
    raise RuntimeError(f"fewer than {_WARM_UP + _REQUESTS} answers by {tier}")


@asynccontextmanager
async def gateway(folder: Path) -> AsyncIterator[Gateway]:
    """Runs a gateway with the digits in this process, without its servers."""
    settings = load(
        None,
        environ={},
        overrides={
            "auth.mode": "off",
            "models.directory": str(_DIGITS / "bundle"),
            "store.url": f"sqlite:///{folder / 'gateway.db'}",
            "identity.directory": str(folder / "identity"),
        },
    )
    running = open_gateway(settings)
    await running.start()
    try:
        yield running
    finally:
        await running.close()


async def measured() -> list[Figure]:
    """Counts on both tiers, and prints the modules."""
    recorder, found = Recorder(), {}
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    try:
        with tempfile.TemporaryDirectory(prefix="firstline-request-path-") as name:
            async with agent(Path(name) / "state", _DIGITS / "bundle") as device:
                found["a confident answer on the device"] = await entered(recorder, device.data_plane.infer, Tier.EDGE)
            async with gateway(Path(name)) as running:
                found["an inference on the gateway"] = await entered(recorder, running.plane.infer, Tier.CLOUD)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    for what, modules in found.items():
        print(f"{what}:", *modules, sep="\n  ")
    return [at_most(f"modules that {what} enters", len(modules), _AIM, digits=0) for what, modules in found.items()]


if __name__ == "__main__":
    sys.exit(report("request-path", asyncio.run(measured())))
