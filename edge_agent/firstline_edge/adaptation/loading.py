"""From a bundle to its ladder on this device: each variant loaded and measured, and those worth standing on kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from firstline_core.adaptation.controller import Controller, Patience
from firstline_core.adaptation.guards import Limits
from firstline_core.adaptation.ladder import Rung, ladder
from firstline_core.bundle.manifest import Model
from firstline_core.bundle.store import Bundle
from firstline_core.errors import FirstlineError
from firstline_core.hardware.readings import Measured, Modelled, Reading, measured
from firstline_core.profile.need import LOADING_COPIES, files_bytes, loading_bytes
from firstline_core.profile.profile import Profile
from firstline_core.telemetry.logs import logger
from firstline_edge.adaptation.variants import Sources, Variants
from firstline_edge.models.edge_model import EdgeModel
from firstline_edge.models.held import HeldModel

log = logger(__name__)

AT_REST = "profile, the device at rest included: what is beyond costs.watts_idle is not known"
"""What status says of an energy that is no price."""
_LOADING = 1.5  # times what a model keeps, its buffers included


class Adapting(Struct, frozen=True, eq=False):
    """How variants are held, and chosen among.

    Attributes:
        limits, patience: of each controller.
        variants_limit: held of a bundle, at most.
        left_bytes: memory that is left now; None where nobody knows.
        joules_per_core_s: as the owner states it; 0 for not at all.
        watts_idle: of the idle device, likewise.
        one_core: a run keeps one core busy, so that its time tells what it takes; of several only a profile knows.
    """

    limits: Limits
    patience: Patience
    variants_limit: int
    left_bytes: Callable[[], float | None]
    joules_per_core_s: float = 0.0
    watts_idle: float = 0.0
    one_core: bool = True


def laddered(
    bundle: Bundle,
    first: EdgeModel,
    load: Callable[[Model], EdgeModel],
    adapting: Adapting,
    profile: Profile | None = None,
) -> HeldModel:
    """The bundle with all of its variants that are worth holding here.

    Only certified ones, where one is: the contract that the best keeps is kept by all of its stand-ins.

    Args:
        bundle: opened and checked.
        first: the preferred variant that loads, loaded.
        load: loads and measures another one; blocks.
        adapting: see there.
        profile: of the bundle on this machine, for the memory that loading takes; None where there is none.

    Returns:
        The best of them, with the others beside it; alone, where no other is a way out of anything.
    """
    edges = {first.loaded.model.id: first}
    listed = list(bundle.manifest.edge)
    for model in listed[listed.index(first.loaded.model) + 1 :]:  # those before it do not load, which was told
        left_bytes, needed_bytes = adapting.left_bytes(), loading_bytes(model, profile)
        if left_bytes is not None and left_bytes < adapting.limits.memory_reserve_bytes + needed_bytes:
            log.warning("no memory for another variant", model=bundle.manifest.name, variant=model.id)
            continue
        try:
            edges[model.id] = load(model)
        except (FirstlineError, MemoryError) as error:
            log.warning("a variant does not run here", model=bundle.manifest.name, variant=model.id, error=str(error))
            continue
    certified = any(edge.certificate is not None for edge in edges.values())
    able = {variant: edge for variant, edge in edges.items() if edge.certificate is not None or not certified}
    energy = _energy(able, adapting)
    found = {variant: _rung(edge, energy.mj.get(variant), energy.source) for variant, edge in able.items()}
    rungs = _limited(ladder(rung for rung, _ in found.values()), adapting.variants_limit)
    if energy.source == AT_REST:  # it ranks variants, and is no price to hold against a radio's
        rungs = tuple(replace(rung, energy_mj=None) for rung in rungs)
    kept = [edges.pop(rung.variant) for rung in rungs]
    for edge in edges.values():
        log.info("variant left out", model=bundle.manifest.name, variant=edge.loaded.model.id)
        edge.loaded.close()
    if len(kept) == 1:
        return HeldModel(bundle, kept[0])
    by_id = {model.id: model for model in listed}
    controller = Controller(rungs, adapting.limits, adapting.patience)
    sources = [found[rung.variant][1] for rung in rungs]
    variants = Variants(rungs, controller, lambda variant: load(by_id[variant]), sources)
    for at, edge in enumerate(kept):
        variants.put(at, HeldModel(bundle, edge, variants=variants))
    log.info("variants held", model=bundle.manifest.name, variants=[rung.variant for rung in rungs])
    return variants.standing


class _Energy(NamedTuple):
    """Of a row, in millijoules, by variant; of one source, for what is measured and what is stated do not compare."""

    mj: Mapping[str, float]
    source: str


def _energy(edges: Mapping[str, EdgeModel], adapting: Adapting) -> _Energy:
    """Beyond the idle device: as measured of each, else as stated, else as measured with the device at rest in it."""
    measured = {name: mj for name, edge in edges.items() if (mj := _measured_mj(edge)) is not None}
    above = {name: mj for name, edge in edges.items() if (mj := _above_idle_mj(edge, adapting)) is not None}
    stated = {name: mj for name, edge in edges.items() if (mj := _stated_mj(edge, adapting)) is not None}
    if above and (len(above) == len(edges) or not stated):
        return _Energy(above, "profile")
    return _Energy(stated, "stated") if stated else _Energy(measured, AT_REST)


def _measured_mj(edge: EdgeModel) -> float | None:
    return measured(edge.profiled.energy_mj) if edge.profiled is not None else None


def _above_idle_mj(edge: EdgeModel, adapting: Adapting) -> float | None:
    """Sensors count the device at rest too: less what is stated of that, where they are the whole device's.

    None is left where the stated figure is too high, or the sensor too coarse to see a run.
    """
    point, total_mj = edge.profiled, _measured_mj(edge)
    if point is None or total_mj is None or not adapting.watts_idle or _of_a_part(point.energy_mj):
        return None
    mj = total_mj - adapting.watts_idle * 1000 / point.offline_per_s
    return mj if mj > 0 else None


def _of_a_part(energy: Reading) -> bool:
    """Whether the processor counted it (RAPL), which knows nothing of the rest of the device."""
    return isinstance(energy, Measured) and energy.source.endswith("energy_uj")


def _stated_mj(edge: EdgeModel, adapting: Adapting) -> float | None:
    """By the costs that are stated here, else by those of when it was profiled."""
    point = edge.profiled
    busy_ms = point.processor_ms if point is not None else edge.row_ms if adapting.one_core else math.inf
    if adapting.joules_per_core_s and math.isfinite(busy_ms):
        return busy_ms * adapting.joules_per_core_s
    return point.energy_mj.value if point is not None and isinstance(point.energy_mj, Modelled) else None


def _rung(edge: EdgeModel, energy_mj: float | None, energy_from: str) -> tuple[Rung, Sources]:
    """As a profile has it, else as loading it showed."""
    model, certificate, point = edge.loaded.model, edge.certificate, edge.profiled
    peak_bytes = measured(point.peak_memory_bytes) if point is not None else None
    loaded_bytes = max(LOADING_COPIES * files_bytes(model), int(_LOADING * edge.memory_bytes))
    rung = Rung(
        model.id,
        edge.row_ms,
        energy_mj=energy_mj,
        memory_bytes=loaded_bytes if peak_bytes is None else int(peak_bytes),
        merit=certificate.kept if certificate is not None else model.measured.get("accuracy", 0.0),
    )
    said: Sources = {
        "row_ms": "load" if point is None else "profile",
        "memory_bytes": "load" if peak_bytes is None else "profile",
        "energy_mj": energy_from if energy_mj is not None else None,
    }
    return rung, said


def _limited(rungs: Sequence[Rung], limit: int) -> tuple[Rung, ...]:
    """The best ones and the cheapest."""
    return tuple(rungs) if len(rungs) <= limit else (*rungs[: limit - 1], rungs[-1])
