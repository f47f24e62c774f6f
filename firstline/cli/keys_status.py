"""`firstline keys status`: the signing keys on this machine and at a gateway, and upcoming expiries."""

from __future__ import annotations

import time

import msgspec
import typer
from tuf.api.metadata import Root, Targets

from firstline.cli.dates import date
from firstline.cli.fleet_options import (
    KEYS,
    CaOption,
    GatewayOption,
    KeyFileOption,
    KeysOption,
    keyring_of,
    registry_at,
)
from firstline.cli.output import Output, OutputOption, print_json, print_table, table, warn
from firstline.release import roles
from firstline.release.keyfile import short
from firstline.release.keyring import Keyring
from firstline_core.fleet.registry import expiry_warnings
from firstline_core.telemetry.wording import counted


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


class _Found(msgspec.Struct):
    roles: list[_Role]
    keys: list[_Key]
    lacking: dict[str, int]
    published: dict[str, int] | None
    warnings: list[str]


def status(
    *,
    keys: KeysOption = KEYS,
    gateway: GatewayOption = "",
    key_file: KeyFileOption = "",
    ca: CaOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show keys, versions and expiries, here and at a gateway. Exits 1 with a warning if one expires soon."""
    found = _found(keyring_of(keys, ""))
    if gateway:
        with registry_at(gateway, key_file, ca) as registry:
            there = registry.status()
        found.published = {role.role: role.version for role in there.roles}
        for role in found.roles:
            if role.role in roles.ONLINE:
                role.version, role.expires_s = next(
                    ((one.version, one.expires_s) for one in there.roles if one.role == role.role), (0, 0.0)
                )
        found.warnings = list(dict.fromkeys([*there.warnings, *found.warnings]))
    if output is Output.JSON:
        print_json(found)
    else:
        made = table("role", ">version", "until", ">signatures", "keys (here: *)")
        here = {key.key for key in found.keys if key.here is not None}
        for role in found.roles:
            named = ", ".join(short(key) + "*" * (key in here) for key in role.keys)
            version = str(role.version) if role.version else "-"
            made.add_row(
                role.role, version, date(role.expires_s or None), f"{role.threshold} of {len(role.keys)}", named
            )
        print_table(made)
        if found.published is not None:
            said = ", ".join(f"{role} {version}" for role, version in found.published.items()) or "nothing yet"
            typer.echo(f"Published: {said}.")
        for sentence in found.warnings:
            warn(sentence)
    if found.warnings:
        raise typer.Exit(1)


def tell_draft(keyring: Keyring) -> None:
    """Prints the missing signatures of a draft, if there is one."""
    if keyring.draft.exists():
        warn(_lacking(keyring))


def _lacking(keyring: Keyring) -> str:
    most = max(keyring.lacking().values(), default=0)
    return (
        f"{keyring.draft} lacks {counted(most, 'signature')}: take it to whoever has another root key, for "
        "`firstline keys sign --root-key FILE`. Until then nothing changes."
    )


def _found(keyring: Keyring) -> _Found:
    root: Root = keyring.root().signed
    targets: Targets = keyring.targets().signed
    files = keyring.files()
    signed = {Root.type: root, Targets.type: targets}
    found = _Found([], [], keyring.lacking(), None, [])
    for name, role in root.roles.items():
        known = signed.get(name)
        ends_s = known.expires.timestamp() if known is not None else 0.0
        found.roles.append(_Role(name, known.version if known is not None else 0, ends_s, role.threshold, role.keyids))
        for keyid in role.keyids:
            file = files.get(short(keyid))
            found.keys.append(_Key(name, keyid, str(file) if file is not None else None))
    ends = {name: known.expires.timestamp() for name, known in signed.items()}
    found.warnings += expiry_warnings(ends, time.time()).values()
    if found.lacking:
        found.warnings.append(_lacking(keyring))
    return found
