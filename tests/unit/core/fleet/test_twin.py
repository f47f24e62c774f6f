"""The documents of a device's twin: strict validation, and compatibility with newer writers."""

import math
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.boards import board

from firstline_core.errors import ProtocolError
from firstline_core.fleet import twin
from firstline_core.fleet.telemetry import LATENCY_BOUNDS_MS, ModelCounts, Telemetry, latency_bin
from firstline_core.fleet.update import UpdateState
from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.survey import describe_device

SHA256 = "0" * 64
WANTED = twin.DesiredModel("digits", 3, SHA256, rollout="r1", window=twin.Window(60, 30))


@pytest.mark.parametrize(
    "document",
    [
        twin.Desired(7, (WANTED,), brake=twin.Brake(0.0, "the gateway is down")),
        twin.Reported("s", 1, 7, (twin.RunningModel("digits", 3),), (twin.Update("digits", 3, UpdateState.TRIAL),)),
        Telemetry("s", 4, models=(ModelCounts("digits", 3, rows=2, kept=1, escalated=1, latency=(1, 1)),)),
    ],
)
def test_documents_round_trip(document: msgspec.Struct) -> None:
    assert twin.read_document(msgspec.json.encode(document), type(document), "it") == document


def test_a_report_contains_optional_hardware(tmp_path: Path) -> None:
    with board("jetson-orin-nano", tmp_path):
        reported = twin.Reported("s", 1, hardware=describe_device(Tree(tmp_path), tmp_path))
    sent = msgspec.json.encode(reported)
    assert len(sent) < twin.LIMIT_BYTES // 8
    assert twin.read_document(sent, twin.Reported, "it") == reported
    assert twin.read_document(b'{"session": "s", "sequence": 1}', twin.Reported, "it").hardware is None
    newer = sent.replace(b'"board"', b'"smell": "burnt", "board"')
    assert twin.read_document(newer, twin.Reported, "it") == reported


def test_fields_of_a_newer_writer_are_ignored() -> None:
    assert twin.read_document(b'{"revision": 2, "colour": "blue"}', twin.Desired, "it") == twin.Desired(2)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[", "is not valid"),
        (b'{"revision": -1}', "is not valid"),
        (b'{"revision": 1, "format": 2}', "reads format 1"),
        (b'{"revision": 1, "models": [{"name": "../x", "version": 1, "manifest_sha256": "%s"}]}', "models"),
        (msgspec.json.encode({"revision": 1, "models": [WANTED, WANTED]}), "one version at a time"),
        (b" " * (twin.LIMIT_BYTES + 1), "at most"),
        (b'{"revision": \xff}', "is not valid"),
        (b"[" * 20_000, "is not valid"),
    ],
)
def test_an_invalid_document_is_refused(content: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        twin.read_document(content, twin.Desired, "The desired state")


@given(st.integers(0, 10_079), st.integers(1, 10_080), st.floats(0, 4e9))
def test_a_window_opens_at_its_minute(from_minute: int, minutes: int, wall_s: float) -> None:
    window = twin.Window(from_minute, minutes)
    wait_s = window.wait_s(wall_s)
    assert 0 <= wait_s < 7 * 86_400
    assert window.wait_s(wall_s + wait_s + 0.01) == 0 or minutes * 60 <= 0.01
    if wait_s > 0.01:
        assert window.wait_s(wall_s + wait_s - 0.01) > 0


def test_minutes_of_the_week_begin_on_monday() -> None:
    monday = datetime(2026, 11, 23, 1, 0, tzinfo=UTC).timestamp()
    assert twin.Window(60, 30).wait_s(monday) == 0
    assert twin.Window(60, 30).wait_s(monday - 60) == 60
    assert twin.Window(60, 30).wait_s(monday + 30 * 60) == 7 * 86_400 - 30 * 60


def test_a_latency_belongs_to_the_next_bound() -> None:
    assert [latency_bin(ms) for ms in (0.0, 1.0, 1.1, 5000.0, math.inf)] == [0, 0, 1, 11, len(LATENCY_BOUNDS_MS)]


def test_profiles_are_optional_in_both_documents() -> None:
    class Before(msgspec.Struct):
        revision: int
        models: tuple[twin.DesiredModel, ...] = ()
        format: int = 1

    desired = twin.Desired(3, profiles=(twin.DesiredProfile("digits", quick=True, id="1"),))
    assert msgspec.json.decode(msgspec.json.encode(desired), type=Before) == Before(3)
    report = msgspec.to_builtins(twin.Reported("s", 1, 3))
    del report["profiles"]
    assert twin.read_document(msgspec.json.encode(report), twin.Reported, "it").profiles == ()


def test_profiling_requests_are_unique_per_bundle_and_bounded() -> None:
    def document(*bundles: str) -> bytes:
        profiles = [{"id": str(number), "bundle": bundle} for number, bundle in enumerate(bundles)]
        return msgspec.json.encode({"revision": 1, "profiles": profiles})

    assert len(twin.read_document(document(*"abcdefgh"), twin.Desired, "it").profiles) == 8
    for wrong in (document("a", "a"), document(*"abcdefghi"), document("a b")):
        with pytest.raises(ProtocolError):
            twin.read_document(wrong, twin.Desired, "it")
