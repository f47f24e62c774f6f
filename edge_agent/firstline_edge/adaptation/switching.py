"""Updates the variant controllers with sensor readings, loads and unloads variants, and reports every switch."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from firstline_core.clock import Clock, end_tasks
from firstline_core.errors import FirstlineError
from firstline_core.hardware.readings import Snapshot
from firstline_core.runtime.memory import release_freed_memory
from firstline_core.runtime.threads import REFUSED
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_edge.models.models import BundleVariants, DeviceModel, Models, variant_id
from firstline_edge.models.reloading import CertificateWatch

log = logger(__name__)

_RETRY_S = 60.0  # after a variant failed to load
_REPORT_S = 60.0  # requests that are split again are reported at most this often


@dataclass(eq=False)
class VariantSwitcher:
    """Switches the variants of all models of one agent.

    Args:
        models: of this device; `Models.put` receives the current variant.
        certificates: watches the variants that are loaded.
        on_switch: receives the facts of each switch.
        clock: of retries.

    Attributes:
        switches: number of switches, by the guard that caused them.
    """

    models: Models
    certificates: CertificateWatch
    on_switch: Callable[[Mapping[str, object]], None]
    clock: Clock
    _loading: dict[BundleVariants, asyncio.Task[None]] = field(default_factory=dict, init=False)
    switches: Counter[str] = field(default_factory=Counter, init=False)

    def update(self, snapshot: Snapshot) -> None:
        """Passes a sensor reading to every controller; runs on the event loop and takes no noticeable time."""
        for device_model in self.models.all:
            if device_model.variants is not None:
                self._update(device_model, device_model.variants, snapshot)

    async def close(self) -> None:
        """Cancels what is being loaded."""
        await end_tasks(*self._loading.values())

    def _update(self, device_model: DeviceModel, variants: BundleVariants, snapshot: Snapshot) -> None:
        before, reported, now_s = variants.position, variants.reported_place, self.clock.monotonic_s()
        after = variants.update(snapshot)
        if variants.reported_place != reported:
            self.switches[after.verdict.guard if after.verdict is not None else ""] += 1
            self._report(device_model, variants, reported)
        elif after.next_share and not before.next_share and now_s >= variants.split_reported_s + _REPORT_S:
            variants.split_reported_s = now_s
            self._report(device_model, variants, reported)
        if after.unload:
            self._unload(variants)
        if variants.current is not device_model:
            self.models.put(variants.current)
        if variants.missing_rung is not None and variants not in self._loading and now_s >= variants.retry_s:
            task = asyncio.get_running_loop().create_task(self._load(device_model, variants, variants.missing_rung))
            self._loading[variants] = task
            task.add_done_callback(lambda _: self._loading.pop(variants))

    def _unload(self, variants: BundleVariants) -> None:
        released = variants.unload_above()
        for device_model in released:
            self.certificates.unwatch(device_model)
            log.info("variant unloaded", model=device_model.manifest.name, variant=variant_id(device_model))
        if released:
            with contextlib.suppress(*REFUSED):  # without a free thread the heap is trimmed later
                asyncio.get_running_loop().run_in_executor(None, release_freed_memory)

    async def _load(self, device_model: DeviceModel, variants: BundleVariants, rung: int) -> None:
        """Loads a variant again while requests use those that are loaded."""
        wanted = variants.rungs[rung].variant
        try:
            edge = await asyncio.to_thread(variants.load, rung)
        except (FirstlineError, *REFUSED) as error:
            variants.retry_s = self.clock.monotonic_s() + _RETRY_S
            log.warning("variant not reloaded", model=device_model.manifest.name, variant=wanted, error=str(error))
            return
        now = self.models.find(*device_model.key)
        if now is None or now.variants is not variants or variants.position.rung > rung:  # no longer wanted
            edge.loaded.close()
            return
        loaded = DeviceModel(device_model.bundle, edge, variants=variants)
        variants.put(rung, loaded)
        self.certificates.watch(loaded)
        self.models.put(variants.current)
        log.info("variant reloaded", model=device_model.manifest.name, variant=wanted)

    def _report(self, device_model: DeviceModel, variants: BundleVariants, before: int) -> None:
        position, last = variants.position, len(variants.rungs) - 1
        guard, reason = (position.verdict.guard, position.verdict.reason) if position.verdict is not None else ("", "")
        facts = {
            "model": device_model.manifest.name,
            "version": device_model.version,
            "from": variants.rungs[min(before, last)].variant,
            "to": variants.rungs[min(variants.reported_place, last)].variant,
            "share_of_the_next": round(position.next_share, 2),
            "sheds": position.shedding,
            "guard": guard,
            "reason": reason,
        }
        log.info("variant switched", **facts)
        self.on_switch(facts)


def add_gauges(metrics: RequestMetrics, models: Models, switcher: VariantSwitcher) -> None:
    """Registers the position of each model and the number of switches."""
    metrics.readings(
        "variant_rung",
        "How far down its variants a model stands: 0 is the best, 0.3 the next for three requests of ten; as many as "
        "there are where it sheds.",
        ("model", "version"),
        lambda: {
            device_model.key: device_model.variants.depth
            for device_model in models.all
            if device_model.variants is not None
        },
    )
    metrics.readings(
        "variant_switches_total",
        "Steps from one variant to another, by the guard that asked.",
        ("guard",),
        lambda: {(guard,): float(count) for guard, count in switcher.switches.items()},
    )
