"""`ca init | get | prepare | switch | retire`: the authority that signs devices' certificates."""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from firstline_core.command_line import Commands, add_group
from firstline_core.errors import ConfigError
from firstline_gateway.commands.base import add_action, settings_of, show

if TYPE_CHECKING:
    from firstline_gateway.identity.ca import Authority


def add_commands(commands: Commands) -> None:
    """Adds the commands to a parser."""
    actions = add_group(commands, "ca", "create, show and replace the certificate authority")

    def add(name: str, purpose: str, options: str = "") -> argparse.ArgumentParser:
        return add_action(actions, name, partial(_run, name), purpose, f"ca {name}{options}")

    _add_files(add("init", "create the authority now, instead of when it is first needed"))
    add("get", "show the trusted authorities and their expiry")
    _add_files(add("prepare", "add a trusted authority that will sign later", " --certificate ca.pem --key ca.key"))
    add("switch", "sign with the next authority from now on")
    add("retire", "stop trusting the previous authority")


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--certificate", type=Path, metavar="FILE", help="import an own authority (PEM) instead of creating one"
    )
    parser.add_argument("--key", type=Path, metavar="FILE", help="its key (PEM, EC, not encrypted)")


def _run(verb: str, arguments: argparse.Namespace) -> int:
    """Carries out a command, and prints the authorities."""
    from firstline_core.protocol.enrolment import public_key_hash
    from firstline_gateway.identity import authorities

    directory = Path(settings_of(arguments).identity.directory)
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
        f"{'signs' if row['signs'] else 'believed':9} {row['subject']}  until {row['until']}" for row in rows
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


def _imported(arguments: argparse.Namespace) -> Authority | None:
    """Returns the authority that the command line names; None if it names none."""
    from firstline_gateway.identity import authorities, ca

    if (arguments.certificate is None) != (arguments.key is None):
        raise ConfigError("Give --certificate and --key together, or neither.")
    if arguments.certificate is None:
        return None
    return ca.load_authority(authorities.read(arguments.certificate), authorities.read(arguments.key))
