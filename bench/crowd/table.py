"""What a crowd took a gateway and a broker, as a table with its growth. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from figures import Figure

_MIB = 1 << 20


class Run(NamedTuple):
    """One crowd; processor times are of one core, in seconds.

    Attributes:
        idle_cores: that the gateway took before anybody came.
        births_s: until all devices were known, spoken as fast as they were taken.
        births_cpu_s: of the gateway.
        beats: heartbeats in `beats_s`.
        beats_cpu_s: of the gateway meanwhile.
        broker_beats_cpu_s: of the broker.
        longest_silence_s: the longest that any device had not been heard of by their end, as the gateway says.
        delays_ms: from a publication until the REST API told it.
        pages_ms: for a page of devices, meanwhile.
        reached: devices that have committed the new version when the rollout was complete, or took far too long.
        rollout_s: from its start until then.
        rollout_cpu_s: of the gateway, heartbeats meanwhile included.
        rollout_beats: heartbeats meanwhile.
        rss_bytes: of the gateway: before anybody came, after the heartbeats, after the rollout.
        queue: words that the broker keeps for a reader that is slower.
        dropped: words that were too many for it; None where that was not counted.
    """

    devices: int
    idle_cores: float
    births_s: float
    births_cpu_s: float
    beats: int
    beats_s: float
    beats_cpu_s: float
    broker_beats_cpu_s: float
    longest_silence_s: float
    delays_ms: tuple[float, ...]
    pages_ms: tuple[float, ...]
    reached: int
    rollout_s: float
    rollout_cpu_s: float
    broker_rollout_cpu_s: float
    rollout_beats: int
    rss_bytes: tuple[int, int, int]
    queue: int
    dropped: int | None

    @property
    def beat_ms(self) -> float:
        """Processor time of the gateway for a heartbeat, beyond what it takes idle."""
        return max(0.0, self.beats_cpu_s - self.idle_cores * self.beats_s) / self.beats * 1000

    @property
    def rollout_device_ms(self) -> float:
        """Processor time of the gateway for a device that took the rollout, beyond heartbeats and idling."""
        beside_s = self.idle_cores * self.rollout_s + self.rollout_beats * self.beat_ms / 1000
        return max(0.0, self.rollout_cpu_s - beside_s) / max(1, self.reached) * 1000


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        of: the value of a run.
        per_device: whether growth is told for a device; None where growth says nothing.
    """

    what: str
    unit: str
    of: Callable[[Run], float]
    per_device: bool | None = None


ROWS = (
    Row("all devices come: until they are known", "s", lambda run: run.births_s, True),
    Row("processor time of the gateway for each", "ms", lambda run: run.births_cpu_s / run.devices * 1000, False),
    Row("gateway without devices", "cores", lambda run: run.idle_cores),
    Row("heartbeats", "/s", lambda run: run.beats / run.beats_s),
    Row("gateway while they come", "cores", lambda run: run.beats_cpu_s / run.beats_s, True),
    Row("processor time of the gateway for a heartbeat", "ms", lambda run: run.beat_ms, False),
    Row("broker while they come", "cores", lambda run: run.broker_beats_cpu_s / run.beats_s, True),
    Row("from a publication until the REST API tells it, p50", "ms", lambda run: quantile(run.delays_ms, 0.5)),
    Row("the longest of those", "ms", lambda run: max(run.delays_ms)),
    Row("a page of 100 devices, p50", "ms", lambda run: quantile(run.pages_ms, 0.5)),
    Row("p99", "ms", lambda run: quantile(run.pages_ms, 0.99)),
    Row("a rollout, until it was complete or 150 s were over", "s", lambda run: run.rollout_s),
    Row("devices that took it", "", lambda run: run.reached),
    Row("gateway meanwhile", "cores", lambda run: run.rollout_cpu_s / run.rollout_s),
    Row("processor time of the gateway for a device of it", "ms", lambda run: run.rollout_device_ms, False),
    Row("broker meanwhile", "cores", lambda run: run.broker_rollout_cpu_s / run.rollout_s),
    Row("memory of the gateway before anybody came", "MiB", lambda run: run.rss_bytes[0] / _MIB),
    Row("after the heartbeats", "MiB", lambda run: run.rss_bytes[1] / _MIB),
    Row("after the rollout", "MiB", lambda run: run.rss_bytes[2] / _MIB),
)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]


def growth(row: Row, small: Run, large: Run) -> float | None:
    """How many times more a row is for a device of the larger crowd; None where that says nothing."""
    before, after = row.of(small), row.of(large)
    if row.per_device is None or before <= 0:
        return None
    return after / before / (large.devices / small.devices if row.per_device else 1)


def table(runs: Sequence[Run]) -> str:
    """In Markdown; the last column is from the first to the last run."""
    heads = [f"{run.devices:,} devices" for run in runs]
    lines = [f"| | {' | '.join(heads)} | a device, times |", f"|---|{'---|' * len(runs)}---|"]
    for row in ROWS:
        grown = growth(row, runs[0], runs[-1]) if len(runs) > 1 else None
        told = " | ".join(_told(row.of(run), row.unit) for run in runs)
        lines.append(f"| {row.what} | {told} | {'' if grown is None else f'{grown:.2f}'} |")
    return "\n".join(lines)


def _told(value: float, unit: str) -> str:
    return f"{value:,.3g} {unit}".strip() if value < 1000 else f"{value:,.0f} {unit}".strip()


def figures(runs: Sequence[Run]) -> list[Figure]:
    """The same, with what must hold: no word was dropped, and the rollout came to all devices."""
    found = []
    for run in runs:
        found += [Figure(f"{run.devices:,} devices: {row.what}", round(row.of(run), 4), row.unit) for row in ROWS]
        name = f"{run.devices:,} devices"
        found.append(Figure(f"{name}: the longest silence of one", round(run.longest_silence_s, 1), "s"))
        reached = run.reached == run.devices
        found.append(Figure(f"{name}: committed by the rollout's end", run.reached, "", f"{run.devices}", reached))
        if run.dropped is not None:
            found.append(Figure(f"{name}: words dropped by the broker", run.dropped, "", "0", not run.dropped))
    if len(runs) > 1:
        for row in ROWS:
            grown = growth(row, runs[0], runs[-1])
            if grown is not None:
                found.append(
                    Figure(
                        f"a device, {runs[-1].devices:,} / {runs[0].devices:,}: {row.what}", round(grown, 3), "times"
                    )
                )
    return found
