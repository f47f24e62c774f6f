"""Buttons whose command is confirmed in a dialog that names its effect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nicegui import ui

from firstline.console.page import Frame, button, may, text
from firstline.console.polling import Watch
from firstline.fleet.client import Fleet
from firstline_core.errors import FirstlineError
from firstline_core.fleet.persons import Role


@dataclass(frozen=True)
class Action:
    """A command with its words.

    Args:
        label: of the button.
        question: title of the dialog.
        effect: effect of the command, in sentences.
        do: sends the command to the gateway; runs in a thread.
        done: sentence that is shown afterwards; "" for none.
        danger: whether it cannot be undone.
        then: called with the result of `do`, on the page.
        role: that the command needs.
        whole_fleet: whether the command concerns all devices.
    """

    label: str
    question: str
    effect: str
    do: Callable[[Fleet], Any]
    done: str
    danger: bool = False
    then: Callable[[Any], None] | None = None
    role: Role = Role.OPERATOR
    whole_fleet: bool = False


class ConfirmButton:
    """A button that asks before it carries out a command.

    Args:
        frame: of the page; the button is disabled while its data is stale.
        watch: carries the command out.
        action: the command.
    """

    def __init__(self, frame: Frame, watch: Watch, action: Action) -> None:
        self._frame, self._watch, self._action = frame, watch, action
        self._is_possible, self._is_under_way = True, False
        kind = "danger" if action.danger else ""
        with ui.dialog() as self._dialog, ui.element("div").classes("card w-full max-w-lg"):
            self._title = text("h2", action.question)
            self._title.props["id"] = self._title.html_id
            self._dialog.props["aria-labelledby"] = self._title.html_id
            self._effect = text("p", action.effect).props('aria-live="polite"').classes("my-3")
            with ui.element("div").classes("flex flex-wrap gap-3"):
                # It has the focus at first: a second Enter must not carry out the command.
                button("Do nothing", self._dialog.close).props("autofocus")
                self._do = button(action.label, self._confirmed, kind or "primary")
        self._opener = button(f"{action.label}…", self._dialog.open, kind)
        frame.on_stale(self._lock)

    def show(self, question: str, effect: str | None, otherwise: str = "") -> None:
        """Shows another effect, also in an open dialog; without one the command is not offered, for another reason."""
        self._is_possible = effect is not None
        self._title.set_text(question)
        self._effect.set_text(effect or otherwise)
        self._do.set_enabled(self._is_possible)
        self._opener.set_visibility(self._is_possible)

    def _lock(self, stale: bool) -> None:
        self._opener.set_enabled(not stale)
        self._do.set_enabled(not stale and self._is_possible)

    async def _confirmed(self) -> None:
        if self._is_under_way or not self._dialog.value:  # a second click has no effect
            return
        self._is_under_way = True
        try:
            await carry_out(self._frame, self._watch, self._action.do, self._action.done, self._action.then)
        finally:
            self._is_under_way = False
            self._dialog.close()


def confirm_button(frame: Frame, watch: Watch, action: Action) -> None:
    """Adds a button that asks before it carries out a command; nothing for a person who may not."""
    if may(action.role, whole_fleet=action.whole_fleet):
        ConfirmButton(frame, watch, action)


async def carry_out(
    frame: Frame,
    watch: Watch,
    do: Callable[[Fleet], Any],
    done: str = "",
    then: Callable[[Any], None] | None = None,
) -> None:
    """Sends a command, and shows its result or the gateway's error on the page; the arguments are those of `Action`."""
    try:
        result = await watch.do(do)
    except FirstlineError as error:
        frame.say(error.message)
    else:
        frame.say(done)
        if then is not None:
            then(result)
