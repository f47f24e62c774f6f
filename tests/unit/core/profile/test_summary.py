"""A profile as text."""

from msgspec.structs import replace
from support.profiles import point, profile

from firstline_core.profile.profile import QueryBytes, RefusedPoint, distribution
from firstline_core.profile.summary import notes, profile_lines


def test_a_refused_point_has_its_reason() -> None:
    key = point(1.0).key
    refused = (RefusedPoint(key, "Why."), RefusedPoint(replace(key, condition="sustained"), "Why."))
    sentences = list(notes(replace(profile(1.0), refused=refused)))
    assert "edge, CPUExecutionProvider, threads 1, batch 1: not measured: Why." in sentences
    assert "edge, CPUExecutionProvider, threads 1, batch 1, sustained: not measured: Why." in sentences


def test_times_to_load_and_bytes_are_shown_once_per_model() -> None:
    one = replace(point(1.0), load_ms=120.0, first_ms=9.5, moved=QueryBytes(124, 12_288, 40))
    two = replace(one, key=replace(one.key, threads=2), load_ms=1.0)
    assert [line for line in notes(replace(profile(), points=(two, one))) if "loads in" in line] == [
        "edge: loads in 120 ms, first query 9.5 ms; a query moves 124 B here, 12.3 KB into the model, 40 B out of it"
    ]


def test_a_p99_of_few_queries_is_noted() -> None:
    many = replace(point(1.0, threads=2), query=distribution([0.001] * 100))
    sentences = list(notes(replace(profile(1.0), points=(point(1.0), many))))
    assert "1 point measured fewer than 100 queries, so p99 is nearly the slowest one." in sentences
    assert not any("fewer than" in line for line in notes(replace(profile(), points=(many,))))


def test_each_group_of_points_has_its_own_sweet_spot() -> None:
    def of(threads: int, batch: int, per_s: float) -> object:
        one = point(1.0, threads=threads)
        return replace(one, key=replace(one.key, batch=batch), offline_per_s=per_s)

    points = (of(2, 4, 31.0), of(1, 4, 20.0), of(1, 16, 20.5), of(1, 1, 10.0), of(2, 1, 30.0))
    table = [line.split() for line in profile_lines(replace(profile(), points=points)) if line.startswith("edge  ")]
    assert [(row[2], row[3]) for row in table] == [("1", "1"), ("1", "4*"), ("1", "16"), ("2", "1*"), ("2", "4")]
