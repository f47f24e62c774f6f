"""Devices in the store: presence, desired documents, tags, and late messages."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace
from sqlalchemy import Connection, event

from firstline_core.fleet.rest import Presence, Sort
from firstline_core.fleet.selector import parse_selector
from firstline_core.fleet.twin import Brake, Desired, DesiredModel, Reported, RunningModel
from firstline_gateway.fleet import devices
from firstline_gateway.store.database import Database

NOW_S = 1.7e9
WANTED = DesiredModel("digits", 2, "0" * 64)


def say(database: Database, name: str, session: str, sequence: int, version: int = 1, *, accept: bool = True) -> bool:
    reported = Reported(session, sequence, models=(RunningModel("digits", version),))
    with database.begin() as connection:
        return devices.report(connection, name, reported, NOW_S + sequence, accept=accept)


def version_of(database: Database, name: str) -> int:
    with database.reading() as connection:
        found = devices.find(connection, name)
    return found.reported.models[0].version


def tagged(selector: str) -> Callable[[devices.StoredDevice], bool]:
    parsed = parse_selector(selector)
    return lambda device: parsed.matches(device.tags)


def wanted(_name: str, desired: Desired) -> Desired:
    return replace(desired, models=(WANTED,))


def test_the_latest_report_of_a_device_counts(database: Database) -> None:
    assert say(database, "cam", "s1", 1, version=1)
    assert say(database, "cam", "s1", 3, version=3)
    assert not say(database, "cam", "s1", 2, version=2)
    assert version_of(database, "cam") == 3


def test_late_messages_of_an_earlier_process_are_ignored(database: Database) -> None:
    assert say(database, "cam", "old", 9, version=1)
    assert say(database, "cam", "new", 0, version=2)
    assert not say(database, "cam", "old", 10, version=1)
    with database.begin() as connection:
        assert not devices.mark_offline(connection, "cam", "old")
        found = devices.find(connection, "cam")
        assert found.online and found.session == "new"
        assert devices.mark_offline(connection, "cam", "new")
        found = devices.find(connection, "cam")
        assert not found.online and found.last_seen_s == NOW_S
    assert version_of(database, "cam") == 2


def accept(connection: Connection, *names: str) -> None:
    for name in names:
        devices.accept(connection, name, NOW_S)


def test_each_change_of_the_desired_document_is_a_revision(database: Database) -> None:
    with database.begin() as connection:
        accept(connection, "b", "a")
        assert devices.desire(connection, ["b", "a"], wanted) == ["a", "b"]
        assert devices.desire(connection, ["a"], wanted) == []
        assert [(name, state.revision) for name, state in devices.unpublished(connection, 10)] == [("a", 1), ("b", 1)]
        devices.mark_published(connection, {"a": 1})
        assert [name for name, _ in devices.unpublished(connection, 10)] == ["b"]
        assert devices.unpublished(connection, 10, "b") == []
        devices.desire(connection, ["a"], lambda _, before: replace(before, models=()))
        assert devices.find(connection, "a").desired == Desired(2)
        devices.mark_published(connection, {"a": 1})  # of before, and late
        assert {name: state.revision for name, state in devices.unpublished(connection, 10)} == {"a": 2, "b": 1}
        devices.mark_published(connection, {"a": 2, "b": 1})
        assert devices.report(connection, "a", Reported("s", 1, 2), NOW_S, accept=True)
        assert devices.report(connection, "b", Reported("s", 1, 0), NOW_S, accept=True)  # the broker lost it
        assert [(name, state.revision) for name, state in devices.unpublished(connection, 10)] == [("b", 1)]


def test_documents_behind_a_device_are_those_of_newer_changes(database: Database) -> None:
    with database.begin() as connection:
        accept(connection, "a", "b", "c")
        devices.desire(connection, ["a", "b", "c"], wanted)
        devices.desire(connection, ["c"], lambda _, before: replace(before, models=()))
        assert [name for name, _ in devices.unpublished(connection, 10)] == ["c", "a", "b"]
        assert [name for name, _ in devices.unpublished(connection, 10, "c")] == ["a", "b"]
        assert [name for name, _ in devices.unpublished(connection, 10, "a")] == ["b"]
        assert len(devices.unpublished(connection, 10, "forgotten")) == 3


def test_a_restored_store_continues_after_the_revisions_that_devices_know(database: Database) -> None:
    with database.begin() as connection:
        accept(connection, "cam", "liar")
        devices.desire(connection, ["cam", "liar"], wanted)
        devices.mark_published(connection, {"cam": 1, "liar": 1})
        assert devices.report(connection, "cam", Reported("s", 1, 9), NOW_S, accept=True)
        assert [(name, state.revision) for name, state in devices.unpublished(connection, 10)] == [("cam", 10)]
        assert devices.find(connection, "cam").desired == Desired(10, (WANTED,))
        devices.mark_published(connection, {"cam": 10})
        assert not devices.report(connection, "cam", Reported("s", 1, 12), NOW_S, accept=True)  # late
        assert devices.report(connection, "cam", Reported("s", 2, 10), NOW_S, accept=True)
        assert devices.report(connection, "liar", Reported("s", 1, 2**53), NOW_S, accept=True)
        assert devices.unpublished(connection, 10) == []
        assert devices.desire(connection, ["cam"], lambda _, before: replace(before, models=())) == ["cam"]
        assert [state.revision for _, state in devices.unpublished(connection, 10)] == [11]


def test_a_device_that_is_not_accepted_is_listed_and_receives_nothing(database: Database) -> None:
    say(database, "stranger", "s", 1, accept=False)
    with database.begin() as connection:
        assert devices.tagged(connection) == []
        assert devices.unpublished(connection, 10) == []
        assert devices.accept(connection, "stranger", NOW_S)
        assert not devices.accept(connection, "stranger", NOW_S)
        assert devices.tagged(connection) == [("stranger", {})]


def test_pages_continue_after_the_last_device_and_skip_unselected_ones(database: Database) -> None:
    for number in range(25):
        say(database, f"d{number:02}", "s", 1)
        with database.begin() as connection:
            devices.tag(connection, f"d{number:02}", {"odd": "yes" if number % 2 else None, "n": str(number)})
    with database.reading() as connection:
        first = devices.page(connection, "", 5, tagged("odd"))
        assert [device.name for device in first] == ["d01", "d03", "d05", "d07", "d09"]
        assert len(devices.page(connection, first[-1].name, 100, tagged("odd=yes"))) == 7
        assert devices.page(connection, "d24", 5, tagged("")) == []


def test_lists_are_filtered_and_sorted_by_the_last_message(database: Database) -> None:
    for number, name in enumerate(("cam-a", "cam-b", "press", "cam-c")):
        say(database, name, "s", 2000 if number == 3 else -number)
    with database.begin() as connection:
        devices.mark_offline(connection, "cam-b", "s")
        devices.accept(connection, "stranger", NOW_S)

        def listed(after: str = "", limit: int = 10, **filters: Any) -> list[str]:
            chosen = devices.Filter(parse_selector(""), **filters)
            found = devices.page(
                connection, after, limit, lambda one: chosen.matches(one, NOW_S + 2000, {"press"}), Sort.LAST_SEEN
            )
            return [device.name for device in found]

        assert listed() == ["stranger", "press", "cam-b", "cam-a", "cam-c"]
        assert listed("press", 2) == ["cam-b", "cam-a"]
        assert listed(search="CAM", limit=2) == ["cam-b", "cam-a"]
        presences = {each: listed(presence=each) for each in Presence}
        assert {name for names in presences.values() for name in names} == set(listed())
        assert presences[Presence.REVOKED] == ["press"] and presences[Presence.ASLEEP] == ["stranger"]
        assert presences[Presence.LATE] == ["cam-b", "cam-a"]
        assert listed(accepted=False) == []


def test_tags_are_set_and_removed(database: Database) -> None:
    say(database, "cam", "s", 1)
    with database.begin() as connection:
        assert devices.tag(connection, "cam", {"site": "berlin", "floor": "2"}) == {"site": "berlin", "floor": "2"}
        assert devices.tag(connection, "cam", {"floor": None}) == {"site": "berlin"}


def test_a_decommissioned_device_is_deleted(database: Database) -> None:
    say(database, "cam", "s", 1)
    with database.begin() as connection:
        assert devices.forget(connection, "cam")
        assert not devices.forget(connection, "cam")
        assert devices.find(connection, "cam") is None


def test_the_brake_is_in_force_until_it_is_lifted(database: Database) -> None:
    with database.begin() as connection:
        assert devices.brake(connection) is None
        devices.set_brake(connection, Brake(0.0, "the gateway is down"))
        devices.set_brake(connection, Brake(10.0, "the gateway is slow"))
        assert devices.brake(connection) == Brake(10.0, "the gateway is slow")
        devices.set_brake(connection, None)
        assert devices.brake(connection) is None


def test_the_brake_reaches_all_devices_without_a_change_of_their_rows(database: Database) -> None:
    brake = Brake(0.0, "the gateway is being moved")
    with database.begin() as connection:
        accept(connection, "a", "b")
        devices.desire(connection, ["a"], wanted)
        devices.mark_published(connection, {"a": 1, "b": 0})
        executed = statements(database)
        assert devices.set_brake(connection, brake) == 2
        assert [each for each in executed if each.startswith("UPDATE fleet_devices")] == []
        assert devices.set_brake(connection, brake) == 0  # as it was
        braked = {"a": Desired(2, (WANTED,), brake=brake), "b": Desired(1, brake=brake)}
        assert dict(devices.unpublished(connection, 10)) == braked
        assert devices.find(connection, "a").desired == braked["a"]
        devices.mark_published(connection, {"a": 2, "b": 1})
        assert devices.unpublished(connection, 10) == []
        assert devices.set_brake(connection, None) == 2
        assert dict(devices.unpublished(connection, 10)) == {"a": Desired(3, (WANTED,)), "b": Desired(2)}


def statements(database: Database) -> list[str]:
    """What is asked of the database from now on."""
    found: list[str] = []
    event.listen(database._engine, "before_cursor_execute", lambda *args: found.append(args[2]))
    return found


def test_ten_thousand_devices_take_few_statements(database: Database) -> None:
    names = [f"d{number:05}" for number in range(2000)]
    with database.begin() as connection:
        accept(connection, *names)
        devices.desire(connection, names, wanted)
        executed = statements(database)
        devices.desire(connection, names, lambda _, desired: replace(desired, models=()))
        devices.mark_published(connection, dict.fromkeys(names, 2))
        assert devices.unpublished(connection, 10) == []
        assert devices.page(connection, "", 1, tagged("nowhere")) == []
        assert [each.name for each in devices.page(connection, "d01998", 5, tagged("!nowhere"))] == ["d01999"]
    assert len(executed) < 20


def test_a_device_that_was_decommissioned_meanwhile_is_not_created_again(database: Database) -> None:
    say(database, "here", "s", 1)
    with database.begin() as connection:
        assert devices.desire(connection, ["gone", "here"], wanted) == ["here"]
        assert devices.find(connection, "gone") is None
