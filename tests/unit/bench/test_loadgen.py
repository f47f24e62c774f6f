"""LoadGen's summaries are read as they say, and what is below MLPerf's rules is told."""

from __future__ import annotations

import pytest
from serving import loadgen
from serving.models import S

SINGLE = """\
================================================
MLPerf Results Summary
================================================
SUT name : PySUT
Scenario : SingleStream
Mode     : PerformanceOnly
90.0th percentile latency (ns) : 15000
Result is : VALID
  Min duration satisfied : Yes
  Early stopping satisfied: Yes
Early Stopping Result:
 * Processed at least 64 queries (99).

================================================
Additional Stats
================================================
QPS w/ loadgen overhead         : 950.5
QPS w/o loadgen overhead        : 963.07

Min latency (ns)                : 1000
50.00 percentile latency (ns)   : 10000
90.00 percentile latency (ns)   : 15000
99.00 percentile latency (ns)   : 2000000
"""
PLAN = loadgen.Plan("SingleStream", 1, ["a"], 32, 1000, 64, 0, 5.0, 10.0, "/")


def test_a_summary_gives_verdict_rate_and_latencies() -> None:
    one = loadgen.result("gateway", S, PLAN, loadgen.summary(SINGLE))
    assert one.valid
    assert one.per_s == 963.07
    assert one.latencies_ms == {"p50_ms": 0.01, "p90_ms": 0.015, "p99_ms": 2.0}
    figure = loadgen.figures([one])[0]
    assert (figure.figure, figure.value, figure.holds) == ("gateway, S, SingleStream: p90", 0.015, True)


@pytest.mark.parametrize("scenario", ["Server", "Offline"])
def test_the_others_are_judged_by_their_rate(scenario: str) -> None:
    text = SINGLE.replace("QPS w/o loadgen overhead        ", "Samples per second").replace(": VALID", ": INVALID")
    one = loadgen.result("agent", S, PLAN._replace(scenario=scenario), loadgen.summary(text))
    figure = loadgen.figures([one])[0]
    assert (figure.figure, figure.value, figure.holds) == (f"agent, S, {scenario}: rate", 963.1, False)


def test_what_is_below_mlperf_s_rules_is_told() -> None:
    one = loadgen.result("gateway", S, PLAN, loadgen.summary(SINGLE))
    assert loadgen.below_mlperf([one]) == {
        "SingleStream": "1 s instead of 600, at least 64 queries instead of 1024",
    }
