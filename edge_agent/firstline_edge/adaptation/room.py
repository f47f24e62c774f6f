"""Steps the controllers with what the sensors say, loads and unloads by it, and tells of every switch."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

from firstline_core.adaptation.controller import Stance
from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError
from firstline_core.hardware.sensors.snapshot import Snapshot
from firstline_core.runtime.memory import release_freed_memory
from firstline_core.runtime.threads import REFUSED
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_edge.adaptation.variants import Variants
from firstline_edge.audits.standing import Standings
from firstline_edge.hardware.sampler import Sampler
from firstline_edge.models.held import HeldModel, Models
from firstline_edge.telemetry.recorder import Recorder

log = logger(__name__)

_RETRY_S = 60.0  # after a variant did not load again
_TOLD_S = 60.0  # heat that comes and goes has requests shared out anew that often, in the logs


class AdaptationRoom:
    """All ladders of one agent.

    Args:
        models: those held; has the variant that stands.
        standings: of their certificates.
        recorder: told of each switch.
        clock: of retries.

    Attributes:
        switches: so far, by the guard that asked.
    """

    def __init__(
        self,
        models: Models,
        standings: Standings,
        recorder: Recorder,
        clock: Clock,
    ) -> None:
        self._models = models
        self._standings = standings
        self._recorder = recorder
        self._clock = clock
        self._loading: dict[Variants, asyncio.Task[None]] = {}
        self._retry_s: dict[Variants, float] = {}
        self._shared_s: dict[Variants, float] = {}
        self.switches: Counter[str] = Counter()

    def look(self, snapshot: Snapshot) -> None:
        """Steps every controller; nothing here takes time that a request would notice."""
        for held in self._models.all:
            if held.variants is not None:
                self._step(held, held.variants, snapshot)
        here = {held.variants for held in self._models.all}
        self._retry_s = {variants: at_s for variants, at_s in self._retry_s.items() if variants in here}
        self._shared_s = {variants: at_s for variants, at_s in self._shared_s.items() if variants in here}

    async def run(self, sampler: Sampler) -> None:
        """Is shown each reading until it is cancelled, which also ends what is being loaded."""
        sampler.listener = self.look
        try:
            await asyncio.Event().wait()
        finally:
            sampler.listener = None
            for task in self._loading.values():
                task.cancel()
            await asyncio.gather(*self._loading.values(), return_exceptions=True)

    def _step(self, held: HeldModel, variants: Variants, snapshot: Snapshot) -> None:
        before, told = variants.stance, variants.told
        after = variants.look(snapshot)
        if variants.told != told:
            self.switches[after.word.guard if after.word is not None else ""] += 1
            self._tell(held, variants, told)
        elif after.share and self._begins_to_share(variants, before):
            self._tell(held, variants, told)
        if after.unload:
            self._unload(variants)
        if variants.standing is not held:
            self._models.put(variants.standing)
        if variants.wanted is not None and variants not in self._loading and self._may_try(variants):
            task = asyncio.get_running_loop().create_task(self._bring(held, variants, variants.wanted))
            self._loading[variants] = task
            task.add_done_callback(lambda _: self._loading.pop(variants))

    def _begins_to_share(self, variants: Variants, before: Stance) -> bool:
        now_s = self._clock.monotonic_s()
        if before.share or now_s < self._shared_s.get(variants, float("-inf")) + _TOLD_S:
            return False
        self._shared_s[variants] = now_s
        return True

    def _unload(self, variants: Variants) -> None:
        all_gone = variants.unload_above()
        for gone in all_gone:
            self._standings.unwatch_one(gone)
            log.info("variant unloaded", model=gone.manifest.name, variant=_variant(gone))
        if all_gone:
            with contextlib.suppress(*REFUSED):  # no thread is left, which there is memory for later
                asyncio.get_running_loop().run_in_executor(None, release_freed_memory)

    async def _bring(self, held: HeldModel, variants: Variants, rung: int) -> None:
        """Loads a variant again; requests go on with what is there."""
        wanted = variants.rungs[rung].variant
        try:
            edge = await asyncio.to_thread(variants.load, rung)
        except (FirstlineError, *REFUSED) as error:
            self._retry_s[variants] = self._clock.monotonic_s() + _RETRY_S
            log.warning("a variant does not load again", model=held.manifest.name, variant=wanted, error=str(error))
            return
        now = self._models.find(held.manifest.name, held.version)
        if now is None or now.variants is not variants or variants.stance.rung > rung:  # nobody wants it any more
            edge.loaded.close()
            return
        loaded = HeldModel(held.bundle, edge, variants=variants)
        variants.put(rung, loaded)
        self._standings.watch_one(loaded)
        self._models.put(variants.standing)
        log.info("variant loaded again", model=held.manifest.name, variant=wanted)

    def _may_try(self, variants: Variants) -> bool:
        return self._clock.monotonic_s() >= self._retry_s.get(variants, float("-inf"))

    def _tell(self, held: HeldModel, variants: Variants, told: int) -> None:
        stance, last = variants.stance, len(variants.rungs) - 1
        guard, reason = (stance.word.guard, stance.word.reason) if stance.word is not None else ("", "")
        facts = {
            "model": held.manifest.name,
            "version": held.version,
            "from": variants.rungs[min(told, last)].variant,
            "to": variants.rungs[min(variants.told, last)].variant,
            "share_of_the_next": round(stance.share, 2),
            "sheds": stance.shed,
            "guard": guard,
            "reason": reason,
        }
        log.info("variant switched", **facts)
        self._recorder.switched(facts)


def add_gauges(metrics: RequestMetrics, models: Models, room: AdaptationRoom) -> None:
    """Where each model stands, and how often that changed."""
    metrics.readings(
        "variant_rung",
        "How far down its variants a model stands: 0 is the best, 0.3 the next for three requests of ten; as many as "
        "there are where it sheds.",
        ("model", "version"),
        lambda: {
            (held.manifest.name, held.version): held.variants.depth for held in models.all if held.variants is not None
        },
    )
    metrics.readings(
        "variant_switches_total",
        "Steps from one variant to another, by the guard that asked.",
        ("guard",),
        lambda: {(guard,): float(count) for guard, count in room.switches.items()},
        counts=True,
    )


def _variant(held: HeldModel) -> str:
    return held.edge.loaded.model.id if held.edge is not None else ""
