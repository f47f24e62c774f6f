"""A real PostgreSQL on a free loopback port, and the settings of a fresh store on either database."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path

import psycopg
from support.broker import HOST, free_port

from firstline_gateway.settings.settings import StoreSection
from firstline_gateway.store.store import Store
from firstline_gateway.tables import open_database

SQLITE, POSTGRESQL = "sqlite", "postgresql"
_USER = "firstline"
_ACCOUNT = "postgres"  # whom the server runs as where the tests are root, for it refuses to be root
_TIMEOUT_S = 60.0
_MEMORY = Path("/dev/shm")
_PREFIX = "firstline-postgres-"
_LONGEST_RUN_S = 3 * 3600.0
_ROOM_BYTES = 4 << 30  # each test's database takes 8 MB, until its cluster's end
# A cluster that lives for one run of the tests need not outlive the machine.
_SETTINGS = ("fsync=off", "full_page_writes=off", "max_connections=60", "shared_buffers=16MB", "log_min_messages=fatal")


def find_postgresql() -> Path | None:
    """The folder of `initdb` and `postgres`: on the PATH, else Debian's newest."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return debian[-1].parent if debian else None


def _home() -> Path:
    """Where clusters are kept, which the server's account may enter: in memory a database takes a fifth of the time."""
    in_memory = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _ROOM_BYTES
    return _MEMORY if in_memory else Path("/tmp")


def _remove_left() -> None:
    """Removes the clusters of killed processes, which take up to a gigabyte of memory each."""
    for left in _home().glob(f"{_PREFIX}*"):
        with suppress(FileNotFoundError):  # another process removes it, too
            if time.time() - left.stat().st_mtime > _LONGEST_RUN_S:
                shutil.rmtree(left)


def _runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class PostgreSql:
    """One cluster in a folder of its own; it keeps its port, so that it can be stopped and started.

    Args:
        settings: further ones of postgresql.conf, as NAME=VALUE.
    """

    def __init__(self, *settings: str) -> None:
        binaries = find_postgresql()
        if binaries is None:
            raise FileNotFoundError("PostgreSQL is not installed: `make postgres`")
        self._binaries = binaries
        _remove_left()
        self._directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_home()))
        self._data = self._directory / "data"
        self._settings = (*_SETTINGS, *settings)
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self.port = free_port()
        if os.geteuid() == 0:
            shutil.chown(self._directory, _ACCOUNT, pwd.getpwnam(_ACCOUNT).pw_gid)
        subprocess.run(
            self._command("initdb", "-D", str(self._data), "-U", _USER, "-A", "trust", "-E", "UTF8", "--no-sync", "-N"),
            check=True,
            capture_output=True,
            cwd=self._directory,
        )

    def url(self, database: str = "postgres") -> str:
        """For `store.url`."""
        return f"postgresql+psycopg://{_USER}@{HOST}:{self.port}/{database}"

    def new_database(self, template: str = "template1") -> str:
        """Makes a database, empty but for what the template has; its URL."""
        self._databases += 1
        name = f"store_{self._databases}"
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            copied = "STRATEGY FILE_COPY" if connection.info.server_version >= 150_000 else ""  # a third of the time
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} {copied}".encode())
        return self.url(name)

    def new_store(self) -> StoreSection:
        """A store with today's schema and nothing in it."""
        return StoreSection(url=self.new_database(self._migrated))

    @cached_property
    def _migrated(self) -> str:
        url = self.new_database()
        open_database(StoreSection(url=url)).close()
        return url.rpartition("/")[2]

    def start(self) -> None:
        """Starts and waits until it accepts connections."""
        options = [part for setting in self._settings for part in ("-c", setting)]
        sockets = ["-c", f"unix_socket_directories={self._directory}", "-c", f"listen_addresses={HOST}"]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command("postgres", "-D", str(self._data), "-p", str(self.port), *options, *sockets),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
            )
        deadline_s = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                psycopg.connect(self.conninfo).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline_s:
                    raise RuntimeError((self._directory / "log").read_text()) from None
                time.sleep(0.01)

    def stop(self, *, kill: bool = False) -> None:
        """Ends it: at once and without a word to clients where `kill`, else as a shutdown that waits for no client."""
        process, self._process = self._process, None
        if process is None:
            return
        if kill:
            # With its children, which would otherwise end in peace. Stopped, it starts no further one meanwhile.
            process.send_signal(signal.SIGSTOP)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            for pid in (process.pid, *map(int, children)):
                os.kill(pid, signal.SIGKILL)
            while any(map(_runs, children)):  # a server does not start while another's memory is in use
                time.sleep(0.01)
        else:
            process.send_signal(signal.SIGINT)  # a "fast" shutdown
        process.wait(timeout=_TIMEOUT_S)

    def __enter__(self) -> PostgreSql:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def pid(self) -> int:
        """Of the process that runs; its children serve the connections."""
        return self._process.pid

    @property
    def conninfo(self) -> str:
        """For psycopg: the superuser, in the cluster's own database."""
        return f"host={HOST} port={self.port} user={_USER} dbname=postgres connect_timeout=5"

    def _command(self, binary: str, *arguments: str) -> list[str]:
        command = [str(self._binaries / binary), *arguments]
        if os.geteuid() != 0:
            return command
        return [
            "setpriv",
            f"--reuid={_ACCOUNT}",
            f"--regid={_ACCOUNT}",
            "--clear-groups",
            "--pdeathsig",
            "KILL",
            *command,
        ]


class OpenStore:
    """A store that is open, as a gateway has it."""

    def __init__(self, settings: StoreSection) -> None:
        self.database = open_database(settings)
        self.store = Store(self.database)

    def close(self) -> None:
        self.store.close()
        self.database.close()

    def __enter__(self) -> OpenStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def empty_sqlite_store(folder: Path) -> StoreSection:
    """A store in a file that is not there yet."""
    return StoreSection(url=f"sqlite:///{folder / 'gateway.db'}")


def sqlite_store(folder: Path) -> StoreSection:
    """A store in a file, with today's schema; where there is none yet, with nothing in it."""
    file = folder / "gateway.db"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
        file.write_bytes(_migrated())
    return StoreSection(url=f"sqlite:///{file}")


@cache
def _migrated() -> bytes:
    """SQLite's file after all migrations, which take longer than most tests that need it."""
    with tempfile.TemporaryDirectory() as folder:
        open_database(empty_sqlite_store(Path(folder))).close()
        return (Path(folder) / "gateway.db").read_bytes()
