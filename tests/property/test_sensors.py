"""Counters that restart, and files with arbitrary content."""

import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.boards import say

from firstline_core.hardware.kernel_files import Tree, parse_number, printable_name
from firstline_core.hardware.power import Rapl, advanced_uj
from firstline_core.hardware.readings import Absent, Measured

RANGES = st.integers(1, 2**40)


@given(range_uj=RANGES, start=st.integers(0, 2**40), steps=st.lists(st.integers(0, 2**40), max_size=20))
def test_an_overflowing_counter_loses_no_energy(range_uj: int, start: int, steps: list[int]) -> None:
    """If it is read before it overflows again, the sum of the differences is the energy."""
    size = range_uj + 1
    added = [step % size for step in steps]
    readings = [start % size]
    for step in added:
        readings.append((readings[-1] + step) % size)
    assert [advanced_uj(before, now, range_uj) for before, now in pairwise(readings)] == added


@given(steps=st.lists(st.integers(0, 10**9), min_size=1, max_size=8), range_uj=st.integers(10**9, 2**38))
def test_energy_only_grows_and_power_is_its_slope(steps: list[int], range_uj: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        say(root, "sys/class/powercap/intel-rapl:0/name", "package-0")
        say(root, "sys/class/powercap/intel-rapl:0/max_energy_range_uj", str(range_uj))
        rapl, total_uj = Rapl(Tree(root)), 0
        say(root, "sys/class/powercap/intel-rapl:0/energy_uj", "0")
        rapl.read(0.0)
        for at, step in enumerate(steps, 1):
            total_uj += step
            say(root, "sys/class/powercap/intel-rapl:0/energy_uj", str(total_uj % (range_uj + 1)))
            energy_j, power_w = rapl.read(at * 0.5)
            energy, power = energy_j["package-0"], power_w["package-0"]
            assert isinstance(energy, Measured)
            assert isinstance(power, Measured)
            assert energy.value == pytest.approx(total_uj / 1e6)
            assert power.value == pytest.approx(step / 1e6 / 0.5)


@given(st.text(max_size=60))
def test_any_text_is_a_number_or_absent_with_a_reason(text: str) -> None:
    found = parse_number(text, "sys/file", low=-1e6, high=1e6)
    if isinstance(found, Absent):
        assert found.reason.startswith("/sys/file: ")
        assert found.reason.isprintable()
    else:
        assert found.value == int(text)


@given(st.text(max_size=200))
def test_any_name_becomes_printable(text: str) -> None:
    name = printable_name(text)
    assert len(name) <= 48
    assert name.isascii()
    assert name == "" or name.isprintable()
