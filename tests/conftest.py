"""Fixtures for every test: a real broker, a store on either database, and the third-party models."""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import certifi
import pytest
from hypothesis import settings
from support import forks
from support.broker import Broker, find_mosquitto
from support.needs import missing

from firstline_core.telemetry import logs
from firstline_gateway.settings.settings import StoreSection

if TYPE_CHECKING:
    from support.databases import PostgreSql

    from firstline_gateway.store.database import Database

# The tests start hundreds of processes, which import the same modules: without compiled ones, each compiles them.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Threads of linear algebra wait for each other in loops, which doubles the processor time if all cores are busy. The
# workers and the processes that tests start inherit this.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# A third of the processor time of Go's programs is collections of garbage, and threads that look for work.
os.environ |= {"GOGC": "1000", "GOMAXPROCS": "1"}
# jsonschema imports it for a format of `test_supply.py`, which has its own check: its grammar takes a second.
sys.modules["rfc3987_syntax"] = None

settings.register_profile("any machine", deadline=None, max_examples=50)  # a busy one is slow at times
settings.load_profile("any machine")

BrokerStarter = Callable[..., Broker]

_CHECKOUT = Path(__file__).parents[1]
_UNIT, _PROPERTY = (Path(__file__).parent / folder for folder in ("unit", "property"))
# As long as the process: of `firstline_core.protocol.http`, tqdm and grpc.aio, and those that gRPC itself starts, which
# Python names "Dummy-N" after they called Python code.
_LASTING_THREADS = ("decoding", "tqdm_monitor", "_poll_wrapper", "Dummy-")
_CLIENTS_PYTHON = _CHECKOUT / ".venv-clients" / "bin" / "python"


def _shared_data() -> Path:
    return Path(os.environ.get("FIRSTLINE_SHARED_DATA", _CHECKOUT.parent / "shared" / "data"))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Lets all workers fork processes from one server, which takes seconds to import the product."""
    node.workerinput["forks"] = str(forks.server())


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        forks.share(Path(config.workerinput["forks"]))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays to the end, and is half a gigabyte: no search for garbage needs to look at it.

    Searches after every 700 allocations, Python's default, take a tenth of the suite's processor time, and those after
    every 10,000 a twentieth.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(50_000, 10, 10)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Lets files that wait for processes alternate with files that compute, so that the workers keep all cores busy."""
    if not hasattr(config, "workerinput"):
        return
    files = dict.fromkeys(item.path for item in items)
    computing = [file for file in files if file.is_relative_to(_UNIT) or file.is_relative_to(_PROPERTY)]
    turns = {file: turn / len(computing) for turn, file in enumerate(computing)}
    # Most of the files outside of integration/ take long, and the last one must not.
    waiting = sorted((file for file in files if file not in turns), key=lambda file: file.parent.name == "integration")
    turns |= {file: turn / len(waiting) for turn, file in enumerate(waiting)}
    items.sort(key=lambda item: turns[item.path])


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("mosquitto") is not None and find_mosquitto() is None:
        _require_mosquitto()
    if item.get_closest_marker("shared_data") is not None:
        _require_shared_data()
    if item.get_closest_marker("ray") is not None and find_spec("ray") is None:
        pytest.skip("Ray is not installed here: `make -C tests ray` runs this in an environment of its own")
    if item.get_closest_marker("train") is not None and not all(map(find_spec, ("torch", "onnx2torch"))):
        pytest.skip("PyTorch is not installed here: `make -C tests train` runs this in an environment of its own")
    if item.get_closest_marker("clients") is not None and not _CLIENTS_PYTHON.exists():
        missing("there is no .venv-clients: `make clients`")


def _require_mosquitto() -> None:
    missing("mosquitto is not installed: `apt-get install mosquitto`")


def _require_shared_data() -> Path:
    folder = _shared_data()
    if not folder.is_dir():  # third-party files, which a clone does not bring: not even CI must have them
        pytest.skip(f"no models and images in {folder} (FIRSTLINE_SHARED_DATA names another folder)")
    return folder


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command that a test runs within this process sets up logging to that test's own stderr, closed after it."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    levels = {logger: logger.level for logger in map(logging.getLogger, logs._VERBOSE_LIBRARIES)}
    yield
    root.handlers, root.level = handlers, level
    for logger, before in levels.items():
        if logger.level != before:  # each call would empty the caches of all loggers
            logger.setLevel(before)


@pytest.fixture(scope="module", autouse=True)
def _threads_end() -> Iterator[None]:
    """Expects that the threads of a file's tests and fixtures end; a test of another file could wait for them."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if not any(name in thread.name for name in _LASTING_THREADS):
            thread.join(10)
            assert not thread.is_alive(), f"the thread {thread.name} is left"


@pytest.fixture(scope="session", autouse=True)
def _one_public_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test asks a server of the world; to read all of its authorities takes each HTTP client 20 ms."""
    first, end, _ = Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----")
    authority_file = tmp_path_factory.mktemp("authorities") / "one.pem"
    authority_file.write_text(f"{first}{end}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(authority_file))
        patch.setattr(certifi, "where", lambda: str(authority_file))  # of clients that do not use the environment
        yield


@pytest.fixture
def start_mosquitto(tmp_path: Path) -> Iterator[BrokerStarter]:
    """A function that starts a `Broker` (its arguments but the folder) and stops it after the test."""
    if find_mosquitto() is None:
        _require_mosquitto()
    with ExitStack() as running:
        count = 0

        def start(**arguments: Any) -> Broker:
            nonlocal count
            count += 1
            return running.enter_context(Broker(tmp_path / f"broker-{count}", **arguments))

        yield start


@pytest.fixture
def mosquitto(start_mosquitto: BrokerStarter) -> Broker:
    """A running broker that lets anybody in: `.host`, `.port`, `.stop()`, `.start()` on the same port."""
    return start_mosquitto()


@pytest.fixture(scope="session")
def postgresql_installed() -> None:
    """For tests that start a PostgreSQL of their own."""
    from support.databases import find_postgresql  # the environment of `make tflite` has no gateway's store

    if find_postgresql() is None:
        missing("PostgreSQL is not installed: `make postgres`")


@pytest.fixture(scope="session")
def postgresql(postgresql_installed: None) -> Iterator[PostgreSql]:
    """A running PostgreSQL that all tests of one process share, each with a database of its own."""
    from support.databases import PostgreSql

    with PostgreSql() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def store_settings(request: pytest.FixtureRequest, tmp_path: Path) -> StoreSection:
    """The settings of a store with today's schema and nothing in it; the test runs once on each database."""
    from support.databases import SQLITE, sqlite_store

    if request.param == SQLITE:
        return sqlite_store(tmp_path)
    running: PostgreSql = request.getfixturevalue("postgresql")
    return running.new_store()


@pytest.fixture
def database(store_settings: StoreSection) -> Iterator[Database]:
    """A database with today's schema and nothing in it; the test runs once on each kind of database."""
    from firstline_gateway.tables import open_database

    found = open_database(store_settings)
    yield found
    found.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_store(request: pytest.FixtureRequest, tmp_path: Path) -> StoreSection:
    """The settings of a store without a schema; likewise."""
    from support.databases import SQLITE, empty_sqlite_store

    if request.param == SQLITE:
        return empty_sqlite_store(tmp_path)
    running: PostgreSql = request.getfixturevalue("postgresql")
    return StoreSection(url=running.new_database())


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of third-party models and images (`FIRSTLINE_SHARED_DATA`, else ../shared/data)."""
    return _require_shared_data()


@pytest.fixture(scope="session")
def clients_python() -> Path:
    """The interpreter of the environment that holds the Triton and KServe clients."""
    if not _CLIENTS_PYTHON.exists():
        missing("there is no .venv-clients: `make clients`")
    return _CLIENTS_PYTHON
