"""The pages of all rollouts, and of one: its state, evaluations, decisions and commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from nicegui import ui

from firstline.console import rollouts_view as view
from firstline.console.cells import rows
from firstline.console.page import Frame, PagedTable, Table, button, button_link, card, may, put, text
from firstline.console.polling import Answer, Watch
from firstline.fleet.client import Fleet
from firstline_core.errors import ConflictError, FirstlineError
from firstline_core.fleet.audit_log import Entry
from firstline_core.fleet.persons import Role
from firstline_core.fleet.rollout import Look, RolloutDevice, RolloutPage, RolloutSummary

ROWS = 50
"""Maximum number of rollouts on a page."""
_ENTRIES = 10_000  # of a rollout's audit log; later entries are not shown
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
                button_link("New rollout", "/rollouts/new", "primary")
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
                commands = Commands(frame, watch, rollout)
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
            evidence = await watch.ask(question, lambda fleet: _evidence(fleet, rollout), lasting=True)
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


def _evidence(fleet: Fleet, rollout: str) -> _Evidence:
    entries = islice(fleet.rollouts.audit_log(f"rollout:{rollout}"), _ENTRIES)
    failed = tuple(one for state in view.FAILED_STATES for one in fleet.rollouts.devices(rollout, state))
    return _Evidence(fleet.rollouts.looks(rollout), tuple(entries)[-view.LOOKS :], failed)


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
        self._counts.set_text(f"Devices: {view.counted(rollout)}.")


class _EvidenceTables:
    """The evaluations with their verdicts, the numbers of one of them, and the decisions."""

    def __init__(self) -> None:
        self._looks: tuple[Look, ...] = ()
        with card("Evidence", "mb-4"):
            empty = "No stage was evaluated yet: the first evaluation comes while a stage is observed."
            self._verdicts = Table("Looks", view.LOOK_COLUMNS, empty)
            self._choice = ui.select({}, label="Numbers of", on_change=self._numbers)
            self._choice.props("outlined dense").classes("w-64 max-w-full my-4").set_visibility(False)
            self._findings = Table("Numbers of a look", view.FINDINGS, "")
        with card("Decisions"):
            self._decisions = Table("Decisions", view.DECISIONS, "Nothing was decided yet.")

    def show(self, evidence: _Evidence) -> None:
        if evidence.looks != self._looks or not self._looks:
            newest = self._choice.value in (None, _key(self._looks))
            self._looks = evidence.looks
            self._verdicts.show(view.look_rows(evidence.looks))
            options = {_key((look,)): view.look_name(look) for look in reversed(evidence.looks[-view.LOOKS :])}
            self._choice.set_visibility(bool(options))
            self._choice.set_options(options, value=_key(evidence.looks) if newest else self._choice.value)
            self._numbers()
        self._decisions.show(view.decision_rows(evidence.decisions))

    def _numbers(self) -> None:
        look = next((look for look in self._looks if _key((look,)) == self._choice.value), None)
        self._findings.show(view.finding_rows(look))


def _key(looks: Sequence[Look]) -> str | None:
    """Returns the key of the latest evaluation."""
    return f"{looks[-1].stage}.{looks[-1].look}" if looks else None


class Commands:
    """The buttons of a rollout's page.

    Args:
        frame: of the page.
        watch: carries commands out.
        rollout: its id.
    """

    def __init__(self, frame: Frame, watch: Watch, rollout: str) -> None:
        self._frame = frame
        self._watch = watch
        self._rollout = rollout
        self._summary: RolloutSummary | None = None
        self._command = ""
        self._doing = False
        with ui.element("div").props('role="group" aria-label="What can be done"').classes("flex flex-wrap gap-3 mt-4"):
            allowed = [one for one in _COMMANDS if may(Role.APPROVER if one in _DECISIONS else Role.OPERATOR)]
            self._buttons = {command: self._button(command) for command in allowed}
        with ui.dialog() as self._dialog, ui.element("div").classes("card w-full max-w-lg"):
            self._title = text("h2")
            self._title.props["id"] = self._title.html_id
            self._consequence = text("p").props('aria-live="polite"').classes("my-3")
            with ui.element("div").classes("flex flex-wrap gap-3"):
                # It has the focus at first: a second Enter must not stop a fleet.
                button("Do nothing", self._dialog.close).props("autofocus")
                self._do = button("", self._confirmed)
        self._dialog.props["aria-labelledby"] = self._title.html_id
        frame.on_stale(self._lock)

    def show(self, rollout: RolloutSummary) -> None:
        """Shows the allowed commands; an open dialog shows the present effect of its command."""
        self._summary = rollout
        for command, each in self._buttons.items():
            each.set_visibility(command in rollout.consequences)
        if self._dialog.value:
            self._explain()

    def _button(self, command: str) -> ui.button:
        found = button(f"{command.capitalize()}…", lambda: self._open(command), "danger" if command in _GRAVE else "")
        found.set_visibility(False)
        return found

    def _open(self, command: str) -> None:
        if self._summary is not None:
            self._command = command
            self._do.set_text(command.capitalize())
            self._do.classes(replace=f"btn btn-{'danger' if command in _GRAVE else 'primary'}")
            self._title.set_text(f"{command.capitalize()} {view.title(self._summary)}?")
            self._explain()
            self._dialog.open()

    def _explain(self) -> None:
        effect = self._summary.consequences.get(self._command) if self._summary is not None else None
        state = view.state(self._summary).text if self._summary is not None else ""
        self._consequence.set_text(effect or f"This cannot be done any more: the rollout is {state}.")
        self._do.set_enabled(effect is not None)

    async def _confirmed(self) -> None:
        summary, command = self._summary, self._command
        if summary is None or self._doing or not self._dialog.value:
            return
        self._doing = True  # a second click has no effect
        try:
            after = await self._watch.do(lambda fleet: fleet.rollouts.command(self._rollout, command, summary.revision))
        except ConflictError:
            self._frame.say("The rollout was changed meanwhile; look at what it says now, then repeat.")
        except FirstlineError as error:
            self._frame.say(error.message)
        else:
            self._frame.say(f"{command.capitalize()}: done. {after.sentence}")
            self.show(after)
        finally:
            self._doing = False
            self._dialog.close()

    def _lock(self, stale: bool) -> None:
        """Disables the commands while the data is stale."""
        for each in (*self._buttons.values(), self._do):
            each.set_enabled(not stale)
