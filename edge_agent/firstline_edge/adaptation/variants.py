"""The edge variants of one bundle that this device holds, as the rungs of a ladder; and the choice for a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from firstline_core.adaptation.choice import Prices, in_time
from firstline_core.adaptation.controller import Controller, Stance
from firstline_core.adaptation.ladder import Rung
from firstline_core.adaptation.sharing import Sharing
from firstline_core.hardware.sensors.snapshot import Snapshot
from firstline_core.types import InferRequest
from firstline_edge.models.edge_model import EdgeModel, is_quick
from firstline_edge.models.held import HeldModel

if TYPE_CHECKING:
    from firstline_core.adaptation.guards import Word


Sources: TypeAlias = Mapping[str, str | None]
"""By figure: "profile", "load" where it was measured then, "stated" for the owner's costs; None where nobody knows.

Of an energy that ranks variants and is no price, the sentence that says so (`loading.AT_REST`).
"""


_HYSTERESIS = 0.5  # of a rung


class Choice(Struct, frozen=True, eq=False):
    """The variant that a request was given; it keeps to it.

    Attributes:
        model: the bundle with this variant.
        variant: its id.
        why: it is not the best one, in a sentence's words; "" where it is.
        sheds: why nothing is computed here now, likewise; "" where it is.
    """

    model: HeldModel
    variant: str
    why: str = ""
    sheds: str = ""

    @property
    def facts(self) -> dict[str, Any]:
        """For the decision log: JSON-able."""
        told = {"variant": self.variant, "variant_why": self.why, "sheds": self.sheds}
        return {key: value for key, value in told.items() if value}


class Variants:
    """All of one bundle.

    Args:
        rungs: the best first, see `ladder`.
        controller: says which of them may be used.
        load: loads and measures one of them, by its id; blocks.
        sources: of each rung's figures.

    Attributes:
        rungs: see there.
        stance: the controller's latest word.
        told: the place that was told last: heat that hovers about a whole rung is not told of each time.
    """

    def __init__(
        self,
        rungs: Sequence[Rung],
        controller: Controller,
        load: Callable[[str], EdgeModel],
        sources: Sequence[Sources] = (),
    ) -> None:
        self.rungs = tuple(rungs)
        self.stance = Stance()
        self.told = 0
        self._controller = controller
        self._load = load
        self._sources = tuple(sources) or ({},) * len(self.rungs)
        self._sharing = Sharing()
        self._held: list[HeldModel | None] = [None] * len(self.rungs)

    @property
    def loaded(self) -> tuple[HeldModel, ...]:
        """The best first."""
        return tuple(held for held in self._held if held is not None)

    @property
    def place(self) -> int:
        """The rung on which the device stands; their number where it sheds."""
        return self.stance.rung + self.stance.shed

    @property
    def depth(self) -> float:
        """The same, and the share of requests that stand one further down."""
        return self.place + self.stance.share

    @property
    def standing(self) -> HeldModel:
        """The best that may be used and is loaded; the last rung is never unloaded."""
        return self._usable()[0]

    @property
    def wanted(self) -> int | None:
        """The rung that may be used and is yet to be loaded; None where it is."""
        return self.stance.rung if self._held[self.stance.rung] is None else None

    def put(self, rung: int, held: HeldModel) -> None:
        """A variant is loaded."""
        self._held[rung] = held

    def load(self, rung: int) -> EdgeModel:
        """Loads one anew; blocks.

        Raises:
            FirstlineError: it does not run here any more.
        """
        return self._load(self.rungs[rung].variant)

    def unload_above(self) -> list[HeldModel]:
        """Lets go of what stands above the rung in use, none the second time; requests keep what they were given."""
        gone = [held for held in self._held[: self.stance.rung] if held is not None]
        self._held[: self.stance.rung] = [None] * self.stance.rung
        return gone

    def look(self, snapshot: Snapshot) -> Stance:
        """Steps the controller; the stance from now on."""
        unloaded = [rung for rung, held in enumerate(self._held) if held is None]
        self.stance = self._controller.look(snapshot, unloaded)
        depth = self.depth
        if not self.told - _HYSTERESIS < depth < self.told + 1:
            self.told = int(depth)
        return self.stance

    def choose(self, request: InferRequest, left_ms: float, link_ms: float, ask_mj: float = 0.0) -> Choice:
        """The variant that answers a request.

        Args:
            request: with a row at least.
            left_ms: see `in_time`.
            link_ms: see there.
            ask_mj: see `Prices`; 0 where nobody states it, so that energy decides nothing.
        """
        usable, rows = self._usable(), request.rows
        first = usable[0]
        sheds = _told(self.stance.word) if self.stance.shed else ""
        edges = [held.edge for held in usable if held.edge is not None]
        workers, runs_ms = edges[0].workers, [edge.sure_ms(request, rows) for edge in edges]
        # What is quick runs at once, and not on one of the threads.
        wait_ms = 0.0 if is_quick(runs_ms[-1]) else 1000 * workers.wait_s
        prices = self._prices(usable, ask_mj)
        chosen = in_time(runs_ms, workers.busy, wait_ms, left_ms, link_ms, prices=prices)
        # Where the better one is not loaded, all get the further one already.
        shares = chosen == 0 and len(usable) > 1 and first is self._held[self.stance.rung]
        if shares and self._sharing.takes(self.stance.share):
            return Choice(usable[1], _id(usable[1]), _told(self.stance.word), sheds)
        held = usable[chosen]
        if chosen:
            why = f"deadline: {_id(first)} would take {wait_ms + runs_ms[0]:.3g} ms of the {left_ms:.0f} left"
            if wait_ms + runs_ms[0] <= left_ms:
                why = f"queue: {workers.busy:.0%} of the threads are busy, and this request has more time than others"
            if wait_ms + runs_ms[0] + link_ms <= left_ms:
                why = f"queue: {workers.busy:.0%} of the threads are busy, and there is time to ask the full model"
                if prices is not None:
                    why = "energy: its answers take the least, and there is time to ask the full model"
        else:
            why = "" if held is self._held[0] else _told(self.stance.word)
        return Choice(held, _id(held), why, sheds)

    def describe(self) -> dict[str, Any]:
        """For `status`: JSON-able."""
        return {
            "standing": self.rungs[self.stance.rung].variant,
            "shared_out": round(self.stance.share, 2),
            "sheds": self.stance.shed,
            "why": _told(self.stance.word) or None,
            "rungs": [
                {
                    "variant": rung.variant,
                    "loaded": held is not None,
                    "row_ms": round(rung.row_ms, 3),
                    "energy_mj": rung.energy_mj,
                    "merit": round(rung.merit, 4),
                    "memory_bytes": rung.memory_bytes,
                    "from": sources,
                    "certified": held is not None and held.edge is not None and held.edge.certificate is not None,
                }
                for rung, held, sources in zip(self.rungs, self._held, self._sources, strict=True)
            ],
        }

    def _prices(self, usable: Sequence[HeldModel], ask_mj: float) -> Prices | None:
        """Of variants that run, and ask, at a cost that is known; None where one of them is not such."""
        run_mj: list[float] = []
        asked: list[float] = []
        for held in usable if ask_mj > 0 else ():
            rung, edge = self.rungs[self._held.index(held)], held.edge
            if rung.energy_mj is None or edge is None or edge.certificate is None:
                return None
            run_mj.append(rung.energy_mj)
            asked.append(1 - edge.certificate.kept)
        return Prices(tuple(run_mj), tuple(asked), ask_mj) if run_mj else None

    def _usable(self) -> list[HeldModel]:
        return [held for held in self._held[self.stance.rung :] if held is not None]


def _id(held: HeldModel) -> str:
    return held.edge.loaded.model.id if held.edge is not None else ""


def _told(word: Word | None) -> str:
    return "" if word is None else f"{word.guard}: {word.reason}"
