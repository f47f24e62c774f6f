"""`firstline config`: stores settings of agents in a gateway's registry; `firstline rollout` distributes them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstline.cli.command import Report, command, command_group
from firstline.cli.options import GatewayOptions, KeysFolder, SigningKeys, VersionArgument
from firstline.cli.output import table

if TYPE_CHECKING:  # `command` imports these before a command of this module runs
    from firstline.release.publishing import push_configuration, remove_configuration
    from firstline.release.pulling import read_configuration
    from firstline_core.bundle.trust import Trust
    from firstline_core.fleet.configuration import parse_configuration

app = command_group("Push configurations of agents to a gateway's registry, list and read them.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The configuration's name.")]


@command(app, "push", example="firstline config push quiet-nights.toml")
def push(
    file: Annotated[Path, typer.Argument(metavar="TOML", help="File with a name, a version and settings.")],
    keys: SigningKeys,
    gateway: GatewayOptions,
) -> Report:
    """Check, upload and sign a configuration. Devices take it only by a rollout."""
    keyring = keys.keyring()
    with gateway.registry() as registry:
        pushed = push_configuration(keyring, registry, file, time.time())
    state = "signed" if pushed.is_new else "was signed before"
    return Report(pushed._asdict(), f"{pushed.name} version {pushed.version}: {state}.")


@command(app, "list", example="firstline config list")
def list_configurations(
    gateway: GatewayOptions,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Only this configuration.")] = "",
) -> Report:
    """List the signed configurations."""
    with gateway.registry() as registry:
        entries = list(registry.configurations(name))
    rows = ((entry.name, str(entry.version), entry.sha256[:12]) for entry in entries)
    return Report(entries, table("configuration", ">version", "digest", rows=rows))


@command(app, "get", example="firstline config get quiet-nights 2")
def get(name: NameArgument, version: VersionArgument, keys: KeysFolder, gateway: GatewayOptions) -> Report:
    """Print a signed configuration, verified as on a device."""
    keyring = keys.keyring()
    with gateway.registry() as registry:
        trust = Trust(keyring.trust, registry.metadata, anchor=keyring.anchor_content(), now_s=time.time)
        content = read_configuration(trust, registry, name, version)
    configuration = parse_configuration(content, f"{name} version {version}")
    return Report(
        {"name": configuration.name, "version": configuration.version, "sets": configuration.changes},
        content.decode().rstrip("\n"),
    )


@command(app, "delete", example="firstline config delete quiet-nights 1")
def delete(name: NameArgument, version: VersionArgument, keys: SigningKeys, gateway: GatewayOptions) -> Report:
    """Withdraw the signature of a configuration: no further device takes it; devices that run it keep it."""
    keyring = keys.keyring()
    with gateway.registry() as registry:
        remove_configuration(keyring, registry, name, version, time.time())
    return Report(
        {"removed": {"configuration": name, "version": version}}, f"{name} version {version} is no longer signed."
    )
