"""The process that measures for the fleet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
from support.bundles import variant_bundle

from firstline_core.profile.reading import read_profile
from firstline_core.runtime.select import CPU
from firstline_edge.profiling.process import Order, Told


def test_the_fleet_has_a_device_measured_whose_profile_is_damaged(tmp_path: Path) -> None:
    bundle, path = variant_bundle(tmp_path / "bundle", "small"), tmp_path / "p.json"
    path.write_bytes(b"{half of it")
    order = Order(str(bundle.path), str(path), "cam", (CPU,), (1,), (1,), 0.3, False, 0.0, "/")
    said = msgspec.json.encode(order) + 9 * b'\n""' + b"\n"
    done = subprocess.run(
        [sys.executable, "-m", "firstline_edge.profiling.process"], input=said, capture_output=True, check=True
    )
    last = msgspec.json.decode(done.stdout.splitlines()[-1], type=Told)
    found = read_profile(path)
    assert found is not None and last.measured == len(found.points) > 0
    assert (tmp_path / "p.json.damaged").read_bytes() == b"{half of it"
