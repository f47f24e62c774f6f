"""The page on scale tells what was measured, what follows from it, and nothing else."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys

import pytest
from figures import RESULTS
from scaling import page
from scaling.fleet import DEVICES, Assumptions, Units, step

TEXT = page.PAGE.read_text()
UNITS = Units(**json.loads((RESULTS / "scale.json").read_text())["units"])


def test_its_tables_are_the_measured_ones() -> None:
    assert page.filled(TEXT, *page.measured(), Assumptions()) == TEXT, (
        "run `.venv/bin/python bench/scale.py --arithmetic`"
    )


def test_what_is_told_follows_from_what_was_measured() -> None:
    figures, steps = page.measured()
    assert figures == page.figures(UNITS)
    assert [each.devices for each in steps] == list(DEVICES)
    for told in steps:
        assert told._asdict() == pytest.approx(step(told.devices, UNITS, Assumptions())._asdict())


def test_the_arithmetic_needs_nothing_of_the_tests() -> None:
    """As the page has it typed."""
    command = [sys.executable, "bench/scale.py", "--help"]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    said = subprocess.run(command, cwd=page.PAGE.parents[1], env=environ, capture_output=True, text=True)
    assert "--arithmetic" in said.stdout, said.stderr


def test_gateways_are_as_many_as_their_event_loops_need() -> None:
    """With a model that takes nothing, one thread of each is what is short."""
    found = step(1_000_000, UNITS._replace(model_ms=0.0), Assumptions())
    assert found.gateways * Assumptions().full >= found.gateway_cores


def test_a_larger_fleet_needs_no_less_of_anything() -> None:
    steps = [step(devices, UNITS, Assumptions())._asdict() for devices in DEVICES]
    for before, after in itertools.pairwise(steps):
        assert all(after[name] >= value for name, value in before.items() if not isinstance(value, str))


def test_deliveries_that_come_together_share_commits_and_never_more_than_were_seen_to() -> None:
    one, million = step(1, UNITS, Assumptions()), step(1_000_000, UNITS, Assumptions())
    assert one.commits == one.deliveries
    assert million.deliveries / million.commits <= UNITS.deliveries_commit


def test_every_table_of_the_page_is_filled() -> None:
    assert TEXT.count("<!-- scale: ") == 4
    assert "-->\n<!-- end" not in TEXT
