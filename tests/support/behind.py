"""Gateways behind a gateway, as processes of their own."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.databases import sqlite_store
from support.gateway import DIGITS
from support.keys import create_key

COMMAND = (sys.executable, "-m", "firstline_gateway")


class Behind:
    """One gateway behind, as a process of its own; all know the same key."""

    def __init__(self, folder: Path, store: Path, bundle: Path = DIGITS) -> None:
        folder.mkdir()
        shutil.copy(store, folder / "gateway.db")
        self.folder = folder
        self.config = folder / "gateway.toml"
        self._bundle = bundle
        self._write(bundle, port=0)
        self.start()

    def _write(self, bundle: Path, port: int) -> None:
        self.config.write_text(
            f'[api]\nport = {port}\n[models]\ndirectory = "{bundle}"\n[execution]\nsessions = 1\n'
            '[log]\nlevel = "warning"\nformat = "json"\n'
        )

    def start(self) -> None:
        with (self.folder / "log").open("a") as log:
            self.process = subprocess.Popen(
                [*COMMAND, "run", "--config", str(self.config), "-o", "json"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (self.folder / "log").read_text()
        self.url = str(json.loads(line)["url"])
        self._write(self._bundle, int(self.url.rsplit(":", 1)[1]))  # so that it comes back there

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.communicate(timeout=20)


@dataclass(frozen=True)
class Site:
    """A folder, and the key that all gateways behind know."""

    folder: Path
    token: str

    @contextmanager
    def behind(self, name: str, bundle: Path = DIGITS) -> Iterator[Behind]:
        found = Behind(self.folder / name, self.folder / "keys" / "gateway.db", bundle)
        try:
            yield found
        finally:
            if found.process.poll() is None:
                found.end()


def site_in(folder: Path) -> Site:
    """A folder for gateways that know one key."""
    keys = folder / "keys"
    keys.mkdir()
    store = sqlite_store(keys)
    return Site(folder, create_key(store, "near", "application"))
