"""`ca init | show | next | switch | retire`: the authority that devices' certificates come from."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firstline_core.errors import ConfigError
from firstline_core.protocol.enrolment import public_key_hash
from firstline_gateway.commands.base import add_command, settings_of, show

if TYPE_CHECKING:
    from firstline_gateway.identity.ca import Authority


def add_commands(commands: Any) -> None:
    """Adds them to the parser's."""
    parser = commands.add_parser("ca", help="create, show and replace the certificate authority")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    _with_files(add_command(actions, "init", _init, "create the authority now, instead of when it is first needed"))
    add_command(actions, "show", _show, "show the trusted authorities and their expiry")
    _with_files(add_command(actions, "next", _next, "add a trusted authority that will sign later"))
    add_command(actions, "switch", _switch, "sign with the next authority from now on")
    add_command(actions, "retire", _retire, "stop trusting the previous authority")


def _with_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--certificate", type=Path, metavar="FILE", help="import an own authority (PEM) instead of creating one"
    )
    parser.add_argument("--key", type=Path, metavar="FILE", help="its key (PEM, EC, not encrypted)")


def _init(arguments: argparse.Namespace) -> int:
    from firstline_gateway.identity import authorities

    directory = _directory(arguments)
    own = _own(arguments)
    if own is not None:
        authorities.import_authority(directory, own)
    return _shown(arguments, directory)


def _show(arguments: argparse.Namespace) -> int:
    from firstline_gateway.identity import authorities

    directory = _directory(arguments)
    if not (directory / authorities.BUNDLE_FILE).exists():
        raise ConfigError(f"There is no authority in {directory} yet; `firstline-gateway ca init` makes one.")
    return _shown(arguments, directory)


def _next(arguments: argparse.Namespace) -> int:
    from firstline_gateway.identity import authorities, ca

    directory = _directory(arguments)
    now_s = time.time()
    authorities.open_authorities(directory, now_s)
    authorities.prepare_next(directory, _own(arguments) or ca.create_authority(ca.new_key(), now_s), now_s)
    return _shown(arguments, directory)


def _switch(arguments: argparse.Namespace) -> int:
    from firstline_gateway.identity import authorities

    directory = _directory(arguments)
    authorities.switch(directory)
    return _shown(arguments, directory)


def _retire(arguments: argparse.Namespace) -> int:
    from firstline_gateway.identity import authorities

    directory = _directory(arguments)
    authorities.retire(directory)
    return _shown(arguments, directory)


def _own(arguments: argparse.Namespace) -> Authority | None:
    """The authority that the command line names, None where it names none."""
    from firstline_gateway.identity import authorities, ca

    if (arguments.certificate is None) != (arguments.key is None):
        raise ConfigError("Give --certificate and --key together, or neither.")
    if arguments.certificate is None:
        return None
    return ca.load_authority(authorities.read(arguments.certificate), authorities.read(arguments.key))


def _directory(arguments: argparse.Namespace) -> Path:
    return Path(settings_of(arguments).identity.directory)


def _shown(arguments: argparse.Namespace, directory: Path) -> int:
    from firstline_gateway.identity import authorities

    found = authorities.open_authorities(directory, time.time())
    rows = [
        {
            "subject": authority.certificate.subject.rfc4514_string(),
            "signs": authority is found.active,
            "until": authority.certificate.not_valid_after_utc.isoformat(),
            "public_key_sha256": public_key_hash(authority.pem).hex(),
        }
        for authority in found
    ]
    text = "\n".join(
        f"{'signs' if row['signs'] else 'believed':9} {row['subject']}  until {row['until']}" for row in rows
    )
    show(arguments, text, {"directory": str(directory), "authorities": rows})
    return 0
