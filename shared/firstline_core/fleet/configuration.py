"""Fleet-managed settings of an agent: a signed TOML file with a name and a version. No I/O.

    name = "quiet-nights"
    version = 2

    [policy]
    min_threshold = 0.97

    [budget]
    bytes_per_day = 20_000_000

The keys are those of the agent's own file, with the same meaning. Keys that are not named keep the device's own value,
so that a document without tables restores the settings of the device. No other key can be set remotely, even by a
signed document: no addresses, identities, paths, or limits of memory and disk.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, to_builtins

from firstline_core.errors import ConfigError
from firstline_core.fleet.twin import Version
from firstline_core.routing.policy import PolicyKind
from firstline_core.storage import settings
from firstline_core.storage.files import naming
from firstline_core.storage.setting_places import Sources
from firstline_core.types import NAME_PATTERN, ModelKey, Name

LIMIT_BYTES = 16 * 1024

_PATH = re.compile(r"configurations/(?P<name>[^/@]+)@(?P<version>[1-9][0-9]{0,14})\.toml")

_Amount = Annotated[float, Meta(ge=0, le=1e15)] | UnsetType
_Whole = Annotated[int, Meta(ge=0, le=2**53)] | UnsetType
_Share = Annotated[float, Meta(ge=0, le=1)] | UnsetType


class _Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file; an unknown key is an error."""


class Policy(_Section, frozen=True, kw_only=True):
    """The policy that accepts edge answers, and its threshold."""

    kind: PolicyKind | UnsetType = UNSET
    least_value: _Share = UNSET
    threshold: float | UnsetType = UNSET
    rate: _Share = UNSET
    threshold_cross_entropy: float | UnsetType = UNSET
    min_time_between_escalations_s: _Amount = UNSET
    min_threshold: float | UnsetType = UNSET


class Budget(_Section, frozen=True, kw_only=True):
    """The budget of a device per hour and per day (UTC); 0 for no limit."""

    bytes_per_hour: _Whole = UNSET
    bytes_per_day: _Whole = UNSET
    joules_per_hour: _Amount = UNSET
    joules_per_day: _Amount = UNSET
    money_per_hour: _Amount = UNSET
    money_per_day: _Amount = UNSET


class Costs(_Section, frozen=True, kw_only=True):
    """Prices of traffic and runs. The device itself knows its consumption of energy."""

    worth: Annotated[float, Meta(gt=0, le=1e15)] | UnsetType = UNSET
    money_per_request: _Amount = UNSET
    money_per_mib: _Amount = UNSET
    money_per_joule: _Amount = UNSET
    metered_factor: Annotated[float, Meta(ge=1, le=1000)] | UnsetType = UNSET


class Audit(_Section, frozen=True, kw_only=True):
    """The rate of audits, and the effect of an alarm."""

    per_hour: _Amount = UNSET
    bytes_per_hour: _Amount = UNSET
    max_share: Annotated[float, Meta(gt=0, le=1)] | UnsetType = UNSET
    spacing_s: Annotated[float, Meta(ge=0, le=3600)] | UnsetType = UNSET
    on_alarm: Literal["tighten", "escalate"] | UnsetType = UNSET
    escalations_per_hour: _Amount = UNSET


class Configuration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One document. Keys that are not set keep the device's own value."""

    name: Name
    version: Version
    policy: Policy = Policy()
    budget: Budget = Budget()
    costs: Costs = Costs()
    audit: Audit = Audit()

    @property
    def changes(self) -> dict[str, dict[str, object]]:
        """Returns the values that the document sets, by section and key."""
        sections: dict[str, dict[str, object]] = {name: to_builtins(getattr(self, name)) for name in SECTIONS}
        return {name: values for name, values in sections.items() if values}


SECTIONS = ("policy", "budget", "costs", "audit")
"""Tables that a configuration can have."""
KEYS = tuple(
    f"{name}.{key}"
    for name, section in zip(SECTIONS, (Policy, Budget, Costs, Audit), strict=True)
    for key in section.__struct_fields__
)
"""All keys that can be set remotely, such as "budget.bytes_per_day"."""


def parse_configuration(content: bytes, where: str) -> Configuration:
    """Parses a document.

    Args:
        content: TOML, at most `LIMIT_BYTES`.
        where: its origin, for the error.

    Raises:
        ConfigError: it is too long, not TOML, or sets a key that cannot be set remotely.
    """
    if len(content) > LIMIT_BYTES:
        raise ConfigError(f"{where} has more than {LIMIT_BYTES} bytes, and is no configuration.")
    with naming(where):
        text = content.decode("utf-8-sig")
    configuration = settings.load(Configuration, Sources(Path(where), text))
    for section, values in configuration.changes.items():
        for key, value in values.items():
            if value != value:  # noqa: PLR0124 (NaN is not equal to itself)
                raise ConfigError(f"{where} sets {section}.{key} to what is no number; name one, or leave it out.")
    return configuration


def configuration_path(name: str, version: int) -> str:
    """Returns the target path of a configuration, which no bundle uses (see `target.bundle_of_target`)."""
    return f"configurations/{name}@{version}.toml"


def configuration_at(path: str) -> ModelKey | None:
    """Returns the name and version of the configuration at a target path; None for another target."""
    match = _PATH.fullmatch(path)
    if match is None or re.match(NAME_PATTERN, match["name"]) is None:
        return None
    return ModelKey(match["name"], int(match["version"]))
