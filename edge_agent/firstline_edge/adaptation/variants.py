"""The edge variants of one bundle that this device holds, as the rungs of a ladder, and the choice for a request."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from firstline_core.adaptation.controller import Controller, LadderPosition, RequestSplitter
from firstline_core.adaptation.guards import GuardVerdict
from firstline_core.adaptation.ladder import EnergyPrices, Rung, choose_rung
from firstline_core.clock import Clock
from firstline_core.hardware.readings import Snapshot
from firstline_core.telemetry.wording import rounded
from firstline_core.types import InferRequest, Privacy, Route
from firstline_edge.cloud.client import CloudClient
from firstline_edge.models.models import DeviceModel, EdgeModel, VariantChoice, VariantSet

_HYSTERESIS = 0.5  # of a rung
EscalationCost: TypeAlias = Callable[[float], float]
"""Millijoules to escalate a row, by the row's bytes."""


class BundleVariants:
    """All variants of one bundle.

    Args:
        rungs: from `build_ladder`.
        controller: limits which of them may be used.
        load: loads and measures a variant by its id; blocks.

    Attributes:
        position: the controller's latest position.
        reported_place: the place that was reported last, with hysteresis: temperature that hovers around a rung is not
            reported each time.
        split_reported_s: when a split of requests was reported last, monotonic.
        retry_s: until then no variant is loaded again, because the last attempt failed; monotonic.
    """

    def __init__(self, rungs: Sequence[Rung], controller: Controller, load: Callable[[str], EdgeModel]) -> None:
        self.rungs = tuple(rungs)
        self.position = LadderPosition()
        self.reported_place = 0
        self.split_reported_s = self.retry_s = -math.inf
        self._controller = controller
        self._load = load
        self._splitter = RequestSplitter()
        self._loaded: list[DeviceModel | None] = [None] * len(self.rungs)

    @property
    def loaded(self) -> tuple[DeviceModel, ...]:
        """The loaded variants, best first."""
        return tuple(device_model for device_model in self._loaded if device_model is not None)

    @property
    def depth(self) -> float:
        """The rung in use (their number while shedding), plus the share of requests that get the next one."""
        return self.position.rung + self.position.shedding + self.position.next_share

    @property
    def best_row_ms(self) -> float:
        """The time of a row by the best variant, loaded or not."""
        return self.rungs[0].row_ms

    @property
    def current(self) -> DeviceModel:
        """The best variant that may be used and is loaded; the last rung is never unloaded."""
        return self._usable()[0]

    @property
    def missing_rung(self) -> int | None:
        """The rung that may be used but is not loaded; None if it is loaded."""
        return self.position.rung if self._loaded[self.position.rung] is None else None

    def put(self, rung: int, device_model: DeviceModel) -> None:
        """Adds a loaded variant."""
        self._loaded[rung] = device_model

    def load(self, rung: int) -> EdgeModel:
        """Loads a variant again; blocks.

        Raises:
            FirstlineError: it does not run here any more.
        """
        return self._load(self.rungs[rung].variant)

    def unload_above(self) -> list[DeviceModel]:
        """Releases the variants above the rung in use; requests that were given one keep it."""
        released = [device_model for device_model in self._loaded[: self.position.rung] if device_model is not None]
        self._loaded[: self.position.rung] = [None] * self.position.rung
        return released

    def update(self, snapshot: Snapshot) -> LadderPosition:
        """Passes a sensor reading to the controller and returns the new position."""
        unloaded = [rung for rung, device_model in enumerate(self._loaded) if device_model is None]
        self.position = self._controller.update(snapshot, unloaded)
        if not self.reported_place - _HYSTERESIS < self.depth < self.reported_place + 1:
            self.reported_place = int(self.depth)
        return self.position

    def choose(
        self, request: InferRequest, left_ms: float, link_ms: float, escalation_mj: float = 0.0
    ) -> VariantChoice:
        """Chooses the variant that answers a request.

        Args:
            request: with at least one row.
            left_ms: see `choose_rung`.
            link_ms: see `choose_rung`.
            escalation_mj: see `EnergyPrices`; 0 if it is not stated, so that energy decides nothing.
        """
        usable, rows, position = self._usable(), request.rows, self.position
        shed_reason = _reason(position.verdict) if position.shedding else ""
        edges = [device_model.edge for device_model in usable if device_model.edge is not None]
        workers, runs_ms = edges[0].workers, [edge.sure_ms(request, rows) for edge in edges]
        wait_ms = 1000 * workers.wait_s
        waits_ms = [0.0 if edge.quick(edge.shortest_ms(request, rows)) else wait_ms for edge in edges]
        best_ms = waits_ms[0] + runs_ms[0]
        prices = self._prices(usable, escalation_mj)
        chosen = choose_rung(runs_ms, workers.busy, waits_ms, left_ms, link_ms, prices=prices)
        # If the better variant is not loaded, all requests get the next one anyway.
        splits = chosen == 0 and len(usable) > 1 and usable[0] is self._loaded[position.rung]
        if splits and self._splitter.selects(position.next_share):
            return VariantChoice(usable[1], variant_id(usable[1]), _reason(position.verdict), shed_reason)
        device_model = usable[chosen]
        if not chosen:
            why = "" if device_model is self._loaded[0] else _reason(position.verdict)
        elif best_ms + link_ms <= left_ms:
            why = "energy: its answers take the least, and there is time to ask the full model"
            if prices is None:
                why = f"queue: {workers.busy:.0%} of the threads are busy, and there is time to ask the full model"
        elif best_ms <= left_ms:
            why = f"queue: {workers.busy:.0%} of the threads are busy, and this request has more time than others"
        else:
            why = f"deadline: {variant_id(usable[0])} would take {rounded(best_ms)} ms of the {left_ms:.0f} left"
        return VariantChoice(device_model, variant_id(device_model), why, shed_reason)

    def describe(self) -> dict[str, Any]:
        """Returns the JSON object for `status`."""
        return {
            "standing": self.rungs[self.position.rung].variant,
            "shared_out": round(self.position.next_share, 2),
            "sheds": self.position.shedding,
            "why": _reason(self.position.verdict) or None,
            "rungs": [
                {
                    "variant": rung.variant,
                    "loaded": device_model is not None,
                    "row_ms": round(rung.row_ms, 3),
                    "energy_mj": rung.energy_mj,
                    "merit": round(rung.merit, 4),
                    "memory_bytes": rung.memory_bytes,
                    "from": rung.sources,
                    "certified": device_model is not None
                    and device_model.edge is not None
                    and device_model.edge.certificate is not None,
                }
                for rung, device_model in zip(self.rungs, self._loaded, strict=True)
            ],
        }

    def _prices(self, usable: Sequence[DeviceModel], escalation_mj: float) -> EnergyPrices | None:
        """Returns None if the energy or the certificate of one variant is unknown."""
        run_mj: list[float] = []
        escalated: list[float] = []
        for device_model in usable if escalation_mj > 0 else ():
            rung, edge = self.rungs[self._loaded.index(device_model)], device_model.edge
            if rung.energy_mj is None or edge is None or edge.certificate is None:
                return None
            run_mj.append(rung.energy_mj)
            escalated.append(1 - edge.certificate.kept)
        return EnergyPrices(tuple(run_mj), tuple(escalated), escalation_mj) if run_mj else None

    def _usable(self) -> list[DeviceModel]:
        return [device_model for device_model in self._loaded[self.position.rung :] if device_model is not None]


def variant_id(device_model: DeviceModel) -> str:
    """Returns the id of the variant that is loaded; "" without one."""
    return device_model.edge.loaded.model.id if device_model.edge is not None else ""


def _reason(verdict: GuardVerdict | None) -> str:
    return "" if verdict is None else f"{verdict.guard}: {verdict.reason}"


@dataclass(eq=False)
class VariantChooser:
    """Chooses the variant for a request.

    Args:
        client: predicts the time of the full model.
        clock: of deadlines.
        reserve_s: reserved of a deadline for writing the answer, at most a quarter of what is left.
        escalation_mj: stated energy to send a row and receive its answer; 0 if it is not stated.
    """

    client: CloudClient
    clock: Clock
    reserve_s: float
    escalation_mj: EscalationCost

    def choose(self, request: InferRequest, deadline_s: float, variants: VariantSet) -> VariantChoice:
        """Returns the variant that answers the request, see `BundleVariants.choose`."""
        left_s = deadline_s - self.clock.monotonic_s()
        left_s -= min(self.reserve_s, max(0.0, left_s) / 4)
        may_escalate = request.route is not Route.EDGE and request.privacy is Privacy.ANY
        link_s = self.client.predicted_s(request, request.rows) if may_escalate else None
        if link_s is None:
            return variants.choose(request, 1000 * left_s, math.inf)
        escalation_mj = self.escalation_mj(request.size_bytes / request.rows)
        return variants.choose(request, 1000 * left_s, 1000 * link_s, escalation_mj)
