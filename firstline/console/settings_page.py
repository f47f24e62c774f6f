"""The page of the settings: this console, its gateway, and the limit on escalations."""

from __future__ import annotations

from importlib.metadata import version
from typing import NamedTuple

from nicegui import ui

from firstline.console.accounts import Accounts
from firstline.console.cells import Cell, Tone, moment
from firstline.console.dialogs import Action, confirm_button
from firstline.console.page import Facts, Frame, Redrawn, card, grid, text
from firstline.console.polling import Watch
from firstline.console.settings import Settings
from firstline.fleet.client import Fleet
from firstline_core.errors import NotFoundError
from firstline_core.fleet.registry import RegistryStatus
from firstline_core.fleet.twin import Brake
from firstline_core.telemetry.wording import counted


class Data(NamedTuple):
    """The gateway's answers of this page; None for a gateway without a registry, and for a fleet without a limit."""

    registry: RegistryStatus | None
    brake: Brake | None


def add_pages(watch: Watch, settings: Settings) -> None:
    """Adds the page to the application.

    Args:
        watch: asks the gateway.
        settings: of this console.
    """

    @ui.page("/settings")
    def _settings() -> None:
        frame = Frame("Settings", "/settings")
        with frame.main, grid("xl:grid-cols-2"):
            with card("This console"):
                Facts().show(console_facts(settings))
            with card("Registry"):
                registry = Facts()
            with card("Limit on escalations"):
                brake = Redrawn(lambda found: _brake(frame, watch, found))

        def show(data: Data) -> None:
            registry.show(registry_facts(data.registry))
            brake.show((data.brake,))

        frame.follow(lambda: watch.ask(("settings",), _fetch), show)


def _fetch(fleet: Fleet) -> Data:
    try:
        registry = fleet.registry.status()
    except NotFoundError:
        registry = None
    return Data(registry, fleet.braked())


def console_facts(settings: Settings) -> list[tuple[str, Cell]]:
    """Returns the settings of the console by name."""
    return [
        ("Version", Cell(version("firstline"))),
        ("Gateway", Cell(settings.gateway)),
        ("Listens on", Cell(settings.url)),
        ("Sign-in", Cell(_sign_in(settings.accounts))),
    ]


def _sign_in(accounts: Accounts) -> str:
    if not accounts.required:
        return "none: every user of this machine"
    ways = ["the shared password"] * bool(accounts.shared)
    ways += [f"{counted(len(accounts.person), 'person')} of the file"] * bool(accounts.person)
    ways += [accounts.oidc.issuer] if accounts.oidc is not None else []
    return ", ".join(ways)


def registry_facts(status: RegistryStatus | None) -> list[tuple[str, Cell]]:
    """Returns the state of the registry by name."""
    if status is None:
        return [("Registry", Cell("this gateway has none"))]
    facts = [(f"{role.role} {role.version} expires (UTC)", Cell(moment(role.expires_s))) for role in status.roles]
    facts += [
        ("Device authority expires (UTC)", Cell(moment(status.authority_expires_s))),
        ("Files", Cell(f"{status.blobs:,}, {status.blobs_bytes / 1e6:,.1f} MB")),
        (
            "Warnings",
            Cell(" ".join(status.warnings), tone=Tone.BAD) if status.warnings else Cell("none", tone=Tone.GOOD),
        ),
    ]
    return facts


def _brake(frame: Frame, watch: Watch, found: tuple[Brake | None]) -> None:
    (brake,) = found
    if brake is None:
        text("p", "The whole fleet may escalate. In an emergency, stop all escalations: devices then answer alone.")
        action = Action(
            "Stop escalations",
            "Stop all escalations of the fleet?",
            "Each device answers from its small model and its cache alone, until the limit is lifted.",
            lambda fleet: fleet.brake(Brake(0, "Set in the console.")),
            "Escalations are stopped.",
            danger=True,
            whole_fleet=True,
        )
    else:
        text("p", f"Each device may escalate {brake.escalations_per_hour:g} rows an hour: {brake.reason}")
        action = Action(
            "Lift the limit",
            "Lift the limit on escalations?",
            "Devices escalate again as their own settings say.",
            lambda fleet: fleet.brake(None),
            "The limit is lifted.",
            whole_fleet=True,
        )
    with ui.element("div").classes("mt-4"):
        confirm_button(frame, watch, action)
