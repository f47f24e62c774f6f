"""`key create | list | revoke`: the API keys of applications, of people, and of devices without a certificate."""

from __future__ import annotations

import argparse
import os
import time
from getpass import getuser
from typing import TYPE_CHECKING, Any, Literal

from firstline_core.command_line import Commands, add_group
from firstline_core.errors import ConfigError
from firstline_core.telemetry.wording import iso_time
from firstline_core.units import DAY_S
from firstline_gateway.commands.base import add_action, settings_of, show, transaction

if TYPE_CHECKING:
    from sqlalchemy import Connection


_SCOPES = ("infer", "fleet", "admin", "delegate")  # those of `principals`, which need more imports


def add_commands(commands: Commands) -> None:
    """Adds them to the parser's."""
    actions = add_group(commands, "key", "create, list and revoke API keys")
    create = add_action(
        actions, "create", _create, "create an API key and print it once", "key create ops --scope fleet > ops.key"
    )
    create.add_argument("name", metavar="NAME", help="name of the key")
    create.add_argument(
        "--scope",
        action="append",
        choices=_SCOPES,
        help="permission, may be repeated: infer (the default), fleet (devices, rollouts, registry, loading of models, "
        "audit log; reads contracts), admin (change contracts), delegate (act for persons who sign in to a console)",
    )
    create.add_argument("--person", default="", help="user of the key, for the audit log")
    create.add_argument("--device", action="store_true", help="a key for the device NAME, which has no certificate")
    create.add_argument("--expires-days", type=float, metavar="DAYS", help="validity in days; unlimited if absent")
    create.add_argument("--requests-per-s", type=float, metavar="N", help="rate limit on each gateway")
    add_action(actions, "list", _list, "list names, scopes and dates", "key list")
    revoke = add_action(actions, "revoke", _revoke, "refuse a key from now on", "key revoke ops")
    revoke.add_argument("name", metavar="NAME")


def _create(arguments: argparse.Namespace) -> int:
    from firstline_gateway.identity import keys

    days, per_s = arguments.expires_days, arguments.requests_per_s
    if days is not None and not 0 < days <= 36_500:
        raise ConfigError(f"--expires-days is {days:g}; it must be above 0 and at most 36500.")
    if per_s is not None and not 0.001 <= per_s <= 1e6:
        raise ConfigError(f"--requests-per-s is {per_s:g}; it must be from 0.001 to 1000000.")
    scopes = tuple(dict.fromkeys(arguments.scope or ("infer",)))
    if arguments.device and scopes != ("infer",):
        raise ConfigError("A device's key has the scope infer and no other.")
    kind: Literal["application", "device"] = "device" if arguments.device else "application"
    now_s = time.time()
    expires_s = None if days is None else now_s + days * DAY_S
    with transaction(settings_of(arguments)) as connection:
        text = keys.create_key(
            connection,
            arguments.name,
            scopes,
            now_s=now_s,
            kind=kind,
            expires_s=expires_s,
            requests_per_s=per_s,
            person=arguments.person,
        )
        details = {"kind": kind, "scopes": list(scopes), "person": arguments.person}
        _note(connection, "key.create", arguments.name, now_s, details)
    created = {"name": arguments.name, "kind": kind, "scopes": list(scopes)}
    show(arguments, text, created | {"expires": _date(expires_s), "requests_per_s": per_s, "key": text})
    return 0


def _list(arguments: argparse.Namespace) -> int:
    from firstline_gateway.identity import keys

    with transaction(settings_of(arguments)) as connection:
        rows = [
            {
                "name": row.name,
                "kind": row.kind,
                "scopes": row.scopes.split(),
                "created": _date(row.created_s),
                "expires": _date(row.expires_s),
                "requests_per_s": row.requests_per_s,
            }
            for row in keys.list_keys(connection)
        ]
    text = "\n".join(
        f"{row['kind']:12} {row['name']}  {','.join(row['scopes'])}  {row['created']}"
        + (f"  expires {row['expires']}" if row["expires"] else "")
        + (f"  {row['requests_per_s']:g} a second" if row["requests_per_s"] else "")
        for row in rows
    )
    show(arguments, text or "no keys", {"keys": rows})
    return 0


def _revoke(arguments: argparse.Namespace) -> int:
    from firstline_gateway.identity import keys

    with transaction(settings_of(arguments)) as connection:
        now_s = time.time()
        keys.revoke_key(connection, arguments.name, now_s)
        _note(connection, "key.revoke", arguments.name, now_s, {})
    show(arguments, f"revoked {arguments.name}", {"revoked": arguments.name})
    return 0


def _note(connection: Connection, action: str, name: str, now_s: float, details: dict[str, Any]) -> None:
    """Adds an entry to the audit log; the actor is the user of this machine."""
    from firstline_gateway import audit_log

    try:
        user = getuser()
    except (KeyError, OSError):  # a container's user without an entry in passwd; OSError from Python 3.13 on
        user = f"uid:{os.getuid()}"
    audit_log.add(connection, now_s, f"user:{user}", action, f"key:{name}", **details)


def _date(wall_s: float | None) -> str | None:
    return None if wall_s is None else iso_time(wall_s)
