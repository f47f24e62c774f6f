"""The page that enrols devices: join tokens with the command that uses each."""

from __future__ import annotations

import json

from nicegui import ui

from firstline.console.dialogs import carry_out
from firstline.console.page import Frame, Redrawn, button, card, empty, may, text
from firstline.console.polling import Watch
from firstline_core.protocol.enrolment import Invitation
from firstline_core.units import DAY_S


def add_pages(watch: Watch, gateway: str) -> None:
    """Adds the page to the application.

    Args:
        watch: sends the commands.
        gateway: URL of the gateway, for the commands of devices.
    """

    @ui.page("/devices/enrol")
    def _enrol() -> None:
        lead = "Each device gets a token that works once, within seven days. A token is shown only here and now."
        frame = Frame("Enrol devices", "/devices", lead)
        frame.loaded()

        async def invite() -> None:
            devices = [name for name in names.value.replace(",", " ").split() if name]
            if not devices:
                frame.say("Name a device first, such as press-7.")
                return
            await carry_out(frame, watch, lambda fleet: fleet.invite(devices, 7 * DAY_S), then=invitations.show)

        with frame.main:
            if not may(whole_fleet=True):
                empty("Ask an operator of all devices: your role does not enrol devices.")
                return
            with card(classes="max-w-3xl mb-4"):
                names = (
                    ui.textarea("Names of the devices, one per line").props("outlined autogrow").classes("w-full mb-3")
                )
                button("Create tokens", invite, "primary")
            invitations = Redrawn(lambda made: _invitations(made, gateway))


def _invitations(invitations: list[Invitation], gateway: str) -> None:
    for invitation in invitations:
        _invitation(invitation, gateway)


def _invitation(invitation: Invitation, gateway: str) -> None:
    command = f"echo {invitation.token} > join.token\nedge-agent join {gateway} --token-file join.token"
    with card(invitation.device, "max-w-3xl mb-4"):
        text("p", "Run on the device:").classes("mb-2")
        text("code", command).classes("command mb-3").props('tabindex="0"')
        copy = button("Copy")
        copy.props["aria-label"] = f"Copy the command of {invitation.device}"
        copy.on("click", js_handler=f"() => navigator.clipboard.writeText({json.dumps(command)})")
        copy.on_click(lambda: copy.set_text("Copied"))
