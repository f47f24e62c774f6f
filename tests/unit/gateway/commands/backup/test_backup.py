"""Backups: of either database, restored into either, whole or not at all, and never over anything."""

import itertools
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import text
from support.databases import PostgreSql, empty_sqlite_store, sqlite_store

from firstline_core.errors import ConfigError
from firstline_gateway.commands.backup.backup import back_up, restore
from firstline_gateway.jobs import records as jobs
from firstline_gateway.jobs.records import Job
from firstline_gateway.rollouts import records as rollouts
from firstline_gateway.rollouts.rollout import Definition, Rollout, RolloutState
from firstline_gateway.serving.deliveries import records
from firstline_gateway.serving.deliveries.records import DeliveryKey, Record
from firstline_gateway.settings.settings import IdentitySection, JobsSection, Settings, StoreSection
from firstline_gateway.store.database import Database
from firstline_gateway.tables import open_database

ROWS = 2500  # of several batches
ON_SQLITE = pytest.mark.parametrize("store_settings", ["sqlite"], indirect=True)
AWKWARD = 'Zoë\'s "cam"\n\\'


def settings_in(folder: Path, store: StoreSection | None = None) -> Settings:
    folder.mkdir(exist_ok=True)
    return Settings(
        store=store or empty_sqlite_store(folder), identity=IdentitySection(directory=str(folder / "identity"))
    )


def put(database: Database, number: int, device: str = "cam") -> None:
    answer = None if number % 2 else bytes([number % 256]) * 3
    with database.begin() as connection:
        record = Record(bytes(32), answer, None if answer is None else number)
        records.put(connection, DeliveryKey(device, f"{number}"), record, service_s=number / 3, limit=1_000_000)


def contents(store: StoreSection) -> dict[str, list[tuple[object, ...]]]:
    database = open_database(store)
    with database.reading() as connection:
        found = {}
        for table in ("deliveries", "jobs", "contract_pools", "service_clock", "identity_version"):
            found[table] = [tuple(row) for row in connection.execute(text(f"SELECT * FROM {table} ORDER BY 1"))]
    database.close()
    return found


def hand_in(database: Database, number: int) -> None:
    job = Job(f"{number}", AWKWARD, "m", "", jobs.RUNNING, bytes(range(number)), number or None, None, number / 3)
    with database.begin() as connection:
        assert jobs.add(connection, job, 2, JobsSection(limit=1000, bytes_limit=1_000_000)) is None


@pytest.fixture
def filled(store_settings: StoreSection, tmp_path: Path) -> Settings:
    """A store on either database, and an authority's folder."""
    settings = settings_in(tmp_path / "old", store_settings)
    database = open_database(settings.store)
    with database.begin() as connection:
        rows = [{"key": f"{number:04}{AWKWARD}", "record": "{}"} for number in range(ROWS)]
        connection.execute(text("INSERT INTO contract_pools (key, record) VALUES (:key, :record)"), rows)
        connection.execute(text("UPDATE service_clock SET seconds = 0.1"))
        connection.execute(text("UPDATE identity_version SET version = 9007199254740993"))
    for number in range(5):
        put(database, number, AWKWARD)
        hand_in(database, number)
    with database.begin() as connection:
        assert jobs.end(connection, "1", jobs.JobResult(200, b"answer", 3), 2.5)
    database.close()
    identity = Path(settings.identity.directory)
    identity.mkdir(mode=0o700)
    for name, mode in {"active.pem": 0o600, "crl.pem": 0o644, ".lock": 0o600}.items():
        (identity / name).write_bytes(name.encode() * 1000)
        (identity / name).chmod(mode)
    return settings


@pytest.fixture(params=["sqlite", "postgresql"])
def new(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """A gateway that has nothing yet, on either database."""
    store = None
    if request.param == "postgresql":
        running: PostgreSql = request.getfixturevalue("postgresql")
        store = StoreSection(url=running.new_database())
    return settings_in(tmp_path / "new", store)


@pytest.fixture(scope="module")
def empty_backup(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The backup of a store with nothing in it, and of no authority."""
    folder = tmp_path_factory.mktemp("empty")
    back_up(settings_in(folder, sqlite_store(folder)), folder / "gateway.backup")
    return (folder / "gateway.backup").read_bytes()


def test_a_backup_restores_everything_on_either_database(filled: Settings, new: Settings, tmp_path: Path) -> None:
    path = tmp_path / "gateway.backup"
    manifest = back_up(filled, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    restored = restore(new, path)
    assert restored.manifest == manifest
    assert restored.rows["contract_pools"] == ROWS
    assert contents(new.store) == contents(filled.store)
    files = {one.name: one for one in Path(new.identity.directory).iterdir() if not one.name.startswith(".")}
    assert files.keys() == {"active.pem", "crl.pem"}
    assert files["active.pem"].read_bytes() == b"active.pem" * 1000
    assert [stat.S_IMODE(files[name].stat().st_mode) for name in ("active.pem", "crl.pem")] == [0o600, 0o644]
    database = open_database(new.store)
    put(database, 99)  # numbered after those that were restored
    hand_in(database, 99)
    with database.begin() as connection:
        claimed, _ = jobs.claim(connection, "here", 9, 1, service_s=100.0, submitted_by_s=100.0, lease_s=1.0)
        assert [job.job_id for job in claimed] == ["0", "2", "3", "4", "99"]
        ended = jobs.find(connection, "1", AWKWARD)
        assert (ended.status, ended.content, ended.header) == (200, b"answer", 3)
    database.close()
    assert contents(new.store)["deliveries"][-1][:3] == (6, "cam", "99")


@ON_SQLITE
def test_a_restored_rollout_is_paused_until_a_person_decides(filled: Settings, new: Settings, tmp_path: Path) -> None:
    database = open_database(filled.store)
    definition = Definition("cameras", 2, "2" * 64)
    with database.begin() as connection:
        for state in (RolloutState.RUNNING, RolloutState.COMPLETED, RolloutState.ROLLING_BACK):
            rollouts.add(connection, Rollout(state.value, definition, state, "ops", 1.7e9, seed=1), None)
        rollouts.add(connection, Rollout("damaged", definition, RolloutState.RUNNING, "ops", 1.7e9, seed=1), None)
        connection.execute(text("UPDATE rollouts SET record = '{}' WHERE id = 'damaged'"))
    database.close()
    back_up(filled, tmp_path / "gateway.backup")
    assert restore(new, tmp_path / "gateway.backup").paused == ["running"]
    database = open_database(new.store)
    with database.reading() as connection:
        found = rollouts.find(connection, "running")
        assert found.state is RolloutState.PAUSED and "restored from a backup as of 20" in found.sentence
        assert "rule:restore" in connection.execute(text("SELECT actor FROM audit_log_entries")).scalars().all()
        for state in (RolloutState.COMPLETED, RolloutState.ROLLING_BACK):
            assert rollouts.find(connection, state.value).state is state
    database.close()


def test_the_authority_alone_is_restored_next_to_an_existing_store(filled: Settings, tmp_path: Path) -> None:
    path, identity = tmp_path / "gateway.backup", Path(filled.identity.directory)
    back_up(filled, path)
    before = contents(filled.store)
    with pytest.raises(ConfigError, match="is not empty; a restore overwrites nothing"):
        restore(filled, path, only="authority")
    for one in ("active.pem", "crl.pem"):
        (identity / one).unlink()
    assert restore(filled, path, only="authority").rows == {}
    assert (identity / "active.pem").read_bytes() == b"active.pem" * 1000
    assert contents(filled.store) == before


@ON_SQLITE
def test_the_store_alone_is_restored_next_to_an_existing_authority(filled: Settings, tmp_path: Path) -> None:
    path, identity, store = tmp_path / "gateway.backup", Path(filled.identity.directory), filled.store
    back_up(filled, path)
    before = contents(store)
    (identity / "crl.pem").write_bytes(b"newer")
    with pytest.raises(ConfigError, match="overwrites nothing"):
        restore(filled, path, only="store")
    lost = StoreSection(url=f"sqlite:///{tmp_path / 'again.db'}")
    assert restore(msgspec.structs.replace(filled, store=lost), path, only="store").rows["contract_pools"] == ROWS
    assert contents(lost) == before
    assert (identity / "crl.pem").read_bytes() == b"newer"


def test_a_backup_is_of_one_moment(filled: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from firstline_gateway.commands.backup import backup

    lines, database, numbers = backup.lines, open_database(filled.store), itertools.count(1000)

    def lines_while_somebody_writes(connection: object, table: object) -> object:
        put(database, next(numbers))
        return lines(connection, table)

    monkeypatch.setattr(backup, "lines", lines_while_somebody_writes)
    before = contents(filled.store)
    back_up(filled, tmp_path / "gateway.backup")
    database.close()
    assert len(contents(filled.store)["deliveries"]) > 5
    other = settings_in(tmp_path / "other")
    restore(other, tmp_path / "gateway.backup")
    assert contents(other.store) == before


def test_nothing_is_overwritten(filled: Settings, tmp_path: Path) -> None:
    path = tmp_path / "gateway.backup"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="is there already"):
        back_up(filled, path)
    assert path.read_text() == "mine"
    path.unlink()
    back_up(filled, path)
    with pytest.raises(ConfigError, match="a restore overwrites nothing"):
        restore(filled, path)
    other = settings_in(tmp_path / "other", filled.store)  # the folder is new, the store is not
    with pytest.raises(ConfigError, match="a restore overwrites nothing"):
        restore(other, path)
    assert not Path(other.identity.directory).exists()
    assert [one.name for one in tmp_path.iterdir() if "backup" in one.name] == ["gateway.backup"]


def test_a_missing_store_cannot_be_backed_up(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no store at"):
        back_up(settings_in(tmp_path / "empty"), tmp_path / "gateway.backup")
    assert not (tmp_path / "gateway.backup").exists()


@ON_SQLITE
def test_a_file_in_the_place_of_the_identity_folder_is_named(filled: Settings, tmp_path: Path) -> None:
    back_up(filled, tmp_path / "gateway.backup")
    other = settings_in(tmp_path / "other")
    Path(other.identity.directory).parent.mkdir(parents=True, exist_ok=True)
    Path(other.identity.directory).write_text("mine")
    with pytest.raises(ConfigError, match=r"identity\.directory: .* cannot be a folder"):
        restore(other, tmp_path / "gateway.backup")


@ON_SQLITE
def test_a_missing_folder_is_named(filled: Settings, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written: there is no such file or folder"):
        back_up(filled, tmp_path / "none" / "gateway.backup")
    with pytest.raises(ConfigError, match="does not exist"):
        restore(filled, tmp_path / "none")


Spoil = Callable[[bytes], bytes]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:-1],
        lambda content: b"",
        lambda content: b"not a backup" * 100,
        lambda content: content[:200] + bytes([content[200] ^ 1]) + content[201:],
    ],
)
def test_a_damaged_backup_restores_nothing(tmp_path: Path, empty_backup: bytes, spoil: Spoil) -> None:
    new, path = settings_in(tmp_path / "new"), tmp_path / "gateway.backup"
    path.write_bytes(spoil(empty_backup))
    with pytest.raises(ConfigError, match="is damaged, or not a backup"):
        restore(new, path)
    assert not list((tmp_path / "new").iterdir())


def test_no_flipped_bit_changes_the_mode_of_a_restored_file(tmp_path: Path) -> None:
    old, path = settings_in(tmp_path / "old", sqlite_store(tmp_path / "old")), tmp_path / "gateway.backup"
    identity = Path(old.identity.directory)
    identity.mkdir()
    (identity / "ca.key").write_bytes(b"key")
    (identity / "ca.key").chmod(0o600)
    back_up(old, path)
    content = path.read_bytes()
    start = content.rindex(b"identity/ca.key") - 46  # its entry in the archive's directory
    restored = 0
    for position in range(start * 8, (start + 46 + len("identity/ca.key")) * 8):
        flipped = bytearray(content)
        flipped[position // 8] ^= 1 << position % 8
        path.write_bytes(flipped)
        new = settings_in(tmp_path / f"new{position}")
        try:
            restore(new, path, only="authority")
        except ConfigError:
            continue
        (file,) = (one for one in Path(new.identity.directory).iterdir() if not one.name.startswith("."))
        assert (file.name, file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == ("ca.key", b"key", 0o600)
        restored += 1
    assert restored > 0


def rewritten(path: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def test_a_foreign_archive_is_refused(tmp_path: Path, empty_backup: bytes) -> None:
    new, path = settings_in(tmp_path / "new"), tmp_path / "gateway.backup"

    def manifest(members: dict[str, bytes], **changes: object) -> None:
        members["manifest.json"] = msgspec.json.encode(msgspec.json.decode(members["manifest.json"]) | changes)

    def added(name: str) -> Callable[[dict[str, bytes]], None]:
        def add(members: dict[str, bytes]) -> None:
            found = msgspec.json.decode(members["manifest.json"])
            members[name] = b"content"
            manifest(members, modes=found["modes"] | {name: 0o600})

        return add

    for change, message in (
        (lambda members: manifest(members, format=2), "has format 2; this version of Firstline reads 1"),
        (lambda members: manifest(members, schema="9999"), "schema is 9999"),
        (lambda members: members.update(more=b""), "does not hold what its manifest lists"),
        (added("identity/../../escaped"), "it would write"),
        (added("identity/sub/ca.key"), "it would write"),
        (added("identity/.lock"), "it would write"),
    ):
        path.write_bytes(empty_backup)
        rewritten(path, change)
        with pytest.raises(ConfigError, match=message):
            restore(new, path)
        assert not list((tmp_path / "new").iterdir())
    assert not (tmp_path.parent / "escaped").exists()
