"""The pages of all rollouts, and of one: its state, evaluations, decisions and commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from nicegui import ui

from firstline.console import rollouts_view as view
from firstline.console.cells import rows
from firstline.console.dialogs import Action, ConfirmButton
from firstline.console.page import Frame, PagedTable, Table, button_link, card, may, put, text
from firstline.console.polling import Answer, Watch
from firstline.fleet.client import Fleet
from firstline_core.fleet.audit_log import Entry
from firstline_core.fleet.persons import Role
from firstline_core.fleet.rollout_documents import Look, RolloutDevice, RolloutPage, RolloutSummary

ROWS = 50
"""Maximum number of rollouts on a page."""
_COMMANDS = ("approve", "start", "pause", "resume", "promote", "retry", "abort", "rollback")
_GRAVE = frozenset({"abort", "rollback"})
_DECISIONS = frozenset({"approve", "promote"})
"""Commands of an approver."""


@dataclass(frozen=True)
class _Evidence:
    """Data that changes only with the rollout's revision, so that it is fetched again only then."""

    looks: tuple[Look, ...]
    decisions: tuple[Entry, ...]
    failed: tuple[RolloutDevice, ...]


def add_pages(watch: Watch) -> None:
    """Adds the pages to the application."""

    @ui.page("/rollouts")
    def _rollouts(after: str = "") -> None:
        frame = Frame("Rollouts", "/rollouts", "Signed bundles and configurations on their way to devices, in stages.")
        with frame.main:
            with ui.element("div").classes("mb-4"):
                button_link("New rollout", "/rollouts/new")
            empty, back = "There is no rollout yet.", "/rollouts" if after else ""
            with card():
                table = PagedTable("Rollouts", view.ROLLOUTS, empty, "Older rollouts", back)

        def show(page: RolloutPage) -> None:
            table.show_page(view.rollout_rows(page))

        frame.follow(lambda: watch.ask(("rollouts", after), lambda fleet: fleet.rollouts.page(after, limit=ROWS)), show)

    @ui.page("/rollouts/{rollout}")
    def _rollout(rollout: str) -> None:
        frame = Frame("Rollout", "/rollouts")
        with frame.main:
            with card(classes="mb-4"):
                progress = _Progress()
                commands = _Commands(frame, watch, rollout)
            with card("Devices that failed", "mb-4"):
                failed = Table("Failed devices", view.FAILED, "No device failed.")
            with card("Stages", "mb-4"):
                stages = Table("Stages", view.STAGES, "It has no stages.")
            evidence_tables = _EvidenceTables()

        async def ask() -> Answer[tuple[RolloutSummary, _Evidence]]:
            summary = await watch.ask(("rollout", rollout), lambda fleet: fleet.rollouts.get(rollout))
            if summary.value is None or summary.error is not None:
                return Answer(None, summary.heard_s, summary.error)
            question = "evidence", rollout, str(summary.value.revision)
            evidence = await watch.ask(question, partial(_evidence, summary.value), lasting=True)
            if evidence.value is None:
                return Answer(None, evidence.heard_s, evidence.error)
            return Answer((summary.value, evidence.value), summary.heard_s, None)

        def show(answer: tuple[RolloutSummary, _Evidence]) -> None:
            summary, evidence = answer
            frame.name(view.title(summary))
            progress.show(summary)
            commands.show(summary)
            stages.show(view.stage_rows(summary))
            evidence_tables.show(evidence)
            failed.show(rows(view.FAILED, evidence.failed, lambda one: one.device))

        frame.follow(ask, show)


def _evidence(summary: RolloutSummary, fleet: Fleet) -> _Evidence:
    decisions = fleet.rollouts.audit_page(subject=f"rollout:{summary.id}", limit=view.LOOKS).entries
    return _Evidence(fleet.rollouts.looks(summary.id), decisions, fleet.rollouts.failed(summary))


class _Progress:
    """The state of a rollout, in words and as a bar."""

    def __init__(self) -> None:
        with ui.element("p"):
            self._state = text("strong")
        self._sentence = text("p").props('role="status"')
        self._progress = ui.element("progress").props('max="1" value="0" aria-label="Devices that have the model"')
        self._counts = text("p")

    def show(self, rollout: RolloutSummary) -> None:
        put(self._state, view.state(rollout))
        self._sentence.set_text(rollout.sentence)
        done, total = view.progress(rollout)
        self._progress.props["max"], self._progress.props["value"] = max(1, total), done
        self._counts.set_text(f"Devices: {view.device_counts(rollout)}.")


class _EvidenceTables:
    """The evaluations with their verdicts, the numbers of one of them, and the decisions."""

    def __init__(self) -> None:
        self._looks: tuple[Look, ...] = ()
        with card("Evidence", "mb-4"):
            empty = "No stage was evaluated yet: the first evaluation comes while a stage is observed."
            self._verdicts = Table("Looks", view.LOOK_COLUMNS, empty)
            self._choice = ui.select({}, label="Numbers of", on_change=self._numbers)
            self._choice.props("outlined dense").classes("w-64 max-w-full my-4").set_visibility(False)
            self._units = text("p", view.UNITS).classes("text-soft text-sm mb-2")
            self._findings = Table("Numbers of a look", view.FINDINGS, "")
        with card("Decisions"):
            self._decisions = Table("Decisions", view.DECISIONS, "Nothing was decided yet.")

    def show(self, evidence: _Evidence) -> None:
        if evidence.looks != self._looks or not self._looks:
            newest = self._choice.value in (None, _key(self._looks))
            self._looks = evidence.looks
            self._verdicts.show(view.look_rows(evidence.looks))
            options = {_key((look,)): view.look_name(look) for look in reversed(evidence.looks[-view.LOOKS :])}
            for each in (self._choice, self._units):
                each.set_visibility(bool(options))
            self._choice.set_options(options, value=_key(evidence.looks) if newest else self._choice.value)
            self._numbers()
        self._decisions.show(view.decision_rows(evidence.decisions))

    def _numbers(self) -> None:
        look = next((look for look in self._looks if _key((look,)) == self._choice.value), None)
        self._findings.show(view.finding_rows(look))


def _key(looks: Sequence[Look]) -> str | None:
    """Returns the key of the latest evaluation."""
    return f"{looks[-1].stage}.{looks[-1].look}" if looks else None


class _Commands:
    """The buttons of a rollout's page; each dialog shows the present effect of its command."""

    def __init__(self, frame: Frame, watch: Watch, rollout: str) -> None:
        self._rollout = rollout
        self._summary: RolloutSummary | None = None
        with ui.element("div").props('role="group" aria-label="What can be done"').classes("flex flex-wrap gap-3 mt-4"):
            self._buttons = {
                command: ConfirmButton(frame, watch, self._action(frame, command))
                for command in _COMMANDS
                if may(Role.APPROVER if command in _DECISIONS else Role.OPERATOR)
            }
        for each in self._buttons.values():
            each.show("", None)

    def show(self, rollout: RolloutSummary) -> None:
        """Shows the allowed commands."""
        self._summary = rollout
        for command, each in self._buttons.items():
            question = f"{command.capitalize()} {view.title(rollout)}?"
            otherwise = f"This cannot be done any more: the rollout is {view.state(rollout).text}."
            each.show(question, rollout.consequences.get(command), otherwise)

    def _action(self, frame: Frame, command: str) -> Action:
        def do(fleet: Fleet) -> RolloutSummary:
            revision = self._summary.revision if self._summary is not None else None
            return fleet.rollouts.command(self._rollout, command, revision)

        def then(after: RolloutSummary) -> None:
            frame.say(f"{command.capitalize()}: done. {after.sentence}")
            self.show(after)

        return Action(command.capitalize(), "", "", do, "", danger=command in _GRAVE, then=then)
