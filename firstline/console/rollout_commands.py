"""Commands of a rollout: a button for each, and a dialog that explains the effect before it is applied."""

from __future__ import annotations

from nicegui import ui

from firstline.console import rollouts_view as view
from firstline.console.page_frame import Frame, text
from firstline.console.polling import Watch
from firstline_core.errors import ConflictError, FirstlineError
from firstline_core.fleet.rollout import RolloutSummary

_COMMANDS = ("approve", "start", "pause", "resume", "promote", "retry", "abort", "rollback")
_GRAVE = frozenset({"abort", "rollback"})


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
        self._seen: RolloutSummary | None = None
        self._command = ""
        self._doing = False
        with ui.element("div").props('role="group" aria-label="What can be done"').classes("commands"):
            self._buttons = {command: self._button(command) for command in _COMMANDS}
        with ui.dialog() as self._dialog, ui.element("div").classes("dialog"):
            self._title = text("h2")
            self._title.props["id"] = self._title.html_id
            self._consequence = text("p").props('aria-live="polite"')
            with ui.element("div").classes("commands"):
                # Where the focus lies at first: a second Enter must not stop a fleet.
                ui.button("Do nothing", on_click=self._dialog.close).props("no-caps outline autofocus")
                self._do = ui.button(on_click=self._confirmed).props("no-caps")
        self._dialog.props["aria-labelledby"] = self._title.html_id
        frame.on_stale(self._lock)

    def show(self, rollout: RolloutSummary) -> None:
        """Shows what can be done now; an open dialog says what its command would do by now."""
        self._seen = rollout
        for command, button in self._buttons.items():
            button.set_visibility(command in rollout.consequences)
        if self._dialog.value:
            self._say()

    def _button(self, command: str) -> ui.button:
        colour = "negative" if command in _GRAVE else "primary"
        made = ui.button(f"{command.capitalize()}…", on_click=lambda: self._ask(command), color=colour)
        made.set_visibility(False)
        return made.props("no-caps outline")

    def _ask(self, command: str) -> None:
        if self._seen is not None:
            self._command = command
            self._do.set_text(command.capitalize())
            self._do.props["color"] = "negative" if command in _GRAVE else "primary"
            self._title.set_text(f"{command.capitalize()} {view.title(self._seen)}?")
            self._say()
            self._dialog.open()

    def _say(self) -> None:
        found = self._seen.consequences.get(self._command) if self._seen is not None else None
        state = view.state(self._seen).text if self._seen is not None else ""
        self._consequence.set_text(found or f"This cannot be done any more: the rollout is {state}.")
        self._do.set_enabled(found is not None)

    async def _confirmed(self) -> None:
        seen, command = self._seen, self._command
        if seen is None or self._doing or not self._dialog.value:
            return
        self._doing = True  # a second click is none
        try:
            after = await self._watch.do(lambda fleet: fleet.rollouts.command(self._rollout, command, seen.revision))
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
        """Nothing is commanded by what is stale."""
        for button in (*self._buttons.values(), self._do):
            button.set_enabled(not stale)
