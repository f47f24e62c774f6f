"""View models of the answering tiers: pure functions of the gateway's answers."""

from __future__ import annotations

from typing import Any, NamedTuple

from firstline_core.fleet.rest import TierHistory

HOURS = 24
"""Hours that the chart shows."""
POINTS = 96
"""Maximum number of bars in the chart; finer spans are added up."""

# Okabe and Ito's colours, which remain distinguishable with red-green colour blindness.
_SERIES = (
    ("edge", "on the device", "#0072b2"),
    ("cloud", "by the full model", "#e69f00"),
    ("errors", "no answer", "#7b8794"),
)
_TEXT, _LINE = "#7b8794", "#7b879433"  # readable in both themes


class Shares(NamedTuple):
    """Shares of the tiers in one interval.

    Args:
        at_s: wall time of its start.
        edge: rows answered on the device.
        cloud: rows answered by the full model, or sent to it.
        errors: rows without an answer.
    """

    at_s: float
    edge: int
    cloud: int
    errors: int

    @property
    def rows(self) -> int:
        return self.edge + self.cloud + self.errors

    def percent(self, name: str) -> float:
        """Returns the share of one tier in percent."""
        return 100 * float(getattr(self, name)) / max(1, self.rows)


def shares(history: TierHistory) -> tuple[float, list[Shares]]:
    """Returns the history in spans that a chart has room for: the length of a span in seconds, and those with rows."""
    fine_s = history.span_s
    span_s = fine_s * max(1, -(-HOURS * 3600 // (fine_s * POINTS)))
    found: dict[float, Shares] = {}
    for point in history.points:
        at_s = point.at_s // span_s * span_s
        sums = found.get(at_s, Shares(at_s, 0, 0, 0))
        found[at_s] = Shares(at_s, sums.edge + point.kept, sums.cloud + point.escalated, sums.errors + point.errors)
    return span_s, [found[at_s] for at_s in sorted(found)][-POINTS:]


def summary(spans: list[Shares]) -> str:
    """Returns the shares over the whole time in a sentence, as the chart's description."""
    total = Shares(0.0, *(sum(getattr(one, name) for one in spans) for name, _, _ in _SERIES))
    if not total.rows:
        return f"There were no requests in the last {HOURS} hours, or no device reported any."
    parts = ", ".join(f"{total.percent(name):.1f} % {label}" for name, label, _ in _SERIES)
    return f"Of {total.rows:,} rows in the last {HOURS} hours: {parts}."


def chart(spans: list[Shares], span_s: float, now_s: float) -> dict[str, Any]:
    """Returns the options of an ECharts chart: shares stacked to 100 %, distinguished by pattern and colour."""
    return {
        "aria": {"enabled": True, "decal": {"show": True}, "label": {"description": summary(spans)}},
        "useUTC": True,
        "animation": False,
        "textStyle": {"color": _TEXT},
        "legend": {"top": 0, "textStyle": {"color": _TEXT}},
        "grid": {"left": 48, "right": 16, "top": 56, "bottom": 32},
        "tooltip": {"trigger": "axis", "axisPointer": {"type": "shadow"}},
        "xAxis": {
            "type": "time",
            "axisLabel": {"color": _TEXT, "hideOverlap": True},
            "min": 1000 * (now_s - HOURS * 3600),
            "max": 1000 * now_s,
        },
        "yAxis": {
            "type": "value",
            "min": 0,
            "max": 100,
            "axisLabel": {"formatter": "{value} %", "color": _TEXT},
            "splitLine": {"lineStyle": {"color": _LINE}},
        },
        "series": [
            {
                "name": label,
                "type": "bar",
                "stack": "tiers",
                "barMaxWidth": 24,
                "itemStyle": {"color": colour},
                "data": [[1000 * (one.at_s + span_s / 2), round(one.percent(name), 2)] for one in spans],
            }
            for name, label, colour in _SERIES
        ],
    }
