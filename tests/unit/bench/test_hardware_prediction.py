"""What the prediction's benchmark tells: medians over rounds, of each run against the profiles around it."""

from bench.hardware.prediction import Round, Trial, figures


def _round(measured_ms: float, predicted_ms: float, waited: float) -> Round:
    times = {"measured_p50_ms": measured_ms, "measured_p99_ms": measured_ms, "predicted_p50_ms": predicted_ms}
    return Round(
        queries=300,
        rate_per_s=10.0,
        predicted_p99_ms=2 * predicted_ms,
        other_p50_ms=1.0,
        other_p99_ms=1.0,
        profile_waited_share=waited,
        run_waited_share=0.01,
        **times,
    )


def test_a_round_on_a_disturbed_machine_does_not_move_the_median() -> None:
    rounds = [_round(1.0, 1.1, 0.0), _round(1.0, 1.1, 0.02), _round(50.0, 1.1, 0.5)]
    found = {one.figure.partition(": ")[2]: one for one in figures({"digits": [Trial("digits", 1, rounds)]})}
    p50, p99 = (found[f"predicted {name} of the mixed load, off by"] for name in ("p50", "p99"))
    waited = found["most of a measurement's time that other work had its core"]
    assert (p50.value, p50.holds) == (10.0, True)
    assert (p99.value, p99.holds) == (120.0, False)
    assert (waited.value, waited.holds) == (2.0, None)


def test_errors_that_cancel_out_are_told_without_their_sign() -> None:
    rounds = [_round(1.0, predicted_ms, 0.0) for predicted_ms in (0.7, 1.0, 1.3)]
    found = {one.figure: one.value for one in figures({"digits": [Trial("digits", 1, rounds)]})}
    label = "digits, threads 1: predicted p50 of the mixed load"
    assert (found[f"{label}, off by"], found[f"{label}, off by, without its sign"]) == (0.0, 30.0)


def test_what_a_planner_has_is_told_beside() -> None:
    rounds = [_round(measured_ms, measured_ms, 0.0) for measured_ms in (0.5, 0.8, 2.0)]
    found = {one.figure: one for one in figures({"digits": [Trial("digits", 1, rounds)]})}
    planned = found["digits, threads 1: predicted p50 of the mixed load, as a planner has it, off by"]
    assert (planned.value, planned.aim) == (25.0, None), "1 ms, whatever came"
    assert found["digits, threads 1: predicted p50 of the mixed load, off by"].value == 0.0
