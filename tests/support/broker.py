"""A real Mosquitto on a free loopback port, for the tests that need a broker."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

HOST = "127.0.0.1"
_SBIN = Path("/usr/sbin/mosquitto")  # Debian's place, which is not on every user's PATH
_START_TIMEOUT_S = 10.0
_RETRY_INTERVAL_S = 0.005
_ATTEMPTS = 5
_RANDOM = random.SystemRandom()  # a test may have seeded the other generator, as another worker's did


def find_mosquitto() -> Path | None:
    """The broker's binary: `FIRSTLINE_MOSQUITTO` where it is set, else the PATH, else Debian's place."""
    named = os.environ.get("FIRSTLINE_MOSQUITTO")
    if named is not None:
        return Path(named) if os.access(named, os.X_OK) else None
    found = shutil.which("mosquitto")
    if found is not None:
        return Path(found)
    return _SBIN if os.access(_SBIN, os.X_OK) else None


def free_port() -> int:
    """A loopback TCP port without a listener, below those that the system gives to connections and to port 0.

    So no other test gets it before it is used, or while its server is stopped.
    """
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port := _RANDOM.randrange(12_000, 32_000)))
            return port


def write_password_file(path: Path, users: Mapping[str, str]) -> Path:
    """Write `users` (name to password) with Mosquitto's own hashing tool."""
    path.touch(mode=0o600)
    for name, password in users.items():
        subprocess.run(["mosquitto_passwd", "-b", str(path), name, password], check=True, capture_output=True)
    return path


class Broker:
    """One Mosquitto process; it keeps its port, so that a link can be cut and mended.

    Args:
        directory: an empty folder for its configuration, log and persistence.
        users: names and passwords; without them anybody may connect.
        acl: the text of an ACL file; without it a known user may do anything.
        settings: further lines of mosquitto.conf.
        config: a whole configuration instead, which is copied, and must listen on the `port` given with it.
    """

    host = HOST

    def __init__(
        self,
        directory: Path,
        *,
        users: Mapping[str, str] | None = None,
        acl: str | None = None,
        settings: Sequence[str] = (),
        config: Path | None = None,
        port: int | None = None,
    ) -> None:
        binary = find_mosquitto()
        if binary is None:
            raise FileNotFoundError("mosquitto is not installed: `apt-get install mosquitto`")
        self._binary = binary
        self._directory = directory
        self._users = users
        self._acl = acl
        self._settings = tuple(settings)
        self._config = config
        self._fixed_port = port is not None
        self.port = free_port() if port is None else port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log_path(self) -> Path:
        """What the broker printed, all of its starts in one file."""
        return self._directory / "mosquitto.log"

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start and wait until it accepts a connection; the port stays the same from the first start on."""
        if self.running:
            return
        for _ in range(_ATTEMPTS):
            if self._try_start():
                self._fixed_port = True
                return
            if self._fixed_port:
                break
            self.port = free_port()  # another process took it between our look and the broker's bind
        raise RuntimeError(f"mosquitto did not start on port {self.port}:\n{self.log_path.read_text()}")

    def stop(self) -> None:
        """End the process as a service manager would; connections drop."""
        self._end(kill=False)

    def kill(self) -> None:
        """End the process with no chance to say goodbye or to persist."""
        self._end(kill=True)

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _end(self, *, kill: bool) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if kill:
            process.kill()
        else:
            process.terminate()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _try_start(self) -> bool:
        self._directory.mkdir(parents=True, exist_ok=True)
        config = self._write_config()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [self._binary, "-c", config], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            try:
                self._process.wait(timeout=_RETRY_INTERVAL_S)
                break
            except subprocess.TimeoutExpired:
                if _accepts(self.port):
                    return True
        self._end(kill=True)
        return False

    def _write_config(self) -> Path:
        if self._config is not None:
            lines = [self._config.read_text()]
        else:
            lines = [
                f"listener {self.port} {HOST}",
                "set_tcp_nodelay true",
                "log_dest stdout",
                f"allow_anonymous {'false' if self._users else 'true'}",
                *self._settings,
            ]
        if os.geteuid() == 0:
            lines.append("user root")  # else it drops to a user who cannot read the test's private folder
        if self._users:
            passwords = self._directory / "passwords"
            if not passwords.exists():
                write_password_file(passwords, self._users)
            lines.append(f"password_file {passwords}")
        if self._acl is not None:
            acl = self._directory / "acl"
            acl.write_text(self._acl)
            acl.chmod(0o600)
            lines.append(f"acl_file {acl}")
        config = self._directory / "mosquitto.conf"
        config.write_text("\n".join(lines) + "\n")
        return config


def _accepts(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True
