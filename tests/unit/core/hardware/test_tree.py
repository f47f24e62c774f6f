"""Files of drivers that say nothing, nonsense, or refuse: always a reason, never an exception."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from firstline_core.hardware.readings import Absent, Measured, Modelled
from firstline_core.hardware.tree import Tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def reason(found: object) -> str:
    assert isinstance(found, Absent)
    return found.reason


def test_a_number_in_the_unit_that_is_asked_for(tree: Tree) -> None:
    (tree.root / "temp").write_text("  48312\n")
    assert tree.number("temp", 0.001) == Measured(48.312, "/temp")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"N/A\n", "'N/A', which is no whole number"),
        (b"1_000\n", "no whole number"),
        (b"12 34\n", "no whole number"),
        (b"9" * 30, "no whole number"),
        (b"\xff\xfe", "holds no text"),
        (b"201000\n", "says 201000, which cannot be"),
    ],
)
def test_what_is_no_number_says_why(tree: Tree, content: bytes, why: str) -> None:
    (tree.root / "temp").write_bytes(content)
    assert why in reason(tree.number("temp", 0.001, high=200))


def test_what_is_not_there_says_where(tree: Tree) -> None:
    assert reason(tree.text("sys/absent")) == "/sys/absent: no such file or directory."


def test_a_driver_without_a_value(tree: Tree) -> None:
    os.mkfifo(tree.root / "curr1_input")
    kept = os.open(tree.root / "curr1_input", os.O_RDWR | os.O_NONBLOCK)
    try:
        assert "switched off" in reason(tree.text("curr1_input"))
    finally:
        os.close(kept)


def test_a_device_that_does_not_answer(tree: Tree) -> None:
    (tree.root / "temp").symlink_to("/proc/self/mem")  # nothing is at address 0
    assert reason(tree.text("temp")) == "/temp: the device behind it does not answer."


def test_a_file_of_the_superusers(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)  # tests may run as the superuser, whom nothing refuses
    assert "docs/hardware.md" in reason(tree.text("energy_uj"))


def test_a_path_that_cannot_be(tree: Tree) -> None:
    assert isinstance(tree.text("a\0b"), Absent)
    assert tree.names("a\0b", "*") == []
    assert not tree.has("a\0b")


def test_only_so_much_is_read(tree: Tree) -> None:
    (tree.root / "long").write_text("x" * 10_000)
    assert len(str(tree.text("long"))) == 4096


def test_names_are_fit_to_be_shown(tree: Tree) -> None:
    (tree.root / "type").write_text("Wärme\x1b[31m" + "y" * 100)
    assert tree.word("type") == "W?rme?[31m" + "y" * 38
    assert tree.word("absent", "zone0") == "zone0"
    (tree.root / "model").write_bytes(b"Raspberry Pi 5\0")
    assert tree.word("model") == "Raspberry Pi 5"


def test_names_come_in_the_order_of_their_numbers(tree: Tree) -> None:
    for name in ("thermal_zone10", "thermal_zone2", "cooling_device0", "thermal_zone0"):
        (tree.root / name).mkdir()
    assert tree.names(".", "thermal_zone*") == ["./thermal_zone0", "./thermal_zone2", "./thermal_zone10"]


@pytest.mark.parametrize("kind", [Measured, Modelled])
def test_no_reading_is_without_a_number(kind: type[Measured] | type[Modelled]) -> None:
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite"):
            kind(value, "/temp")
