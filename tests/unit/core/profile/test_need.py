"""What a point needs is its own peak where that is known, and room is what the group leaves of the machine."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace
from support.profiles import point
from support.sample_bundles import variant_bundle

from firstline_core.hardware.readings import Measured
from firstline_core.hardware.tree import Tree
from firstline_core.profile.measure_point import has_room
from firstline_core.profile.need import need
from firstline_core.profile.profile import Key, Profile

MIB = 1 << 20


def test_memory_is_three_times_the_files_until_it_is_measured(tmp_path: Path) -> None:
    model = variant_bundle(tmp_path / "bundle", "small").manifest.edge[0]
    key = Key(model.id, model.digest, "CPUExecutionProvider", 2, 4)
    asked = need(key, model, None, usable_cores=1.5)
    assert asked.memory_bytes == 3 * model.artefact.size_bytes
    assert (asked.cores, asked.heats) == (1.5, False)
    of_one_row = point(1.0, variant=model.id, digest=model.digest)
    known = Profile("b", 1, "m", "f", (replace(of_one_row, peak_memory_bytes=Measured(9e6, "/status")),))
    assert need(key, model, known, usable_cores=4.0).memory_bytes == 9e6
    hot = replace(key, condition="sustained", threads=0)
    asked = need(hot, model, known, usable_cores=4.0)
    assert (asked.cores, asked.heats) == (4.0, True)


def test_a_second_model_is_loaded_only_where_the_group_has_room_and_some_stays(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 8000000 kB\nMemAvailable: 4000000 kB\n")
    assert has_room(900 * MIB, Tree(tmp_path))
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    for name, content in (("cgroup.controllers", "memory"), ("memory.max", f"{512 * MIB}"), ("memory.current", "0")):
        (group / name).write_text(content)
    assert has_room(96 * MIB, Tree(tmp_path))  # four times that, and 128 MiB beside
    assert not has_room(97 * MIB, Tree(tmp_path))
    assert not has_room(1, Tree(tmp_path / "nothing"))
