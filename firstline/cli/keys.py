"""`firstline keys`: manages the signing keys of a fleet. Keys are files on this machine; a gateway never gets them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer
from tuf.api.metadata import Root, Targets

from firstline.cli.fleet_options import (
    KEYS,
    CaOption,
    GatewayOption,
    KeyFileOption,
    KeysOption,
    PassphraseOption,
    RootKeyOption,
    keyring_of,
    registry_at,
)
from firstline.cli.keys_status import status, tell_draft
from firstline.cli.output import Output, OutputOption, print_json
from firstline.release import publishing, roles
from firstline.release.keyfile import short
from firstline.release.keyring import Keyring
from firstline.release.registry import Registry
from firstline_core.errors import ConfigError
from firstline_core.fleet.registry import OnlineKey

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Create, check, rotate and revoke the signing keys of a fleet.",
)


@app.command()
def init(
    *,
    keys: KeysOption = KEYS,
    gateway: GatewayOption = "",
    online_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The gateway's public key, fetched earlier, for an offline machine."),
    ] = None,
    passphrase_file: PassphraseOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Create three root keys (two must sign) and a targets key, and publish the signed metadata to a new registry.

    The gateway creates the online key itself and only sends its public half: no private key ever travels.
    """
    keyring = keyring_of(keys, passphrase_file)
    if online_key is not None:
        made = keyring.init(_online_key(online_key), time.time())
    else:
        with registry_at(gateway, key_file, ca) as registry:
            made = keyring.init(registry.online_key(), time.time())
            publishing.publish(keyring, registry, time.time())
    if output is Output.JSON:
        print_json({"keys": [str(file) for file in made], "anchor": str(keyring.anchor)})
        return
    for file in made:
        typer.echo(f"{file}")
    typer.echo(f"Devices are given {keyring.anchor}.")
    typer.echo(
        "Now move the root keys apart, off this machine; two of them exchange any key. The targets key stays.",
        err=True,
    )
    if online_key is not None:
        typer.echo("Nothing is published yet: `firstline keys publish --gateway URL`.", err=True)


app.command()(status)


@app.command()
def rotate(
    role: Annotated[Literal["root", "targets", "online"], typer.Argument(help="Role whose key is replaced.")],
    *,
    key: Annotated[
        str, typer.Option(metavar="ID", help="Id of the key, as `status` shows it; default: the first.")
    ] = "",
    keys: KeysOption = KEYS,
    root_key: RootKeyOption = None,
    gateway: GatewayOption = "",
    passphrase_file: PassphraseOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
) -> None:
    """Replace a key by a new one, and publish the change."""
    keyring = keyring_of(keys, passphrase_file, root_key)
    if role == "online":
        with registry_at(gateway, key_file, ca) as registry:
            keyring.name_online(registry.online_key(fresh=True), time.time())
            _publish(keyring, registry)
        return
    _exchange(keyring, role, _named(keyring, role, key), revoke=False)
    _published(keyring, gateway, key_file, ca)


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(metavar="ID", help="Id of the key, as `status` shows it.")],
    *,
    keys: KeysOption = KEYS,
    root_key: RootKeyOption = None,
    gateway: GatewayOption = "",
    passphrase_file: PassphraseOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
) -> None:
    """Revoke a key that was lost or stolen, and replace it by a new one."""
    keyring = keyring_of(keys, passphrase_file, root_key)
    root: Root = keyring.root().signed
    role = next((role for role in root.roles if any(short(one) == short(key) for one in root.roles[role].keyids)), "")
    if role in roles.ONLINE:
        raise ConfigError(f"{key} is the gateway's online key; exchange it with `firstline keys rotate online`.")
    if not role:
        raise ConfigError(f"The root names no key {key[:80]!a}; `firstline keys status` shows those that it names.")
    _exchange(keyring, role, _named(keyring, role, key), revoke=True)
    _published(keyring, gateway, key_file, ca)


@app.command()
def renew(
    *,
    keys: KeysOption = KEYS,
    root_key: RootKeyOption = None,
    gateway: GatewayOption = "",
    passphrase_file: PassphraseOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
) -> None:
    """Sign root and targets again with the same keys, to extend their expiry; without root keys only the targets."""
    keyring = keyring_of(keys, passphrase_file, root_key)
    root: Root = keyring.root().signed
    if keyring.signers(root.roles[Root.type].keyids):
        keyring.renew_root(time.time())
        tell_draft(keyring)
    with registry_at(gateway, key_file, ca) as registry:
        _publish(keyring, registry, renew=True)


@app.command()
def sign(
    *,
    keys: KeysOption = KEYS,
    root_key: RootKeyOption = None,
    gateway: GatewayOption = "",
    passphrase_file: PassphraseOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
) -> None:
    """Add the signatures of this machine's root keys to a draft, and publish it once it is complete."""
    keyring = keyring_of(keys, passphrase_file, root_key)
    keyring.sign(keyring.open_draft())
    _published(keyring, gateway, key_file, ca)


@app.command()
def publish(
    *,
    keys: KeysOption = KEYS,
    gateway: GatewayOption = "",
    passphrase_file: PassphraseOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
) -> None:
    """Publish this machine's signed metadata to a gateway, e.g. after its store was restored from a backup."""
    keyring = keyring_of(keys, passphrase_file)
    with registry_at(gateway, key_file, ca) as registry:
        _publish(keyring, registry, recover=True)


def _named(keyring: Keyring, role: str, key: str) -> str:
    """Returns the complete id of a role's key; the first by default."""
    keyids: list[str] = keyring.root().signed.roles[role].keyids
    found = [keyid for keyid in keyids if keyid.startswith(key)] if key else keyids[:1]
    if len(found) != 1:
        raise ConfigError(f"{role} has no one key {key[:80]!a}; it has {', '.join(map(short, keyids))}.")
    return found[0]


def _exchange(keyring: Keyring, role: str, old: str, *, revoke: bool) -> None:
    made = keyring.exchange(role, old, time.time(), never=old if revoke else "")
    typer.echo(f"{made} takes the place of {role} key {short(old)}.")
    tell_draft(keyring)


def _published(keyring: Keyring, gateway: str, key_file: str, ca: Path | None) -> None:
    """Publishes if a gateway is named and no signature is missing."""
    if keyring.draft.exists():
        return
    if not gateway:
        typer.echo("It is not published yet: `firstline keys publish --gateway URL`.", err=True)
        return
    with registry_at(gateway, key_file, ca) as registry:
        _publish(keyring, registry)


def _publish(keyring: Keyring, registry: Registry, *, renew: bool = False, recover: bool = False) -> None:
    versions = publishing.publish(keyring, registry, time.time(), renew=renew, recover=recover)
    if versions is None:
        typer.echo("The registry is up to date.")
    else:
        typer.echo(f"Published: root {versions[Root.type]}, targets {versions[Targets.type]}.")


def _online_key(file: Path) -> OnlineKey:
    try:
        return msgspec.json.decode(file.read_bytes()[:65_536], type=OnlineKey)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{file} holds no gateway's online key: {error}; fetch it from GET /fleet/v1/registry/online-key."
        ) from error
