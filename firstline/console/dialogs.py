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
        done: sentence that is shown afterwards.
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


def confirm_button(frame: Frame, watch: Watch, action: Action) -> None:
    """Adds a button that asks before it carries out a command; nothing for a person who may not."""
    if not may(action.role, whole_fleet=action.whole_fleet):
        return
    kind = "danger" if action.danger else ""
    with ui.dialog() as dialog, ui.element("div").classes("card w-full max-w-lg"):
        title = text("h2", action.question)
        title.props["id"] = title.html_id
        dialog.props["aria-labelledby"] = title.html_id
        text("p", action.effect).classes("my-3")
        with ui.element("div").classes("flex flex-wrap gap-3"):
            # It has the focus at first: a second Enter must not carry out the command.
            button("Do nothing", dialog.close).props("autofocus")
            do = button(action.label, None, kind or "primary")

    async def confirmed() -> None:
        do.disable()  # a second click has no effect
        await carry_out(frame, watch, action)
        do.enable()
        dialog.close()

    do.on_click(confirmed)
    opener = button(f"{action.label}…", dialog.open, kind)
    frame.on_stale(lambda stale: opener.set_enabled(not stale))


async def carry_out(frame: Frame, watch: Watch, action: Action) -> None:
    """Sends a command, and shows its result or the gateway's error on the page."""
    try:
        result = await watch.do(action.do)
    except FirstlineError as error:
        frame.say(error.message)
    else:
        frame.say(action.done)
        if action.then is not None:
            action.then(result)
