"""Builds the ladder of a bundle on this device: loads and measures each variant, and keeps the useful ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from firstline_core.adaptation.controller import Controller, StepTiming
from firstline_core.adaptation.guards import Limits
from firstline_core.adaptation.ladder import Rung, build_ladder
from firstline_core.bundle.manifest import Model
from firstline_core.bundle.store import Bundle
from firstline_core.errors import FirstlineError
from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.readings import Measured, Modelled, Reading, measured
from firstline_core.hardware.sensors import available_memory
from firstline_core.profile.measure import LOADING_COPIES, files_bytes, loading_bytes
from firstline_core.profile.profile import Profile
from firstline_core.telemetry.logs import logger
from firstline_edge.models.models import BundleVariants, DeviceModel, EdgeModel
from firstline_edge.settings.settings import EdgeSettings

log = logger(__name__)

_LOADING_FACTOR = 1.5  # peak while loading, over the memory that a model keeps


def limits_of(settings: EdgeSettings) -> Limits:
    """Returns the guards' limits that the settings state."""
    section = settings.adaptation
    return Limits(
        heat_c=settings.costs.heat_limit_c,
        heat_margin_c=section.heat_margin_c,
        memory_reserve_bytes=section.memory_reserve_bytes,
        battery_empty=section.battery_empty,
        battery_full=section.battery_full,
    )


def load_ladder(
    bundle: Bundle,
    first: EdgeModel,
    load: Callable[[Model], EdgeModel],
    profile: Profile | None = None,
    *,
    settings: EdgeSettings,
) -> DeviceModel:
    """Returns the bundle with all variants that are useful here.

    If one variant is certified, only certified ones are held: stand-ins keep the contract of the best one.

    Args:
        bundle: opened and checked.
        first: the preferred variant that loads, loaded.
        load: loads and measures another variant; blocks.
        profile: of the bundle on this machine, for the memory that loading needs; None if there is none.
        settings: of the agent: limits, timing and stated costs.

    Returns:
        The best variant, with the others attached; alone if no other one is useful.
    """
    edges, listed = {first.loaded.model.id: first}, list(bundle.manifest.edge)
    section, limits, tree = settings.adaptation, limits_of(settings), Tree(Path(settings.hardware.root))
    for model in listed[listed.index(first.loaded.model) + 1 :]:  # those before it failed to load
        available_bytes, needed_bytes = measured(available_memory(tree)), loading_bytes(model, profile)
        if available_bytes is not None and available_bytes < limits.memory_reserve_bytes + needed_bytes:
            log.warning("no memory for another variant", model=bundle.manifest.name, variant=model.id)
            continue
        try:
            edges[model.id] = load(model)
        except (FirstlineError, MemoryError) as error:
            log.warning("variant not runnable", model=bundle.manifest.name, variant=model.id, error=str(error))
    certified = any(edge.certificate is not None for edge in edges.values())
    eligible = {variant: edge for variant, edge in edges.items() if edge.certificate is not None or not certified}
    energy_mj, source = _energy(eligible, settings)
    rungs = build_ladder(_rung(edge, energy_mj.get(variant), source) for variant, edge in eligible.items())
    rungs = _limited(rungs, section.variants_limit)
    kept = [edges.pop(rung.variant) for rung in rungs]
    for edge in edges.values():
        log.info("variant left out", model=bundle.manifest.name, variant=edge.loaded.model.id)
        edge.loaded.close()
    if len(kept) == 1:
        return DeviceModel(bundle, kept[0])
    by_id = {model.id: model for model in listed}
    timing = StepTiming(settle_s=section.settle_s, dwell_s=section.dwell_s, regret_s=6 * section.dwell_s)
    controller = Controller(rungs, limits, timing)
    variants = BundleVariants(rungs, controller, lambda variant: load(by_id[variant]))
    for position, edge in enumerate(kept):
        variants.put(position, DeviceModel(bundle, edge, variants=variants))
    log.info("variants held", model=bundle.manifest.name, variants=[rung.variant for rung in rungs])
    return variants.current


def _energy(edges: Mapping[str, EdgeModel], settings: EdgeSettings) -> tuple[Mapping[str, float], str]:
    """Energy of a row, in millijoules by variant, and its source, which is one because sources do not compare.

    It is beyond the idle device if that was measured for each variant, else as stated.
    """
    measured_mj = {name: mj for name, edge in edges.items() if (mj := _above_idle_mj(edge, settings)) is not None}
    if len(measured_mj) == len(edges):
        return measured_mj, "profile"
    stated_mj = {name: mj for name, edge in edges.items() if (mj := _stated_mj(edge, settings)) is not None}
    return stated_mj, "stated"


def _above_idle_mj(edge: EdgeModel, settings: EdgeSettings) -> float | None:
    """Measured energy less the stated idle power, if the sensor measures the whole device.

    None if nothing is left: the stated figure is too high, or the sensor too coarse to see a run.
    """
    point = edge.profiled
    total_mj = measured(point.energy_mj) if point is not None else None
    if point is None or total_mj is None or not settings.costs.watts_idle or _is_processor_counter(point.energy_mj):
        return None
    mj = total_mj - settings.costs.watts_idle * 1000 / point.offline_per_s
    return mj if mj > 0 else None


def _is_processor_counter(energy: Reading) -> bool:
    """RAPL counts the processor alone, not the rest of the device."""
    return isinstance(energy, Measured) and energy.source.endswith("energy_uj")


def _stated_mj(edge: EdgeModel, settings: EdgeSettings) -> float | None:
    """By the costs stated here, else by those stated when it was profiled."""
    point = edge.profiled
    busy_ms = point.processor_ms if point is not None else edge.row_ms if settings.models.threads == 1 else math.inf
    if settings.costs.joules_per_core_second and math.isfinite(busy_ms):
        return busy_ms * settings.costs.joules_per_core_second
    return point.energy_mj.value if point is not None and isinstance(point.energy_mj, Modelled) else None


def _rung(edge: EdgeModel, energy_mj: float | None, energy_source: str) -> Rung:
    """Figures from the profile, else from loading."""
    model, certificate, point = edge.loaded.model, edge.certificate, edge.profiled
    peak_bytes = measured(point.peak_memory_bytes) if point is not None else None
    loaded_bytes = max(LOADING_COPIES * files_bytes(model), int(_LOADING_FACTOR * edge.memory_bytes))
    return Rung(
        model.id,
        edge.row_ms,
        energy_mj=energy_mj,
        memory_bytes=loaded_bytes if peak_bytes is None else int(peak_bytes),
        merit=certificate.kept if certificate is not None else model.measured.get("accuracy", 0.0),
        sources={
            "row_ms": "load" if point is None else "profile",
            "memory_bytes": "load" if peak_bytes is None else "profile",
            "energy_mj": energy_source if energy_mj is not None else None,
        },
    )


def _limited(rungs: Sequence[Rung], limit: int) -> tuple[Rung, ...]:
    """The best ones and the cheapest."""
    return tuple(rungs) if len(rungs) <= limit else (*rungs[: limit - 1], rungs[-1])
