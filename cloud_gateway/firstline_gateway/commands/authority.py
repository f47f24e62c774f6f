"""`ca init | get | prepare | switch | retire`: the authority that signs devices' certificates."""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from firstline_core.command_line import Commands, add_group
from firstline_core.errors import ConfigError
from firstline_core.telemetry.wording import counted, iso_time
from firstline_core.units import DAY_S
from firstline_gateway.commands.base import add_action, settings_of, show, transaction

if TYPE_CHECKING:
    from firstline_gateway.identity.ca import Authority
    from firstline_gateway.settings.settings import Settings

_NAMED = 3


def add_commands(commands: Commands) -> None:
    """Adds the commands to a parser."""
    actions = add_group(commands, "ca", "create, show and replace the certificate authority")

    def add(name: str, purpose: str, options: str = "") -> argparse.ArgumentParser:
        return add_action(actions, name, partial(_run, name), purpose, f"ca {name}{options}")

    _add_files(add("init", "create the authority now, instead of when it is first needed"))
    add("get", "show the trusted authorities and their expiry")
    _add_files(add("prepare", "add a trusted authority that will sign later", " --certificate ca.pem --key ca.key"))
    for name, purpose in (
        ("switch", "sign with the next authority from now on"),
        ("retire", "stop trusting the previous authority"),
    ):
        add(name, purpose).add_argument(
            "--force", action="store_true", help="even if devices have not renewed yet, which then have to join again"
        )


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--certificate", type=Path, metavar="FILE", help="import an own authority (PEM) instead of creating one"
    )
    parser.add_argument("--key", type=Path, metavar="FILE", help="its key (PEM, EC, not encrypted)")


def _run(verb: str, arguments: argparse.Namespace) -> int:
    """Carries out a command, and prints the authorities."""
    from firstline_core.protocol.enrolment import public_key_hash
    from firstline_gateway.identity import authorities

    settings = settings_of(arguments)
    directory = Path(settings.identity.directory)
    if verb in ("switch", "retire") and not arguments.force:
        _check_renewed(settings, directory, retiring=verb == "retire")
    _change(verb, arguments, directory)
    trusted = authorities.open_authorities(directory, time.time())
    rows = [
        {
            "subject": authority.certificate.subject.rfc4514_string(),
            "signs": authority is trusted.active,
            "until": authority.certificate.not_valid_after_utc.isoformat(),
            "public_key_sha256": public_key_hash(authority.pem).hex(),
        }
        for authority in trusted
    ]
    text = "\n".join(
        f"{'signs' if row['signs'] else 'trusted':9} {row['subject']}  until {row['until']}" for row in rows
    )
    show(arguments, text, {"directory": str(directory), "authorities": rows})
    return 0


def _change(verb: str, arguments: argparse.Namespace, directory: Path) -> None:
    from firstline_gateway.identity import authorities, ca

    match verb:
        case "init":
            if (imported := _imported(arguments)) is not None:
                authorities.import_authority(directory, imported)
        case "get":
            if not (directory / authorities.BUNDLE_FILE).exists():
                raise ConfigError(
                    f"There is no certificate authority in the folder {directory} yet; `firstline-gateway ca init` "
                    "with the same --config creates it."
                )
        case "prepare":
            now_s = time.time()
            authorities.open_authorities(directory, now_s)
            authority = _imported(arguments) or ca.create_authority(ca.new_key(), now_s)
            authorities.prepare_next(directory, authority, now_s)
        case "switch":
            authorities.switch(directory)
        case "retire":
            authorities.retire(directory)


def _check_renewed(settings: Settings, directory: Path, *, retiring: bool) -> None:
    """Checks that no device would lose its way to the gateway.

    Raises:
        ConfigError: devices have not renewed since the authority that is to replace the other one is there.
    """
    from firstline_gateway.identity import authorities
    from firstline_gateway.identity.enrolment import not_renewed_since

    since_s = authorities.trusted_since_s(directory, retiring=retiring)
    if since_s is None or not authorities.had_store(settings.identity):
        return
    with transaction(settings) as connection:
        usable_s = time.time() - settings.identity.renew_grace_days * DAY_S
        names = not_renewed_since(connection, since_s, usable_s)
    if names:
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        raise ConfigError(
            f"{counted(len(names), 'device')} ({', '.join(names[:_NAMED])}{more}) renewed no certificate since "
            f"{iso_time(since_s)}, and would have to join again. Wait, or revoke those that do not return; --force "
            "goes on without them."
        )


def _imported(arguments: argparse.Namespace) -> Authority | None:
    """Returns the authority that the command line names; None if it names none."""
    from firstline_gateway.identity import authorities, ca

    if (arguments.certificate is None) != (arguments.key is None):
        raise ConfigError("Give --certificate and --key together, or neither.")
    if arguments.certificate is None:
        return None
    certificate, key = authorities.read(arguments.certificate), authorities.read(arguments.key)
    try:
        return ca.load_authority(certificate, key)
    except ConfigError as error:
        named = f"--certificate {arguments.certificate} and --key {arguments.key}"
        raise ConfigError(f"{named} cannot be used: {error.message}") from error
