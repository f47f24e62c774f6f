"""`firstline config`: settings of agents into a gateway's registry, and out of it; `firstline rollout` brings them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from firstline.cli.fleet_options import (
    CaOption,
    GatewayOption,
    KeyFileOption,
    KeysOption,
    PassphraseOption,
    keyring_of,
    registry_at,
)
from firstline.cli.output import Output, OutputOption, print_json, print_table, table
from firstline.release.configurations import push_configuration, read_configuration, remove_configuration
from firstline.release.keyring import Keyring
from firstline_core.bundle.trust import Trust
from firstline_core.fleet.configuration import parse_configuration

_KEYS = Path("keys")

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Push configurations of agents to a gateway's registry, list and read them.",
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The configuration's name.")]
VersionArgument = Annotated[int, typer.Argument(metavar="VERSION", min=1, help="A number.")]


@app.command()
def push(
    file: Annotated[Path, typer.Argument(metavar="TOML", help="With a name, a version, and what is to be set.")],
    *,
    keys: KeysOption = _KEYS,
    gateway: GatewayOption = "",
    passphrase_file: PassphraseOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Check a configuration, send it, and sign for it. No device takes it before a rollout brings it."""
    keyring = keyring_of(keys, passphrase_file)
    with registry_at(gateway, key_file, ca) as registry:
        done = push_configuration(keyring, registry, file, time.time())
    if output is Output.JSON:
        print_json(done._asdict())
    else:
        typer.echo(f"{done.name} version {done.version}: {'signed' if done.is_new else 'was signed before'}.")


@app.command("ls")
def list_configurations(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="One configuration's versions alone.")] = "",
    *,
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """List the configurations that are signed for."""
    with registry_at(gateway, key_file, ca) as registry:
        found = list(registry.configurations(name))
    if output is Output.JSON:
        print_json(found)
        return
    made = table("configuration", ">version", "digest")
    for one in found:
        made.add_row(one.name, str(one.version), one.sha256[:12])
    print_table(made)


@app.command()
def show(
    name: NameArgument,
    version: VersionArgument,
    *,
    keys: KeysOption = _KEYS,
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Print a configuration as it was signed, verified as a device does."""
    keyring = Keyring(keys)
    with registry_at(gateway, key_file, ca) as registry:
        trust = Trust(keyring.trust, registry.metadata, anchor=keyring.anchor_content(), now_s=time.time)
        content = read_configuration(trust, registry, name, version)
    if output is Output.JSON:
        said = parse_configuration(content, f"{name} version {version}")
        print_json({"name": said.name, "version": said.version, "sets": said.changes})
    else:
        typer.echo(content.decode().rstrip("\n"))


@app.command("rm")
def remove(
    name: NameArgument,
    version: VersionArgument,
    *,
    keys: KeysOption = _KEYS,
    gateway: GatewayOption = "",
    passphrase_file: PassphraseOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Sign for a configuration no more: no device takes it from now on; those that run it keep it."""
    keyring = keyring_of(keys, passphrase_file)
    with registry_at(gateway, key_file, ca) as registry:
        remove_configuration(keyring, registry, name, version, time.time())
    if output is Output.JSON:
        print_json({"removed": {"configuration": name, "version": version}})
    else:
        typer.echo(f"{name} version {version} is no longer signed for.")
