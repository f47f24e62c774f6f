"""Profiles in the store: the newest of each place, limited versions, deleted with their device."""

from msgspec.structs import replace
from support.profiles import profile

from firstline_core.fleet.profiles import MACHINE_VERSIONS, ProfileEntry, entry_of
from firstline_core.profile.profile import encode
from firstline_gateway.profiles import records
from firstline_gateway.store.database import Database


def put(
    database: Database, *query_ms: float, by: str = "application:ops", kept_s: float = 0.0, **at: str | int
) -> None:
    uploaded = profile(*query_ms, **at)
    content = encode(uploaded)
    with database.begin() as connection:
        records.put(connection, replace(entry_of(uploaded, content), by=by, kept_s=kept_s), content)


def all_of(database: Database, **filters: str) -> list[ProfileEntry]:
    with database.reading() as connection:
        return records.page(connection, ("", 0, ""), 100, **filters)


def test_the_newest_profile_of_a_place_is_kept(database: Database) -> None:
    put(database, 1.0)
    put(database, 1.0, 2.0)
    put(database, 1.0, machine="cam")
    found = all_of(database)
    assert [(one.machine, one.points) for one in found] == [("bench", 2), ("cam", 1)]
    assert found[0].models == ("a" * 64,)
    with database.reading() as connection:
        assert records.find(connection, ("digits", 1, "bench"))[1] == encode(profile(1.0, 2.0))
        assert records.find(connection, ("digits", 2, "bench")) is None


def test_pages_are_sorted_by_bundle_version_and_machine(database: Database) -> None:
    for version in (9, 10):
        for machine in ("cam", "bench"):
            put(database, 1.0, version=version, machine=machine)
    put(database, 1.0, bundle="animals")
    with database.reading() as connection:
        after, seen = ("", 0, ""), []
        while page := records.page(connection, after, 2):
            seen += [(one.bundle, one.version, one.machine) for one in page]
            after = seen[-1]
    assert seen == sorted(seen) and len(seen) == 5
    assert len(all_of(database, bundle="digits")) == 4
    assert len(all_of(database, machine="cam")) == 2


def test_versions_of_a_machine_are_limited(database: Database) -> None:
    put(database, 1.0, version=1, machine="cam", kept_s=0.0)
    for version in range(1, MACHINE_VERSIONS + 2):
        put(database, 1.0, version=version, kept_s=float(version))
    put(database, 1.0, version=1, kept_s=-1.0)  # the clock was set back: what has just come stays all the same
    found = all_of(database)
    assert [one.version for one in found if one.machine == "bench"] == [1, *range(3, MACHINE_VERSIONS + 2)]
    assert [one.version for one in found if one.machine == "cam"] == [1]


def test_a_deleted_device_loses_its_profiles(database: Database) -> None:
    put(database, 1.0, machine="cam", by="device:cam")
    put(database, 1.0, machine="cam", version=2)
    put(database, 1.0, machine="press", by="device:press")
    with database.begin() as connection:
        records.delete_device(connection, "cam")
    assert [(one.machine, one.by) for one in all_of(database)] == [
        ("press", "device:press"),
        ("cam", "application:ops"),
    ]
