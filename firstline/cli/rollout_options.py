"""Options of a rollout, and the definition for the gateway."""

from __future__ import annotations

import math
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from firstline.cli.fleet_options import api_key, gateway_named
from firstline.release.registry import open_registry
from firstline_core.errors import ConfigError

_FILE_BYTES = 256 * 1024
DURATIONS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
"""Units of time, the shortest first."""

BundleArgument = Annotated[str, typer.Argument(help="Name of the bundle or the configuration.")]
VersionArgument = Annotated[int, typer.Argument(min=1, help="Pushed version.")]
StagesOption = Annotated[
    str,
    typer.Option(metavar="LIST", help="Shares of the fleet (percent), e.g. 1,10,100; each includes the one before."),
]
SoakOption = Annotated[str, typer.Option(metavar="TIME", help="How long each stage is observed, e.g. 90m, 8h, 2d.")]
PaceOption = Annotated[
    float | None, typer.Option(min=0.001, help="Devices that are updated in a minute; default: all at once.")
]
SelectorOption = Annotated[str, typer.Option(help="Only devices with these tags, e.g. site=berlin,!test.")]
HeldOption = Annotated[float, typer.Option(min=0, max=90, help="Percentage held back until all stages are judged.")]
FileOption = Annotated[
    Path | None,
    typer.Option(
        "--file", metavar="TOML", help="File with parts of the definition (docs/fleet.md); it overrides the options."
    ),
]
ConfigurationOption = Annotated[
    bool, typer.Option("--configuration", help="Roll out a configuration (see `config`) instead of a bundle.")
]
UnseenOption = Annotated[
    bool,
    typer.Option("--promote-unseen", help="Promote at the end even without enough observations, for small fleets."),
]


class Where(NamedTuple):
    """The gateway and the API key."""

    gateway: str
    key_file: str
    ca: Path | None


def said(stages: str, soak: str, per_minute: float | None, selector: str, held_back: float) -> dict[str, Any]:
    """Returns the part of the definition that the options give.

    Raises:
        ConfigError: they cannot be read.
    """
    try:
        shares = [float(part) / 100 for part in stages.split(",")]
    except ValueError:
        raise ConfigError(
            f"--stages takes percentages with commas between, such as 1,10,100; not {stages!a}."
        ) from None
    if not all(0 < share <= 1 for share in shares) or any(after <= before for before, after in pairwise(shares)):
        raise ConfigError(
            f"--stages takes growing percentages up to 100, each with the devices of those before; not {stages!a}."
        )
    each = {"soak_s": _seconds(soak)} | ({"per_minute": per_minute} if per_minute is not None else {})
    return {
        "stages": [{"share": share} | each for share in shares],
        "selector": selector,
        "held_back": held_back / 100,
    }


def definition(options: dict[str, Any], bundle: str, version: int, where: Where) -> tuple[dict[str, Any], int | None]:
    """Returns the complete definition, with the registry's data, and the most bytes that a device fetches."""
    made = {"bundle": bundle, "version": version} | options
    if "manifest_sha256" in options:
        return made, None
    with open_registry(gateway_named(where.gateway), api_key(where.key_file), where.ca) as registry:
        if options.get("what") == "configuration":
            signed = registry.configuration(bundle, version)
            return made | {"manifest_sha256": signed.sha256}, signed.size_bytes
        entry = registry.bundle(bundle, version)
    return made | {"manifest_sha256": entry.manifest_sha256}, entry.size_bytes


def read_file(file: Path | None, *, unseen: bool, configuration: bool) -> dict[str, Any]:
    """Returns the definition in a file, together with the options.

    Raises:
        ConfigError: it cannot be read.
    """
    found = _toml(file) if file is not None else {}
    rules = found.get("rules", {})
    if unseen and isinstance(rules, dict):  # the gateway says of anything else what is wrong with it
        found["rules"] = {"promote_unseen": True} | rules
    return found | ({"what": "configuration"} if configuration else {})


def _toml(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            content = stream.read(_FILE_BYTES + 1)
        if len(content) > _FILE_BYTES:
            raise ConfigError(f"{file} has more than {_FILE_BYTES} bytes, and is no definition of a rollout.")
        return tomllib.loads(content.decode())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read as TOML: {error}.") from error


def _seconds(text: str) -> float:
    try:
        found = float(text[:-1]) * DURATIONS_S[text[-1:]]
    except (ValueError, KeyError):
        found = -1.0
    if not 0 <= found < math.inf:
        raise ConfigError(f"{text!a} is no time; write 90s, 30m, 8h or 2d.")
    return found
