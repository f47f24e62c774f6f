"""Heat that comes and goes, in the real agent on a recorded board: which variant it answers with, and when none.

    PYTHONPATH=tests:bench python bench/bench_hardware.py --only heat

What is real: `edge-agent` as a process with the settings that it has by itself, and clients that ask without a pause:
three each a new row each time, one always the same row, which the cache knows. What is made up: the temperature, in
the files of a Raspberry Pi 5 as they were recorded. It rises through `adaptation.heat_margin_c` and
`costs.heat_limit_c`, stays there until the agent sheds and for a while longer, and falls again. Five minutes.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop
from figures import Figure
from msgspec import Struct, field
from support.bundles import VARIANTS, variant_bundle
from support.hot_board import HotBoard, hot_board
from support.pressure import Client, agent_process

from hardware.asking import Asker, asking
from hardware.parts import Asked

_COOL_C, _HOT_C = 45.0, 82.0
_ON = "survey = false\n[adaptation]\nenabled = true\n"
_QUICKLY = "survey = false\nperiod_s = 0.2\n[adaptation]\nenabled = true\nsettle_s = 0.6\ndwell_s = 0.8\n"
_RATE_C_PER_S, _STEP_S = 0.4, 0.5
_NEW = 3
_HOLD_S = 15.0
_GIVE_UP_S = 400.0


class Seen(Struct):
    """A moment at which the agent changed what it does.

    Attributes:
        at_s: since the temperature began to rise.
        celsius: that the board said then.
        variant: the best that answers.
        sheds: it answers with what the cache knows alone.
    """

    at_s: float
    celsius: float
    variant: str
    sheds: bool


class Run(Struct):
    """What happened.

    Attributes:
        came, known: of requests for new rows, and for the one that the cache knows: see `Asker`.
        known_shedding: of the latter, those while it shed.
        ended: the agent's process did.
        cooling_s: when the temperature began to fall; None where it never shed.
        back_s: from then until the best variant answered again; None where it never did.
    """

    seen: list[Seen] = field(default_factory=list)
    came: dict[str, int] = field(default_factory=dict)
    known: dict[str, int] = field(default_factory=dict)
    known_shedding: dict[str, int] = field(default_factory=dict)
    ended: bool = False
    cooling_s: float | None = None
    back_s: float | None = None

    def first(self, *, variant: str = "", sheds: bool = False) -> Seen | None:
        """When it first answered with a variant, or shed."""
        return next(
            (each for each in self.seen if each.sheds is sheds and variant in ("", each.variant)),
            None,
        )


def measure(asked: Asked) -> tuple[Sequence[Figure], Any]:
    """Its figures, and what they are of."""
    print("heat", file=sys.stderr, flush=True)
    run = uvloop.run(_measure(quick=asked.quick))
    return figures(run), run


def figures(run: Run) -> list[Figure]:
    """Of the run, with what was aimed for."""
    names = list(VARIANTS)
    cheaper = next((each for each in run.seen if each.variant != names[0]), None)
    cheapest, shed = run.first(variant=names[-1]), run.first(sheds=True)
    first = cheapest is not None and shed is not None and cheapest.at_s < shed.at_s
    lost = run.came.get("lost", 0) + run.known.get("lost", 0)
    recalled = run.known_shedding.get("cache", 0)
    others = sum(run.known_shedding.values()) - recalled
    return [
        Figure("agents that ended", int(run.ended), "of 1", "0", not run.ended),
        Figure("a cheaper variant before none", int(first), "of 1", "1", first),
        Figure("first on a cheaper variant at", _celsius(cheaper), "C"),
        Figure("on the cheapest variant at", _celsius(cheapest), "C"),
        Figure("first refusal at", _celsius(shed), "C"),
        Figure("new rows answered", sum(run.came.get(name, 0) for name in names), "requests"),
        Figure("new rows refused with Retry-After", run.came.get("shedding", 0), "requests"),
        Figure("known rows answered from the cache while it shed", recalled, "requests", "> 0", recalled > 0),
        Figure("known rows not answered while it shed", others, "requests", "0", others == 0),
        Figure("lost", lost, "requests", "0", lost == 0),
        Figure(
            "back on the best variant, since it began to cool", run.back_s, "s", "comes back", run.back_s is not None
        ),
    ]


def _celsius(seen: Seen | None) -> float | None:
    return None if seen is None else seen.celsius


async def _measure(*, quick: bool) -> Run:
    run = Run()
    with tempfile.TemporaryDirectory() as folder, hot_board(Path(folder) / "board") as board:
        bundle = variant_bundle(Path(folder) / "bundle")
        settings = f'[hardware]\nroot = "{board.root}"\n{_QUICKLY if quick else _ON}'
        with agent_process(Path(folder), settings) as (process, url):
            client = Client(url, {variant.digest: variant.id for variant in bundle.manifest.edge})
            new = [Asker(client.asks) for _ in range(_NEW)]
            known = Asker(client.asks_again)
            async with asking(client, *new, known):
                await _heated(run, _Heated(board, client, known, 10 * _RATE_C_PER_S if quick else _RATE_C_PER_S))
            run.ended = process.poll() is not None
            run.came = dict(sum((asker.came for asker in new), Counter[str]()))
            run.known = dict(known.came)
    return run


class _Heated:
    """The board, as it follows a temperature, and what the agent makes of it.

    Args:
        board, client: to heat, and to look with.
        known: asks for what the cache knows.
        rate_c_per_s: at which it heats and cools.
    """

    def __init__(self, board: HotBoard, client: Client, known: Asker, rate_c_per_s: float) -> None:
        self._board, self._client, self.known = board, client, known
        self._rate_c_per_s = rate_c_per_s
        self._began_s = time.monotonic()
        self._celsius = _COOL_C

    @property
    def at_s(self) -> float:
        return round(time.monotonic() - self._began_s, 2)

    async def goes(self, towards_c: float) -> Seen:
        """A step further; what the agent does then."""
        change_c = self._rate_c_per_s * _STEP_S
        self._celsius += max(-change_c, min(change_c, towards_c - self._celsius))
        self._board.is_at(self._celsius)
        await asyncio.sleep(_STEP_S)
        status = await self._client.status()
        return Seen(self.at_s, round(self._celsius, 1), status["standing"], status["sheds"])


async def _heated(run: Run, heated: _Heated) -> None:
    async def goes(towards_c: float) -> Seen:
        seen = await heated.goes(towards_c)
        if not run.seen or (run.seen[-1].variant, run.seen[-1].sheds) != (seen.variant, seen.sheds):
            run.seen.append(seen)
        return seen

    while not (await goes(_HOT_C)).sheds:
        if heated.at_s > _GIVE_UP_S:
            return
    before, since_s = Counter(heated.known.came), heated.at_s
    while heated.at_s < since_s + _HOLD_S * _RATE_C_PER_S / heated._rate_c_per_s:
        await goes(_HOT_C)
    run.known_shedding = dict(heated.known.came - before)
    run.cooling_s = heated.at_s
    while heated.at_s < run.cooling_s + _GIVE_UP_S:
        seen = await goes(_COOL_C)
        if seen.variant == next(iter(VARIANTS)) and not seen.sheds:
            run.back_s = round(seen.at_s - run.cooling_s, 1)
            return
