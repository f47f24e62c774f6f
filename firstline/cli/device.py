"""`firstline device`: invites devices to a gateway, lists them and revokes their access."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from firstline.cli import fleet_device
from firstline.cli.dates import date
from firstline.cli.output import Output, OutputOption, print_json, print_table, table
from firstline.fleet.client import open_fleet
from firstline_core.errors import ConfigError
from firstline_core.protocol.enrolment import DeviceState, Invitation
from firstline_core.storage.secrets import read_secret
from firstline_core.types import Name

_KEY_VARIABLE = "FIRSTLINE_TOKEN"
_CSV_LIMIT_BYTES = 16 * 1024 * 1024
_DAY_S = 86_400.0

app = typer.Typer(help="Invite, list, tag, revoke and decommission devices.", no_args_is_help=True)
fleet_device.add_to(app)

GatewayOption = Annotated[
    str, typer.Option(metavar="URL", help="URL of the gateway, e.g. https://gateway.example.com.")
]
KeyFileOption = Annotated[
    str, typer.Option(metavar="FILE", help=f"File with an API key with the scope fleet; default: {_KEY_VARIABLE}.")
]
CaOption = Annotated[Path | None, typer.Option(metavar="FILE", help="CA certificate used to verify the gateway (PEM).")]


@app.command()
def enroll(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="The devices.")] = None,
    *,
    gateway: GatewayOption,
    list_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="File with a list of devices in a column 'name'.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR|CSV", help="Where to write the tokens: a folder with one file each, or one file *.csv."
        ),
    ] = None,
    valid_days: Annotated[float, typer.Option(min=0.001, max=90, help="How long the tokens are valid.")] = 7.0,
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Create a join token for each device, for `edge-agent join`; they are shown only once."""
    wanted = [*(names or ()), *(_listed(list_file) if list_file is not None else ())]
    if not wanted:
        raise ConfigError("No device is named; give names, or a list with --csv.")
    for name in wanted:
        _check_name(name, "The device's name")
    with open_fleet(gateway, _key(key_file), ca) as fleet:
        made = fleet.invite(list(dict.fromkeys(wanted)), max(60.0, valid_days * _DAY_S))
    if out is not None:
        _write(out, made)
        typer.echo(
            f"{len(made)} join token{'s' * (len(made) != 1)} in {out}, until {date(made[0].expires_s)}", err=True
        )
    elif output is Output.JSON:
        print_json(made)
    elif len(made) == 1:
        typer.echo(made[0].token)
    else:
        for one in made:
            typer.echo(f"{one.device} {one.token}")


@app.command("list")
def list_devices(
    *, gateway: GatewayOption, key_file: KeyFileOption = "", ca: CaOption = None, output: OutputOption = Output.TEXT
) -> None:
    """List the devices that have joined or are invited."""
    with open_fleet(gateway, _key(key_file), ca) as fleet:
        devices = list(fleet.devices())
    if output is Output.JSON:
        print_json(devices)
        return
    made = table("device", "state", "joined", "certificate until")
    for device in devices:
        made.add_row(
            device.device,
            _state(device),
            date(device.enrolled_s),
            "-" if device.revoked_s is not None else date(device.certificate_expires_s),
        )
    print_table(made)


@app.command()
def revoke(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The devices.")],
    *,
    gateway: GatewayOption,
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Revoke devices' access and close their connections; invite a device again to let it return."""
    with open_fleet(gateway, _key(key_file), ca) as fleet:
        for name in names:
            fleet.revoke(name)
            if output is Output.TEXT:
                typer.echo(f"revoked {name}")
    if output is Output.JSON:
        print_json({"revoked": names})


def _key(file: str) -> str:
    """Returns the API key, which is not a command-line argument because other users could read it."""
    key = read_secret(file, "--key-file") or os.environ.get(_KEY_VARIABLE, "")
    if not key:
        raise ConfigError(f"There is no API key; name its file with --key-file, or put it into {_KEY_VARIABLE}.")
    return key


def _listed(file: Path) -> list[str]:
    """Returns the names in a CSV file's column 'name'.

    Raises:
        ConfigError: the file cannot be read, has no such column, or a name is not valid.
    """
    try:
        if file.stat().st_size > _CSV_LIMIT_BYTES:
            raise ConfigError(f"{file} is larger than {_CSV_LIMIT_BYTES} bytes; split it.")
        with file.open(encoding="utf-8-sig", newline="") as stream:
            rows = csv.DictReader(stream)
            if "name" not in (rows.fieldnames or ()):
                found = ", ".join(rows.fieldnames or ()) or "nothing"
                raise ConfigError(
                    f"{file} has no column 'name'; its first line has to name the columns, with commas, and says: "
                    f"{found[:80]!a}."
                )
            names = []
            for row in rows:
                name = (row["name"] or "").strip()
                _check_name(name, f"{file}:{rows.line_num}: the name")
                names.append(name)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{file} cannot be read as CSV: {error}.") from error
    return names


def _check_name(name: str, what: str) -> None:
    try:
        msgspec.convert(name, Name)
    except msgspec.ValidationError:
        raise ConfigError(
            f"{what} {name[:80]!a} cannot be used; take 1 to 64 letters, digits, '.', '_', '-'; no sign first."
        ) from None


def _write(out: Path, made: Sequence[Invitation]) -> None:
    """Writes tokens to a CSV file, or to one file each; only this user can read them.

    Raises:
        ConfigError: they cannot be written; they are lost then, and new ones take their places.
    """
    try:
        if out.suffix == ".csv":
            with os.fdopen(_private(out), "w", newline="") as stream:
                writer = csv.writer(stream)
                writer.writerow(("name", "token", "expires"))
                writer.writerows((one.device, one.token, date(one.expires_s)) for one in made)
            return
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
        for one in made:
            with os.fdopen(_private(out / f"{one.device}.token"), "w") as stream:
                stream.write(one.token + "\n")
    except OSError as error:
        raise ConfigError(
            f"The join tokens cannot be written to {out}: {error.strerror}; run the command again, the new tokens take "
            "the old ones' places."
        ) from error


def _private(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)


def _state(device: DeviceState) -> str:
    revoked = f"revoked {date(device.revoked_s)}" if device.revoked_s is not None else ""
    invited = f"invited until {date(device.invited_until_s)}" if device.invited_until_s is not None else ""
    return ", ".join(filter(None, (revoked, invited))) or "joined"
