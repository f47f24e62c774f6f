"""The profile that a command line names: in a file, stored by a gateway, or measured by a device; and its report.

`firstline profile create BUNDLE --on DEVICE` lets a device measure, and follows it until it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import typer
from msgspec.structs import replace

from firstline.cli.command import Report
from firstline.cli.interrupt import EXIT_INTERRUPTED, pause
from firstline.cli.options import GatewayOptions, is_name
from firstline.cli.output import progress, say
from firstline_core.bundle.manifest import MANIFEST_NAME
from firstline_core.bundle.store import manifest_in
from firstline_core.errors import CapacityError, ConfigError, LinkError, ProtocolError
from firstline_core.fleet.profiles import NewProfileRequest, ProfileRequest
from firstline_core.fleet.twin import ProfilingState
from firstline_core.profile.files import read_profile
from firstline_core.profile.profile import Profile
from firstline_core.profile.summary import accuracies, profile_lines
from firstline_core.types import Sha256

_LOOK_S = 1.0


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
    if (file.exists() and not file.is_dir()) or file.suffix == ".json":
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
    shown = replace(profile, accuracy=accuracy or profile.accuracy)
    return Report(profile, (*profile_lines(shown), *([last] if last else ())))


class Named(NamedTuple):
    """The bundle that a device must measure.

    Attributes:
        name: of it.
        version: 0 if only the name is known.
        accuracy: share of right answers by `Model.digest`, as its manifest states it; empty if only the name is known.
    """

    name: str
    version: int = 0
    accuracy: Mapping[Sha256, float] = MappingProxyType({})


def bundle_named(bundle: Path) -> Named:
    """Returns the bundle in a folder; text that names no folder with a manifest is the bundle's name.

    Raises:
        ConfigError: the folder's manifest cannot be read, or no bundle can have that name.
    """
    if not (bundle / MANIFEST_NAME).exists():
        if not is_name(str(bundle)):
            raise ConfigError(
                f"{str(bundle)[:200]!a} is neither a bundle's folder nor the name of a bundle; name one of them."
            )
        return Named(str(bundle))
    found = manifest_in(bundle)
    if found is None:
        raise ConfigError(f"{bundle} is not a bundle: its {MANIFEST_NAME} cannot be read; copy the bundle again.")
    return Named(found.name, found.version, accuracies(found))


def profile_on(
    device: str, request: NewProfileRequest, gateway: GatewayOptions, *, wait: bool, accuracy: Mapping[Sha256, float]
) -> Report:
    """Requests a profile from a device, and waits for it."""
    with gateway.fleet() as fleet:
        before = fleet.profiles.latest(request.bundle, device)
        found = fleet.profiles.ask(device, request)
        if not wait:
            text = f"{found.device} is asked for a profile of {found.desired.bundle}: {found.state}. {_again(found)}"
            return Report(found, text)
        try:
            refused = followed(fleet.profiles.request, found)
        except KeyboardInterrupt:
            say(f"The request stays valid. {_again(found)}", err=True)
            raise typer.Exit(EXIT_INTERRUPTED) from None
        entry = fleet.profiles.latest(request.bundle, device)
        if refused or entry is None or (before is not None and entry.kept_s == before.kept_s):
            say(f"{device}: {refused or 'the request was cancelled.'}", err=True)
            raise typer.Exit(1)
        profile = fleet.profiles.get(entry.bundle, entry.version, device)
    text = f"Kept by the gateway: firstline profile get {profile.bundle} {profile.version} {device}"
    return profile_report(profile, accuracy, text)


def followed(current: Callable[[ProfileRequest], ProfileRequest | None], found: ProfileRequest) -> str:
    """Reports progress until the request ends; an unreachable gateway is asked again.

    Args:
        current: returns the current state of a request; None if it is fulfilled or cancelled.
        found: its state so far.

    Returns:
        Why the device refuses, in a sentence; "" if it does not.
    """
    shown = trouble = ""
    latest: ProfileRequest | None = found
    with progress(f"Profiling on {found.device}") as bar:
        while latest is not None:
            if latest.state is ProfilingState.REFUSED:
                return latest.message
            if latest.total:
                bar(latest.done, latest.total)
            shown = _show(_sentence(latest), shown)
            pause(_LOOK_S)
            try:
                latest = current(latest)
                trouble = ""
            except (LinkError, CapacityError) as error:
                trouble = _show(f"{error.message} Retrying.", trouble)
    return ""


def _show(sentence: str, before: str) -> str:
    """Prints a sentence if it differs from the one before; returns it."""
    if sentence != before:
        say(sentence, err=True)
    return sentence


def _sentence(found: ProfileRequest) -> str:
    sentences = {
        ProfilingState.MEASURING: f"{found.device} measures {found.desired.bundle}.",
        ProfilingState.UPLOADING: f"{found.device} has measured, and sends the profile.",
    }
    return found.message or sentences.get(found.state, f"{found.device} does others first.")


def _again(found: ProfileRequest) -> str:
    request = found.desired
    named = f"{request.bundle} --on {found.device}"
    version = f" --version {request.version}" if request.version else ""
    command = f"firstline profile create {named}{version}{' --quick' if request.quick else ''}"
    return f"`{command}` follows it, `firstline profile cancel {named}` cancels it."
