from pathlib import Path

import pytest
from support.answers import answered

from firstline_core.telemetry.decisions import DecisionLog, about, find
from firstline_core.types import Status


def test_records_are_in_order_and_have_no_payload(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    log = DecisionLog(path)
    log.append(about(answered("a", Status.PROVISIONAL), wall_s=1.0, ms=2.0))
    log.append(about(answered("b"), wall_s=2.0))
    log.append(about(answered("a"), wall_s=3.0) | {"corrected": True})
    log.close()
    records = find(path, "a")
    assert [line["status"] for line in records] == ["provisional", "final"]
    assert records[1]["corrected"] is True
    assert "probabilities" not in path.read_text()


def test_a_damaged_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    log = DecisionLog(path)
    for number in range(3):
        log.append({"request_id": "a", "number": number})
    log.close()
    whole = path.read_bytes()
    assert [set(line) for line in find(path, "a")] == [{"request_id", "number"}] * 3
    first, second, _ = whole.splitlines(keepends=True)
    for bit in range(8 * len(first), 8 * (len(first) + len(second))):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        numbers = [line["number"] for line in find(path, "a")]
        assert numbers in ([0, 2], [0, 1, 2], [0])  # without its line break it takes the next one with it
    path.write_bytes(b'{"request_id":"a","number":7}\n' + whole[: len(whole) - 5])
    assert [line["number"] for line in find(path, "a")] == [7, 0, 1]


def test_the_decision_log_continues_if_it_cannot_rotate(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    in_the_way = tmp_path / "decisions.jsonl.1"
    in_the_way.mkdir()
    (in_the_way / "file").touch()
    log = DecisionLog(path, max_bytes=600)
    log.append(about(answered("first"), wall_s=0.0))
    for _ in range(2):  # each line tries again
        with pytest.raises(OSError, match="decisions"):
            log.append(about(answered("lost"), wall_s=1.0))
    (in_the_way / "file").unlink()
    in_the_way.rmdir()
    log.append(about(answered("later"), wall_s=2.0))
    log.close()
    assert find(path, "first") and find(path, "later") and not find(path, "lost")


def test_the_decision_log_recovers_from_an_interrupted_rotation(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    log = DecisionLog(path, max_bytes=600)
    log.append(about(answered("first"), wall_s=0.0))
    path.replace(tmp_path / "decisions.jsonl.1")
    log.append(about(answered("second"), wall_s=1.0))
    log.close()
    assert find(path, "first") and find(path, "second")


def test_the_log_is_bounded_and_survives_torn_lines(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    log = DecisionLog(path, max_bytes=2000)
    for number in range(50):
        log.append(about(answered(str(number)), wall_s=float(number)))
    log.close()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 4000
    assert find(path, "49")
    assert not find(path, "0")
    with path.open("ab") as stream:
        stream.write(b'{"request_id": "torn')
    assert find(path, "49")


def test_a_line_of_brackets_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    path.write_bytes(b"[" * 100_000 + b"\n")
    log = DecisionLog(path)
    log.append({"request_id": "r"})
    log.close()
    assert find(path, "r") == [{"request_id": "r"}]
