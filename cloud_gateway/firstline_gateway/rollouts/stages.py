"""Which devices a stage takes, which it leaves alone as its control, and in which order. Pure functions of names.

Chance divides the devices: each has a place in [0, 1) by a hash of the rollout's salt and its name. A stage takes the
places below its share, so that a growing share keeps its devices, and devices that join later have a place too.
The places at the upper end are held back until the last stage was judged: without them it would have no control group.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Annotated

from msgspec import Meta, Struct

from firstline_core.errors import RequestError
from firstline_core.fleet.twin import Window
from firstline_gateway.fleet.selector import parse_selector

_PLACES = 1 << 64
Share = Annotated[float, Meta(gt=0, le=1)]


class Stage(Struct, frozen=True, forbid_unknown_fields=True):
    """One step of a rollout.

    Attributes:
        share: of the devices of its group, those of earlier stages included.
        group: selects its devices; "" is all of them.
        soak_s: how long its devices are observed after the installations ended, before it can be promoted.
        per_minute: so many devices are offered the model in a minute; None is all at once.
        window: when devices may try it; None is any time.
        patience_s: how long devices may take to install, and then how long the stage may be held, before a person is
            asked.
    """

    share: Share
    group: str = ""
    soak_s: Annotated[float, Meta(ge=0, le=90 * 86_400)] = 3600.0
    per_minute: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    window: Window | None = None
    patience_s: Annotated[float, Meta(ge=1, le=90 * 86_400)] = 86_400.0

    def __post_init__(self) -> None:
        parse_selector(self.group)


class Divided(Struct, frozen=True):
    """The devices of one stage, each group in the order in which it is offered the model.

    Attributes:
        treated: the devices that take the model in this stage.
        control: the control group.
    """

    treated: tuple[str, ...]
    control: tuple[str, ...]


def place(salt: str, device: str) -> float:
    """Returns a device's place in a rollout, in [0, 1); uniform over salts, and independent between devices."""
    digest = hashlib.sha256(f"{salt}\0{device}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / _PLACES


def check_growing(stages: Sequence[Stage]) -> None:
    """Checks that each stage takes places that no earlier stage took; different groups cannot be compared.

    Raises:
        RequestError: a stage takes no device.
    """
    for (first, before), (second, after) in combinations(enumerate(stages, 1), 2):
        if before.group in ("", after.group) and after.share <= before.share:
            raise RequestError(
                f"Stage {second} takes {100 * after.share:.4g} % of devices of which stage {first} has taken "
                f"{100 * before.share:.4g} % already, so nobody new: a share counts those of earlier stages too. Give "
                "shares that grow."
            )


def divide(
    salt: str,
    stages: Sequence[Stage],
    number: int,
    devices: Iterable[tuple[str, Mapping[str, str]]],
    held_back: float,
) -> Divided:
    """Returns a stage's devices and its control group.

    Args:
        salt: of the rollout.
        stages: all of them.
        number: of the stage, from 0.
        devices: names and tags of those that the rollout is for.
        held_back: the share of places, at the upper end, that no stage takes.
    """
    treated: list[tuple[float, str]] = []
    control: list[tuple[float, str]] = []
    stage = stages[number]
    group = parse_selector(stage.group)
    earlier = [(parse_selector(each.group), _upper(each, held_back)) for each in stages[:number]]
    for name, tags in devices:
        at = place(salt, name)
        if not group.matches(tags) or any(before.matches(tags) and at < upper for before, upper in earlier):
            continue
        (treated if at < _upper(stage, held_back) else control).append((at, name))
    return Divided(*(tuple(name for _, name in sorted(found)) for found in (treated, control)))


def due(stage: Stage, devices: int, elapsed_s: float) -> int:
    """How many of a stage's devices may have been offered the model by now."""
    if stage.per_minute is None:
        return devices
    return min(devices, int(elapsed_s / 60 * stage.per_minute) + 1)


def _upper(stage: Stage, held_back: float) -> float:
    return min(stage.share, 1.0 - held_back)
