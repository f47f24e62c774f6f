"""The page that plans and creates a rollout."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from firstline.console import rollouts_view as view
from firstline.console.cells import Cell, rollout_page
from firstline.console.dialogs import carry_out
from firstline.console.page import Facts, Frame, Redrawn, button, card, empty, may, own_devices, text
from firstline.console.polling import Watch
from firstline.fleet.client import Fleet
from firstline_core.errors import RequestError
from firstline_core.fleet.registry import BundleEntry
from firstline_core.fleet.rollout_documents import Plan, RolloutSummary


def add_pages(watch: Watch) -> None:
    """Adds the page to the application."""

    @ui.page("/rollouts/new")
    def _new(bundle: str = "") -> None:
        lead = "A rollout brings a signed bundle to devices in stages, and judges each stage before the next begins."
        frame = Frame("New rollout", "/rollouts", lead)
        with frame.main:
            form = Redrawn(lambda bundles: _Form(frame, watch, bundles, bundle))
        frame.follow(lambda: watch.ask(("bundles",), lambda fleet: tuple(fleet.registry.bundles())), form.show)


class _Form:
    """The fields of a rollout, its plan, and the button that creates it."""

    def __init__(self, frame: Frame, watch: Watch, bundles: tuple[BundleEntry, ...], bundle: str) -> None:
        self._frame = frame
        self._watch = watch
        self._bundles = {f"{one.name} {one.version}": one for one in reversed(bundles)}
        if not bundles:
            empty("The registry has no signed bundle.", "firstline model push BUNDLE --gateway URL")
            return
        chosen = next((title for title, one in self._bundles.items() if one.name == bundle), next(iter(self._bundles)))
        with card(classes="max-w-3xl mb-4"), ui.element("div").classes("grid gap-4 sm:grid-cols-2"):
            self._bundle = ui.select(list(self._bundles), value=chosen, label="Bundle").props("outlined dense")
            own = own_devices()
            self._selector = _field(f"Devices by tags; {f'yours have {own}' if own else 'empty for all'}", own)
            self._shares = _field("Stages, in percent of the devices", "1, 10, 100")
            self._soak = _field("Observe each stage for (hours)", "1")
            self._held_back = _field("Hold back as a control group, in percent", "5")
            self._approval = ui.checkbox("A second person must approve it")
        with ui.element("div").classes("flex flex-wrap gap-3 mb-4"):
            button("Show the plan", self._show_plan)
            if may():
                button("Create", self._create, "primary")
        self._plan = Redrawn(_show)

    def _definition(self) -> dict[str, Any]:
        """Returns the definition of the rollout.

        Raises:
            RequestError: a field is not a number.
        """
        entry = self._bundles[self._bundle.value]
        soak_s = 3600 * _number(self._soak.value, "the hours of observation")
        shares = [_number(each, "a stage's share") / 100 for each in self._shares.value.split(",")]
        return {
            "bundle": entry.name,
            "version": entry.version,
            "manifest_sha256": entry.manifest_sha256,
            "selector": self._selector.value.strip(),
            "stages": [{"share": share, "soak_s": soak_s} for share in shares],
            "held_back": _number(self._held_back.value, "the control group's share") / 100,
            "approval": self._approval.value,
        }

    async def _show_plan(self) -> None:
        def plan(fleet: Fleet) -> Plan:
            return fleet.rollouts.plan(self._definition(), self._bundles[self._bundle.value].size_bytes)

        await carry_out(self._frame, self._watch, plan, then=self._plan.show)

    async def _create(self) -> None:
        def create(fleet: Fleet) -> RolloutSummary:
            return fleet.rollouts.create(self._definition())

        def show(rollout: RolloutSummary) -> None:
            ui.navigate.to(rollout_page(rollout.id))

        await carry_out(self._frame, self._watch, create, "Created.", show)


def _field(label: str, value: str) -> ui.input:
    return ui.input(label, value=value).props("outlined dense")


def _number(text_: str, what: str) -> float:
    try:
        return float(text_.replace("%", "").strip())
    except ValueError as error:
        raise RequestError(f"{text_[:20]!a} is not a number; write {what} such as 10.") from error


def _show(plan: Plan) -> None:
    with card("Plan", "max-w-3xl"):
        Facts("mb-3").show([(name, Cell(value)) for name, value in view.plan_facts(plan)])
        for sentence in plan.warnings:
            text("p", sentence).classes("tone-bad")
        for sentence in filter(None, (plan.detects, plan.false_aborts, plan.audits, plan.unaudited)):
            text("p", sentence).classes("my-2")
