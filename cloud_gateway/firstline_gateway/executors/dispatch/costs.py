"""Memory and energy of batches on an executor, and the budgets for them. Times are arguments.

The costs of a batch come from a profile of the executor's machine (`firstline_core.profile`), or from stated watts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from firstline_core.errors import ConfigError, ProtocolError
from firstline_core.hardware.readings import Measured, known
from firstline_core.profile import profile
from firstline_core.profile.files import bundled_profiles, profile_of_machine
from firstline_core.telemetry.logs import logger

Source = Literal["measured", "modelled", "absent"]
"""The source of an energy: a meter during profiling, stated watts, or none."""
Priors = Callable[[str, str, str], list[profile.Profile]]
"""Returns the stored profiles, one or none, of a bundle's name, a model's digest and a machine's fingerprint."""
WINDOW_S = 60.0
"""The window of the energy budget: an executor may take that of a whole window at once, and then rests."""

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of one model on one executor, by the rows of a batch; empty if they are unknown.

    Args:
        seconds: of batches.
        memory_bytes: of batches while they run, without the model.
        energy_j: of batches.
        energy_source: of `energy_j`.
        power_w: stated watts for each running batch; used if there is no `energy_j`.
    """

    seconds: Mapping[int, float] = field(default_factory=dict)
    memory_bytes: Mapping[int, float] = field(default_factory=dict)
    energy_j: Mapping[int, float] = field(default_factory=dict)
    energy_source: Source = "absent"
    power_w: float = 0.0

    @property
    def source(self) -> Source:
        """The source of its energy."""
        if self.energy_j:
            return self.energy_source
        return "modelled" if self.power_w else "absent"

    @property
    def largest_bytes(self) -> float:
        """Memory of the largest known batch; 0 if none is known."""
        return max(self.memory_bytes.values(), default=0.0)

    def energy_of(self, rows: int, run_s: float) -> float:
        """Returns the joules of a batch that runs for so long; 0 if they are unknown."""
        return _scaled(self.energy_j, rows) if self.energy_j else self.power_w * run_s

    def memory_of(self, rows: int) -> float:
        """Returns the bytes of a batch while it runs; 0 if they are unknown."""
        return _scaled(self.memory_bytes, rows)


def _scaled(known: Mapping[int, float], rows: int) -> float:
    """Returns the value of the next larger measured batch; beyond the largest one, in proportion to the rows."""
    if not known:
        return 0.0
    larger = [size for size in known if size >= rows]
    if larger:
        return known[min(larger)]
    return known[max(known)] * rows / max(known)


class Energy:
    """The energy budget of an executor, as an average over a window.

    Args:
        budget_w: in watts, or 0 for no budget.

    Attributes:
        is_limited: whether there is a budget.
        spent_j: by all batches that ended.
    """

    def __init__(self, budget_w: float) -> None:
        self._budget_w = budget_w
        self._most_j = budget_w * WINDOW_S
        self._left_j = self._most_j
        self._at_s: float | None = None
        self.is_limited = budget_w > 0
        self.spent_j = 0.0

    def left_j(self, now_s: float) -> float:
        """Returns what a batch may take now. A batch that takes more than a whole window waits for a full one."""
        if not self._budget_w:
            return math.inf
        if self._at_s is not None:
            self._left_j = min(self._most_j, self._left_j + max(0.0, now_s - self._at_s) * self._budget_w)
        self._at_s = now_s
        return math.inf if self._left_j >= self._most_j else self._left_j

    def spend(self, joules: float, now_s: float) -> None:
        """Takes the joules of a batch that ended."""
        self.reserve(joules, now_s)
        self.spent_j += joules

    def reserve(self, joules: float, now_s: float) -> None:
        """Takes the expected joules of a batch that starts."""
        self.left_j(now_s)
        self._left_j -= joules

    def settle(self, reserved_j: float, joules: float, now_s: float) -> None:
        """Replaces the reserved joules of a batch that ended by those that it took."""
        self.reserve(joules - reserved_j, now_s)
        self.spent_j += joules

    def wait_s(self, joules: float, now_s: float) -> float:
        """Returns the seconds until a batch may take so much."""
        if self.left_j(now_s) >= joules:
            return 0.0
        return (min(joules, self._most_j) - self._left_j) / self._budget_w


class Memory:
    """The memory budget of an executor, for its models and running batches.

    Args:
        budget_bytes: 0 for no budget.

    Attributes:
        is_limited: whether there is a budget.
        models_bytes: of its models.
        batches_bytes: of its running batches.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self.is_limited = budget_bytes > 0
        self.models_bytes = 0
        self.batches_bytes = 0.0

    @property
    def free_bytes(self) -> float:
        """Bytes that are left; infinite without a budget."""
        if not self._budget_bytes:
            return math.inf
        return self._budget_bytes - self.models_bytes - self.batches_bytes

    def fits(self, size_bytes: float) -> bool:
        """Returns whether there is room for a model, or for a batch while no other runs."""
        return not self._budget_bytes or self.models_bytes + size_bytes <= self._budget_bytes


def no_priors(_bundle: str, _model_digest: str, _fingerprint: str) -> list[profile.Profile]:
    """Returns no profile: there is no store of profiles."""
    return []


def read(files: tuple[str, ...]) -> list[profile.Profile]:
    """Reads the profiles of an executor, one for each bundle.

    Raises:
        ConfigError: a file cannot be read or is not a profile.
    """
    found = []
    for file in files:
        try:
            with Path(file).open("rb") as stream:
                found.append(profile.decode(stream.read(profile.LIMIT_BYTES + 1), file))
        except OSError as error:
            raise ConfigError(f"The profile {file} cannot be read: {error.strerror}.") from error
        except ProtocolError as error:
            raise ConfigError(error.message) from error
    return found


def profiles_near(bundle: Path, name: str, fingerprint: Callable[[], str]) -> list[profile.Profile]:
    """Returns the profile of this machine in or next to a bundle's folder; logs and skips unreadable ones.

    Args:
        bundle: its folder.
        name: of the bundle.
        fingerprint: returns that of this machine, `Catalogue.fingerprint`; called only if there is a profile.
    """
    files = list(bundled_profiles(bundle, name))
    if not files:
        return []
    found, damaged = profile_of_machine(files, fingerprint())
    for file, fault in damaged.items():
        log.warning("profile left out", path=str(file), error=fault)
    return [found] if found is not None else []


def of_this_machine(
    bundle: Path, name: str, model_digest: str, fingerprint: Callable[[], str], priors: Priors
) -> list[profile.Profile]:
    """Returns the bundle's own profile of this machine, or that of the store if it lacks the model.

    Args:
        bundle: its folder.
        name: of the bundle.
        model_digest: `Model.digest`.
        fingerprint: see `profiles_near`.
        priors: reads the store of profiles.
    """
    bundled = profiles_near(bundle, name, fingerprint)
    if any(point.key.model_digest == model_digest for one in bundled for point in one.points):
        return bundled
    return priors(name, model_digest, fingerprint())


def costs_of(profiles: list[profile.Profile], model_digest: str, provider: str, power_w: float) -> Costs:
    """Returns the costs of batches of one model.

    Args:
        profiles: of the executor's machine; where two have the same point, the latter's holds.
        model_digest: `Model.digest`; points of other models say nothing of this one.
        provider: that runs it there; "" if it is unknown, which accepts the points of every provider.
        power_w: stated; holds where the profile has no energy.
    """
    points = {
        point.key.batch: point
        for one in profiles
        for point in one.points
        if point.key.model_digest == model_digest
        and point.key.condition == "warm"
        and point.key.threads <= 1
        and provider in ("", point.key.provider)
        and point.query.p50_ms > 0  # 0 would give that executor everything
    }
    peak_bytes = {rows: known(point.peak_memory_bytes) for rows, point in points.items()}
    least_bytes = min((each for each in peak_bytes.values() if each is not None), default=0.0)
    energy_mj = {rows: known(point.energy_mj) for rows, point in points.items()}
    is_measured = all(isinstance(point.energy_mj, Measured) for point in points.values())
    return Costs(
        seconds={rows: point.query.p50_ms / 1000 for rows, point in points.items()},
        # The model itself, and what its smallest batch takes, is in the estimate of the model.
        memory_bytes={rows: each - least_bytes for rows, each in peak_bytes.items() if each is not None},
        energy_j={rows: each / 1000 for rows, each in energy_mj.items() if each is not None},
        energy_source="measured" if is_measured else "modelled",
        power_w=power_w,
    )
