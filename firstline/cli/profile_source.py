"""Reads a profile that a command line names (a file, or one stored by a gateway), and prints it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from firstline.cli.command import Report
from firstline.cli.options import GatewayOptions, is_name, is_there
from firstline_core.errors import ConfigError, ProtocolError
from firstline_core.profile.files import read_profile
from firstline_core.profile.profile import Profile
from firstline_core.profile.summary import profile_lines
from firstline_core.types import Sha256


def profile_in(file: Path) -> Profile:
    """The profile in a file.

    Raises:
        ConfigError: there is none.
    """
    try:
        found = read_profile(file)
    except ProtocolError as error:
        raise ConfigError(error.message) from error
    if found is None:
        raise ConfigError(
            f"There is no profile at {file}; `firstline profile create` makes one of this machine, "
            "`edge-agent profile create` one of a device."
        )
    return found


def load_profile(name: str, gateway: GatewayOptions) -> Profile:
    """Returns the profile in a file, else one that the gateway stores.

    Args:
        name: the file, or BUNDLE/VERSION/MACHINE.
        gateway: which is asked if there is no such file.

    Raises:
        ConfigError: there is no such file, and no gateway is asked.
        FirstlineError: the gateway refuses, or keeps no such profile.
    """
    file = Path(name)
    parts = name.split("/")
    if (is_there(file) and not file.is_dir()) or file.suffix == ".json":
        return profile_in(file)
    if len(parts) != 3 or not all(map(is_name, parts)) or not _is_version(parts[1]):
        raise ConfigError(
            f"There is no file {name[:200]}; check the path, or name a stored profile as BUNDLE/VERSION/MACHINE."
        )
    if not gateway.found_url:
        raise ConfigError(f"There is no file {name[:200]}, and no gateway is named; name one with --gateway.")
    with gateway.fleet() as fleet:
        return fleet.profiles.get(parts[0], int(parts[1]), parts[2])


def _is_version(text: str) -> bool:
    return text.isascii() and text.isdigit() and 1 <= len(text) <= 15 and int(text) > 0


def profile_report(profile: Profile, accuracy: Mapping[Sha256, float], last: str = "") -> Report:
    """Returns the report of a profile.

    Args:
        profile: to print.
        accuracy: share of right answers by `Model.digest`; if empty, as stated in the profile.
        last: printed as the last line of text.
    """
    lines = (*profile_lines(profile, accuracy or profile.accuracy), *([last] if last else ()))
    return Report(profile, lines)
