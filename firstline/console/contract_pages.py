"""The pages of all contracts, and of one bundle's."""

from __future__ import annotations

from nicegui import ui

from firstline.console import contracts_view as view
from firstline.console.cells import address, rows
from firstline.console.dialogs import Action, confirm_button
from firstline.console.overview_view import AUDIT_RESULTS
from firstline.console.page import Frame, Redrawn, Table, card, choices, put, text
from firstline.console.polling import Watch
from firstline_core.fleet.persons import Role
from firstline_core.fleet.rest import AuditResult, ContractState, ContractStates

_EMPTY = "No bundle of this gateway promises anything. Prove a promise with: firstline certify"


def add_pages(watch: Watch) -> None:
    """Adds the pages to the application."""

    @ui.page("/contracts")
    def _contracts(state: str = "") -> None:
        lead = "What the bundles promise about answers of the devices, and what audits by the full model show of it."
        frame = Frame("Contracts", "/contracts", lead)
        with frame.main:
            links = [("All", "/contracts", not state)]
            links += [
                (label, address("/contracts", state=each), each == state) for each, (label, _) in AUDIT_RESULTS.items()
            ]
            choices("State", links)
            with card():
                table = Table("Contracts", view.CONTRACTS, "No promise in this state." if state else _EMPTY)
            alarms = _alarms_card()

        def show(states: ContractStates) -> None:
            table.show(view.contract_rows(states, state))
            alarms.show(view.alarm_rows(states))

        frame.follow(lambda: watch.ask(("contracts",), lambda fleet: fleet.contracts()), show)

    @ui.page("/contracts/{bundle}")
    def _contract(bundle: str) -> None:
        frame = Frame(f"Contracts of {bundle}", "/contracts")
        with frame.main:
            promises = Redrawn(lambda states: _promises(frame, watch, states))
            alarms = _alarms_card()

        def show(states: ContractStates) -> None:
            promises.show(states)
            alarms.show(view.alarm_rows(states))

        frame.follow(lambda: watch.ask(("contract", bundle), lambda fleet: fleet.contracts(bundle)), show)


def _alarms_card() -> Table:
    with card("Alarms of single devices", "mt-4"):
        return Table("Alarms of devices", view.ALARMS, "No device's own audits raised an alarm within a day.")


def _promises(frame: Frame, watch: Watch, states: ContractStates) -> None:
    for one in view.listed(states):
        with card(classes="mb-4"):
            with ui.element("div").classes("flex flex-wrap items-center gap-3 mb-3"):
                text("h2", one.promise)
                put(text("span"), view.state(one), "badge")
            with ui.element("dl").classes("flex flex-wrap gap-x-10 gap-y-3 mb-3"):
                for name, value in view.figures(one):
                    with ui.element("div"):
                        text("dt", name).classes("text-soft text-sm")
                        text("dd", value).classes("font-semibold tabular-nums")
            text("h3", "What to do").classes("font-semibold mt-4 mb-1")
            with ui.element("ul").classes("list-disc pl-5 max-w-4xl"):
                for sentence in view.advice(one, states):
                    text("li", sentence)
            if one.state is AuditResult.ALARMED:
                _end_button(frame, watch, one)
            if one.evidence:
                text("h3", "Evidence against the promise").classes("font-semibold mt-4")
                ui.echart(view.chart(one)).classes("chart")
            if one.contributions:
                text("h3", "Devices with the most disagreements").classes("font-semibold mt-4 mb-1")
                table = Table(f"Devices of {one.promise}", view.CONTRIBUTIONS, "")
                table.show(rows(view.CONTRIBUTIONS, one.contributions, lambda each: each.device))


def _end_button(frame: Frame, watch: Watch, one: ContractState) -> None:
    action = Action(
        "End the alarm",
        f"End the alarms of {one.bundle} {one.version}?",
        "All audits of this version are deleted. Devices accept edge answers as before, until new audits raise the "
        "alarm again.",
        lambda fleet: fleet.end_alarm(one.bundle, one.version),
        "The alarm is ended.",
        danger=True,
        role=Role.APPROVER,
    )
    with ui.element("div").classes("mt-3"):
        confirm_button(frame, watch, action)
