"""The limits that were set earlier, measured again: size, memory and start of the agent, deciding, and a dead link."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import decision
import size
from figures import Figure
from pools import CACHE, DATA, DIGITS, collect
from routing import dead_link

from serving import ours
from serving.asking import expected, v2
from serving.effort import Effort
from serving.figuring import at_most, told
from serving.models import S, write_bundle
from serving.processes import cores
from serving.samples import Sample, values

PART = "limits"
_AGENT = "agent"
_RSS_MB, _START_S = 90.0, 1.0


def measure(effort: Effort) -> list[Sample]:
    """The agent's start, in rounds; the others have repeats of their own."""
    _, _, both = cores()
    samples = []
    for number in range(effort.rounds):
        effort.tell(f"the agent's start, round {number + 1}")
        with tempfile.TemporaryDirectory(prefix="firstline-bench-") as name:
            folder = Path(name)
            bundle = write_bundle(S, folder / "bundles" / S.name, edge=True)
            right = expected(bundle / "model.onnx", S)
            with ours.agent(folder, bundle, v2("JSON", S, [S.name]), right, both) as server:
                found = {"start_s": round(server.start_s, 3), "rss_mb": round(server.rss_mb(), 1)}
                samples.append(Sample(PART, number, _AGENT, "one small model", found))
    return samples


def figures(samples: Sequence[Sample]) -> list[Figure]:
    """Memory and start by the worst and the best round: other work makes a start longer, and memory no smaller."""
    start_s = min(values(samples, _AGENT, "one small model", "start_s"), default=None)
    rss_mb = max(values(samples, _AGENT, "one small model", "rss_mb"), default=None)
    return [
        at_most("agent with one small model: resident memory", rss_mb, _RSS_MB, "MB"),
        at_most("agent with one small model: from its start to the first answer", start_s, _START_S, "s"),
    ]


def others(effort: Effort, wheel: Path | None) -> list[Figure]:
    """Those that are measured by what has a make target of its own already."""
    effort.tell("deciding, and a dead link")
    found = []
    if not effort.quick:
        costs = [figure for figure in decision.measured() if figure.figure.endswith("p50") and figure.value is not None]
        dearest = max(costs, key=lambda figure: figure.value or 0.0)
        found.append(dearest._replace(figure=f"the dearest {dearest.figure.removeprefix('one ')}"))
    pool = collect(DIGITS, DATA, CACHE)
    found += dead_link.figures(dead_link.measure(pool, 50 if effort.quick else 2000))
    found = [figure._replace(value=None if figure.value is None else round(figure.value, 3)) for figure in found]
    if wheel is None:
        return found
    effort.tell("installed size")
    try:
        return found + size.figures(wheel)
    except subprocess.CalledProcessError:
        return [*found, told("firstline[edge] installed (no package index was reached)", None, "MB")]
