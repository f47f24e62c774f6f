"""`firstline keys`: manages the signing keys of a fleet. Keys are files on this machine; a gateway never gets them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from firstline.cli.command import EXIT_FAILED, Report, command, command_group
from firstline.cli.options import GatewayOptions, KeysFolder, RootKeys, SigningKeys
from firstline.cli.output import date, table, warn
from firstline_core.errors import ConfigError
from firstline_core.storage.structs import read_json_file
from firstline_core.telemetry.wording import counted

if TYPE_CHECKING:  # `command` imports these before a command of this module runs
    from rich.table import Table
    from tuf.api.metadata import Root, Targets

    from firstline.fleet.registry import Registry
    from firstline.release import publishing, roles
    from firstline.release.keyring import Keyring, short
    from firstline_core.fleet.registry import OnlineKey, expiry_warnings

_KEY_BYTES = 64 * 1024

app = command_group("Create, check, rotate and revoke the signing keys of a fleet.")


@command(app, "init", example="firstline keys init")
def init(
    keys: SigningKeys,
    gateway: GatewayOptions,
    online_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The gateway's public key, fetched earlier, for an offline machine."),
    ] = None,
) -> Report:
    """Create three root keys (two must sign) and a targets key, and publish the signed metadata to a new registry.

    The gateway creates the online key itself and only sends its public half: no private key ever travels.
    """
    keyring = keys.keyring()
    if online_key is not None:
        files = keyring.init(_online_key(online_key), time.time())
    else:
        with gateway.registry() as registry:
            files = keyring.init(registry.online_key(), time.time())
            publishing.publish(keyring, registry, time.time())
    return Report(
        {"keys": [str(file) for file in files], "anchor": str(keyring.anchor)},
        _init_text(files, keyring.anchor, published=online_key is None),
    )


def _init_text(files: Sequence[Path], anchor: Path, *, published: bool) -> Iterator[str]:
    yield from map(str, files)
    yield f"Devices are given {anchor}."
    typer.echo(
        "Now move the root keys apart, off this machine; two of them exchange any key. The targets key stays.", err=True
    )
    if not published:
        typer.echo("Nothing is published yet: `firstline keys publish --gateway URL`.", err=True)


class _Key(msgspec.Struct):
    role: str
    key: str
    here: str | None


class _Role(msgspec.Struct):
    role: str
    version: int
    expires_s: float
    threshold: int
    keys: list[str]


class _Status(msgspec.Struct):
    roles: list[_Role]
    keys: list[_Key]
    lacking: dict[str, int]
    published: dict[str, int] | None
    warnings: list[str]


@command(app, "get", example="firstline keys get")
def get(keys: KeysFolder, gateway: GatewayOptions) -> Report:
    """Show keys, versions and expiries, here and at a gateway. Exits 1 with a warning if one expires soon."""
    local = _local_status(keys.keyring())
    if gateway.found_url:
        with gateway.registry() as registry:
            remote = registry.status()
        local.published = {role.role: role.version for role in remote.roles}
        online = {role.role: role for role in remote.roles if role.role in roles.ONLINE}
        for role in local.roles:
            if (signed := online.get(role.role)) is not None:
                role.version, role.expires_s = signed.version, signed.expires_s
        local.warnings = list(dict.fromkeys([*remote.warnings, *local.warnings]))
    return Report(local, _status_text(local), exit_code=EXIT_FAILED if local.warnings else 0)


def _local_status(keyring: Keyring) -> _Status:
    """Returns what this machine knows; of the roles that a gateway signs for, version and expiry are 0."""
    root: Root = keyring.root().signed
    targets: Targets = keyring.targets().signed
    versions = {Root.type: root.version, Targets.type: targets.version}
    expiries_s = {Root.type: root.expires.timestamp(), Targets.type: targets.expires.timestamp()}
    files = {name: str(file) for name, file in keyring.files().items()}
    warnings = list(expiry_warnings(expiries_s, time.time()).values())
    if lacking := keyring.lacking():
        warnings.append(_missing_signatures(keyring))
    return _Status(
        roles=[
            _Role(name, versions.get(name, 0), expiries_s.get(name, 0.0), role.threshold, role.keyids)
            for name, role in root.roles.items()
        ],
        keys=[_Key(name, key, files.get(short(key))) for name, role in root.roles.items() for key in role.keyids],
        lacking=lacking,
        published=None,
        warnings=warnings,
    )


def _status_text(status: _Status) -> Iterator[str | Table]:
    here = {key.key for key in status.keys if key.here is not None}
    rows = (
        (
            role.role,
            str(role.version) if role.version else "-",
            date(role.expires_s or None),
            f"{role.threshold} of {len(role.keys)}",
            ", ".join(short(key) + "*" * (key in here) for key in role.keys),
        )
        for role in status.roles
    )
    yield table("role", ">version", "until", ">signatures", "keys (here: *)", rows=rows)
    if status.published is not None:
        versions = ", ".join(f"{role} {version}" for role, version in status.published.items()) or "nothing yet"
        yield f"Published: {versions}."
    for sentence in status.warnings:
        warn(sentence)


@command(app, "rotate", example="firstline keys rotate targets")
def rotate(
    role: Annotated[Literal["root", "targets", "online"], typer.Argument()],
    keys: RootKeys,
    gateway: GatewayOptions,
    key: Annotated[str, typer.Option(metavar="ID")] = "",
) -> Report:
    """Replace a key by a new one, and publish the change.

    Args:
        role: Role whose key is replaced.
        key: Id of the root or targets key, as `keys get` shows it; default: the first.
    """
    keyring = keys.keyring()
    if role == "online":
        if key:
            raise ConfigError("--key names a root or a targets key; leave it out, because there is one online key.")
        with gateway.registry() as registry:
            keyring.name_online(registry.online_key(fresh=True), time.time())
            return _published(keyring, registry)
    return _exchange(keyring, gateway, role, _complete_id(keyring, role, key), revoke=False)


@command(app, "revoke", example="firstline keys revoke 352907fd")
def revoke(
    key: Annotated[str, typer.Argument(metavar="ID", help="Id of the key, as `keys get` shows it.")],
    keys: RootKeys,
    gateway: GatewayOptions,
) -> Report:
    """Revoke a key that was lost or stolen, and replace it by a new one."""
    keyring = keys.keyring()
    root: Root = keyring.root().signed
    role = next((role for role in root.roles if any(short(one) == short(key) for one in root.roles[role].keyids)), "")
    if role in roles.ONLINE:
        raise ConfigError(f"{key} is the gateway's online key; exchange it with `firstline keys rotate online`.")
    if not role:
        raise ConfigError(f"The root names no key {key[:80]!a}; `firstline keys get` shows those that it names.")
    return _exchange(keyring, gateway, role, _complete_id(keyring, role, key), revoke=True)


@command(app, "renew", example="firstline keys renew")
def renew(keys: RootKeys, gateway: GatewayOptions) -> Report:
    """Sign root and targets again with the same keys, to extend their expiry; without root keys only the targets."""
    keyring = keys.keyring()
    root: Root = keyring.root().signed
    if keyring.signers(root.roles[Root.type].keyids):
        keyring.renew_root(time.time())
        _warn_of_draft(keyring)
    with gateway.registry() as registry:
        return _published(keyring, registry, renew=True)


@command(app, "sign", example="firstline keys sign --root-key /media/stick/root-b1ec3e2a.key")
def sign(keys: RootKeys, gateway: GatewayOptions) -> Report:
    """Add the signatures of this machine's root keys to a draft, and publish it once it is complete."""
    keyring = keys.keyring()
    keyring.sign(keyring.open_draft())
    return _publish_complete(keyring, gateway)


@command(app, "publish", example="firstline keys publish")
def publish(keys: SigningKeys, gateway: GatewayOptions) -> Report:
    """Publish this machine's signed metadata to a gateway, e.g. after its store was restored from a backup."""
    keyring = keys.keyring()
    with gateway.registry() as registry:
        return _published(keyring, registry, recover=True)


def _complete_id(keyring: Keyring, role: str, key: str) -> str:
    """Returns the complete id of a role's key; the first by default."""
    keyids: list[str] = keyring.root().signed.roles[role].keyids
    matches = [keyid for keyid in keyids if keyid.startswith(key)] if key else keyids[:1]
    if len(matches) != 1:
        raise ConfigError(f"{role} has no one key {key[:80]!a}; it has {', '.join(map(short, keyids))}.")
    return matches[0]


def _exchange(keyring: Keyring, gateway: GatewayOptions, role: str, old: str, *, revoke: bool) -> Report:
    file = keyring.replace_key(role, old, time.time(), never=old if revoke else "")
    typer.echo(f"{file} takes the place of {role} key {short(old)}.", err=True)
    _warn_of_draft(keyring)
    return _publish_complete(keyring, gateway, {"role": role, "key": old, "by": str(file)})


def _warn_of_draft(keyring: Keyring) -> None:
    """Prints the missing signatures of a draft, if there is one."""
    if keyring.draft.exists():
        warn(_missing_signatures(keyring))


def _missing_signatures(keyring: Keyring) -> str:
    most = max(keyring.lacking().values(), default=0)
    return (
        f"{keyring.draft} lacks {counted(most, 'signature')}: take it to a holder of another root key, for "
        "`firstline keys sign --root-key FILE`. Until then nothing changes."
    )


def _publish_complete(keyring: Keyring, gateway: GatewayOptions, replaced: Mapping[str, str] | None = None) -> Report:
    """Publishes if a gateway is named and no signature is missing."""
    lacking = keyring.lacking()
    if not lacking and gateway.found_url:
        with gateway.registry() as registry:
            return _published(keyring, registry, replaced)
    if not lacking:
        typer.echo("It is not published yet: `firstline keys publish --gateway URL`.", err=True)
    return Report({"replaced": replaced, "published": None, "lacking": lacking}, ())


def _published(
    keyring: Keyring,
    registry: Registry,
    replaced: Mapping[str, str] | None = None,
    *,
    renew: bool = False,
    recover: bool = False,
) -> Report:
    versions = publishing.publish(keyring, registry, time.time(), renew=renew, recover=recover)
    text = "The registry is up to date."
    if versions is not None:
        text = f"Published: root {versions[Root.type]}, targets {versions[Targets.type]}."
    return Report({"replaced": replaced, "published": versions, "lacking": keyring.lacking()}, text)


def _online_key(file: Path) -> OnlineKey:
    advice = "; fetch it from GET /fleet/v1/registry/online-key"
    return read_json_file(file, OnlineKey, _KEY_BYTES, "holds no gateway's online key", advice)
