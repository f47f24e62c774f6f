"""Settings of an agent that travel as models do: a signed file of TOML with a name and a version. A document, no I/O.

    name = "quiet-nights"
    version = 2

    [policy]
    min_threshold = 0.97

    [budget]
    bytes_per_day = 20_000_000

The keys are those of the agent's own file, and mean what they mean there; what is not named stays as the device has it,
so that one without tables gives a device its own settings back.
What is not among them cannot be set from afar, whoever signs: addresses, identities, paths, limits of memory and disk.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from firstline_core.errors import ConfigError
from firstline_core.fleet.twin import Version
from firstline_core.routing.policies import Kind
from firstline_core.storage import settings
from firstline_core.types import NAME_PATTERN, Name

LIMIT_BYTES = 16 * 1024

_PATH = re.compile(r"configurations/(?P<name>[^/@]+)@(?P<version>[1-9][0-9]{0,14})\.toml")

_Amount = Annotated[float, Meta(ge=0, le=1e15)] | UnsetType
_Whole = Annotated[int, Meta(ge=0, le=2**53)] | UnsetType
_Share = Annotated[float, Meta(ge=0, le=1)] | UnsetType


class _Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file; an unknown key is an error."""


class Policy(_Section, frozen=True, kw_only=True):
    """Who decides which answers are kept, and from which score on."""

    kind: Kind | UnsetType = UNSET
    least_value: _Share = UNSET
    threshold: float | UnsetType = UNSET
    rate: _Share = UNSET
    threshold_cross_entropy: float | UnsetType = UNSET
    min_time_between_escalations_s: _Amount = UNSET
    min_threshold: float | UnsetType = UNSET


class Budget(_Section, frozen=True, kw_only=True):
    """What a device may spend in an hour and a day of UTC; 0 is no limit."""

    bytes_per_hour: _Whole = UNSET
    bytes_per_day: _Whole = UNSET
    joules_per_hour: _Amount = UNSET
    joules_per_day: _Amount = UNSET
    money_per_hour: _Amount = UNSET
    money_per_day: _Amount = UNSET


class Costs(_Section, frozen=True, kw_only=True):
    """Prices; what the device itself takes (joules, heat) is its own to know."""

    worth: Annotated[float, Meta(gt=0, le=1e15)] | UnsetType = UNSET
    money_per_request: _Amount = UNSET
    money_per_mib: _Amount = UNSET
    money_per_joule: _Amount = UNSET
    metered_factor: Annotated[float, Meta(ge=1, le=1000)] | UnsetType = UNSET


class Audit(_Section, frozen=True, kw_only=True):
    """How many kept answers are checked, and what an alarm does."""

    per_hour: _Amount = UNSET
    bytes_per_hour: _Amount = UNSET
    max_share: Annotated[float, Meta(gt=0, le=1)] | UnsetType = UNSET
    on_alarm: Literal["tighten", "escalate"] | UnsetType = UNSET
    escalations_per_hour: _Amount = UNSET


class Configuration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One document; a section's keys that are not set stay as the device has them."""

    name: Name
    version: Version
    policy: Policy = Policy()
    budget: Budget = Budget()
    costs: Costs = Costs()
    audit: Audit = Audit()

    @property
    def changes(self) -> dict[str, dict[str, object]]:
        """What it sets, by section and key."""
        sections = {name: getattr(self, name) for name in SECTIONS}
        set_ = {
            name: {
                key: getattr(section, key) for key in section.__struct_fields__ if getattr(section, key) is not UNSET
            }
            for name, section in sections.items()
        }
        return {name: values for name, values in set_.items() if values}


SECTIONS = ("policy", "budget", "costs", "audit")
"""Tables that a configuration may have."""
KEYS = tuple(
    f"{name}.{key}"
    for name, section in zip(SECTIONS, (Policy, Budget, Costs, Audit), strict=True)
    for key in section.__struct_fields__
)
"""All that can be set from afar, such as "budget.bytes_per_day"."""


def parse_configuration(content: bytes, where: str) -> Configuration:
    """Reads a document.

    Args:
        content: TOML, at most `LIMIT_BYTES`.
        where: whence it came, for the error.

    Raises:
        ConfigError: it is too long, no TOML, or sets what cannot be set from afar.
    """
    if len(content) > LIMIT_BYTES:
        raise ConfigError(f"{where} has more than {LIMIT_BYTES} bytes, and is no configuration.")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where} is not UTF-8 text; save it as UTF-8.") from error
    found = settings.load(Configuration, file=Path(where), text=text)
    for section, values in found.changes.items():
        for key, value in values.items():
            if value != value:  # noqa: PLR0124 (what is no number is not equal to itself)
                raise ConfigError(f"{where} sets {section}.{key} to what is no number; name one, or leave it out.")
    return found


def configuration_path(name: str, version: int) -> str:
    """Where a configuration is among the signed targets: no bundle's path, see `target.named_by`."""
    return f"configurations/{name}@{version}.toml"


def configuration_at(path: str) -> tuple[str, int] | None:
    """Name and version of the configuration that a target is; None where it is none."""
    match = _PATH.fullmatch(path)
    if match is None or re.match(NAME_PATTERN, match["name"]) is None:
        return None
    return match["name"], int(match["version"])
