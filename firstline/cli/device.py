"""`firstline device`: invites devices to a gateway, lists, tags, revokes and decommissions them."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstline.cli.command import Report, command, command_group
from firstline.cli.options import GatewayOptions, check_name
from firstline.cli.output import Output, OutputOption, date, print_json, table
from firstline_core.errors import ConfigError
from firstline_core.storage.files import system_reason, write_whole
from firstline_core.telemetry.wording import counted
from firstline_core.units import DAY_S

if TYPE_CHECKING:  # `command` imports these before a command of this module runs
    from firstline.fleet import wording
    from firstline.fleet.client import Fleet, ListedDevice
    from firstline.workbench.data.tables import read_csv
    from firstline_core.fleet.rest import FleetDevice
    from firstline_core.hardware.catalogue import catalogue_lines
    from firstline_core.protocol.enrolment import Invitation


app = command_group("Invite, list, tag, revoke and decommission devices.")

NameArgument = Annotated[str, typer.Argument(help="The device.")]
NamesArgument = Annotated[list[str], typer.Argument(metavar="NAME...", help="The devices.")]


@command(app, "enroll", example="firstline device enroll press-7 > press-7.token")
def enroll(
    gateway: GatewayOptions,
    *,
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...")] = None,
    list_file: Annotated[Path | None, typer.Option("--csv", metavar="FILE")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR|CSV")] = None,
    valid_days: Annotated[float, typer.Option(min=0.001, max=90)] = 7.0,
) -> Report:
    """Create a join token for each device, for `edge-agent join`; they are shown only once.

    Args:
        names: The devices.
        list_file: File with a list of devices in a column 'name'.
        out: Where to write the tokens: a folder with one file each, or one file *.csv.
        valid_days: How long the tokens are valid.
    """
    devices = [*(names or ()), *(_names_in(list_file) if list_file is not None else ())]
    if not devices:
        raise ConfigError("No device is named; give names, or a list with --csv.")
    for name in devices:
        check_name(name, "The device's name")
    with gateway.fleet() as fleet:
        invitations = fleet.invite(list(dict.fromkeys(devices)), max(60.0, valid_days * DAY_S))
    if out is not None:
        _write(out, invitations)
        tokens = counted(len(invitations), "join token")
        typer.echo(f"{tokens} in {out}, until {date(invitations[0].expires_s)}", err=True)
        return Report(
            [{"device": each.device, "expires_s": each.expires_s, "out": str(out)} for each in invitations], ()
        )
    if len(invitations) == 1:
        return Report(invitations, invitations[0].token)
    return Report(invitations, [f"{each.device} {each.token}" for each in invitations])


@command(app, "list", example="firstline device list --selector site=berlin")
def list_devices(
    gateway: GatewayOptions,
    selector: Annotated[str, typer.Option(help="Only devices with these tags, e.g. site=berlin,!test.")] = "",
) -> Report:
    """List devices: their access, when they were last seen, and the models that they run."""
    with gateway.fleet() as fleet:
        listed = fleet.listed(selector)
    rows = (
        (
            device.name,
            _state(device),
            "-" if device.revoked_s is not None else date(device.certificate_expires_s),
            wording.age(device.last_seen_age_s),
            wording.runs(device),
            wording.wanted(device),
            wording.tags(device),
        )
        for device in listed
    )
    columns = ("device", "state", "certificate until", ">last seen", "runs", "desired", "tags")
    return Report(listed, table(*columns, rows=rows))


@command(app, "revoke", example="firstline device revoke press-7")
def revoke(names: NamesArgument, gateway: GatewayOptions, output: OutputOption = Output.TEXT) -> None:
    """Revoke devices' access and close their connections; invite a device again to let it return."""
    _each(names, gateway, Fleet.revoke, "revoked", output)


@command(app, "get", example="firstline device get press-7")
def get(name: NameArgument, gateway: GatewayOptions) -> Report:
    """Show one device."""
    with gateway.fleet(name) as fleet:
        device = fleet.device(name)
    return Report(device, _device_text(device))


@command(app, "tag", example="firstline device tag press-7 site=berlin test-")
def tag(
    name: NameArgument,
    tags: Annotated[list[str], typer.Argument(metavar="KEY=VALUE|KEY-...", help="Tags to set; KEY- removes one.")],
    gateway: GatewayOptions,
) -> Report:
    """Set and remove tags of a device."""
    changes = dict(wording.tag_change(text) for text in tags)
    with gateway.fleet(name) as fleet:
        device = fleet.tag(name, changes)
    return Report(device, f"{device.name}: {wording.tags(device)}")


@command(app, "accept", example="firstline device accept press-7")
def accept(names: NamesArgument, gateway: GatewayOptions, output: OutputOption = Output.TEXT) -> None:
    """Accept devices that have been seen (fleet.accept = "by_hand")."""
    _each(names, gateway, Fleet.accept, "accepted", output)


@command(app, "decommission", example="firstline device decommission press-7")
def decommission(names: NamesArgument, gateway: GatewayOptions, output: OutputOption = Output.TEXT) -> None:
    """Decommission devices: revoke their access and delete everything stored about them."""
    _each(names, gateway, Fleet.decommission, "decommissioned", output)


def _each(
    names: Sequence[str], gateway: GatewayOptions, act: Callable[[Fleet, str], object], done: str, output: Output
) -> None:
    """Does something to one device after the other, and prints each name at once."""
    for name in names:
        with gateway.fleet(name) as fleet:
            act(fleet, name)
        if output is Output.TEXT:
            typer.echo(f"{done} {name}")
    if output is Output.JSON:
        print_json({done: names})


def _device_text(device: FleetDevice) -> Iterator[str]:
    access = " (revoked)" if device.revoked else "" if device.accepted else " (not accepted)"
    yield f"{device.name}{access}: last seen {wording.age(device.last_seen_age_s)} ago; {wording.tags(device)}"
    yield f"runs {wording.runs(device)}; desired {wording.wanted(device)}"
    reported = device.reported
    if reported is None:
        return
    for update in reported.updates:
        why = (f" ({update.reason})" if update.reason else "") + (f": {update.message}" if update.message else "")
        yield f"update to {wording.subject(update.what, update.name)} {update.version}: {update.state}{why}"
    for profile in reported.profiles:
        points = f" ({profile.done} of {profile.total} points)" if profile.total else ""
        message = f": {profile.message}" if profile.message else ""
        yield f"profile of {profile.bundle}: {profile.state}{points}{message}"
    if reported.hardware is not None:
        yield from catalogue_lines(reported.hardware)


def _names_in(file: Path) -> list[str]:
    """Returns the names in a CSV file's column 'name'.

    Raises:
        ConfigError: the file cannot be read, has no such column, or a name is not valid.
    """
    table = read_csv(file)
    if "name" not in table.columns:
        columns = ", ".join(table.columns) or "nothing"
        raise ConfigError(
            f"{file} has no column 'name'; its first line has to name the columns, with commas, and says: "
            f"{columns[:80]!a}."
        )
    names = [(cell or "").strip() for cell in table.column("name")]
    for row, name in enumerate(names):
        check_name(name, f"{table.where(row)}: the name")
    return names


def _write(out: Path, invitations: Sequence[Invitation]) -> None:
    """Writes tokens to a CSV file, or to one file each; only this user can read them.

    Raises:
        ConfigError: they cannot be written; they are lost then, and new ones take their places.
    """
    try:
        if out.suffix == ".csv":
            text = StringIO(newline="")
            rows = ((each.device, each.token, date(each.expires_s)) for each in invitations)
            csv.writer(text).writerows((("name", "token", "expires"), *rows))
            write_whole(out, text.getvalue().encode())
            return
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
        for invitation in invitations:
            write_whole(out / f"{invitation.device}.token", f"{invitation.token}\n".encode())
    except OSError as error:
        raise ConfigError(
            f"The join tokens cannot be written to {out}: {system_reason(error)}; run the command again, the "
            "new tokens take the old ones' places."
        ) from error


def _state(device: ListedDevice) -> str:
    revoked = f"revoked {date(device.revoked_s)}" if device.revoked_s is not None else "revoked" * device.revoked
    invited = f"invited until {date(device.invited_until_s)}" if device.invited_until_s is not None else ""
    joined = "" if device.enrolled_s is None or revoked or invited else f"joined {date(device.enrolled_s)}"
    return ", ".join(filter(None, (revoked, invited, joined))) or ("seen" if device.accepted else "not accepted")
