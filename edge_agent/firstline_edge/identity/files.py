"""The identity on the disk: `identity/` in the state directory, mode 0700, every file 0600 and replaced as a whole.

ca.pem          the authorities that this device believes, the gateway's and the broker's
device.pem      its key and its certificate in one file, so that the two can only change together
identity.json   its name, where gateway and broker are, and the certificate's times; written last
joining.pem     the key of an enrolment that was begun: a gateway gives the same key the same certificate again
time            the newest time that a gateway vouched for
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from firstline_core.errors import CapacityError, ConfigError
from firstline_core.storage.files import make_folder, with_checksum, write_whole
from firstline_edge.settings.identity import Identity, identity_path, read_identity, readable_identity

_LIMIT_BYTES = 1 << 20


Written = tuple[int, int] | None
"""Which writing of an identity; None for none."""


class IdentityFiles:
    """Where each thing lies, and how it is written.

    Args:
        state_dir: the agent's.
    """

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.folder = identity_path(state_dir).parent
        self.authorities = self.folder / "ca.pem"
        self.device = self.folder / "device.pem"
        self.time = self.folder / "time"
        self._identity = identity_path(state_dir)
        self._joining = self.folder / "joining.pem"

    def read(self) -> Identity | None:
        """Returns the identity; None for a device that has not joined.

        Raises:
            ConfigError: it is there and cannot be used.
        """
        return read_identity(self.state_dir)

    def written(self) -> Written:
        """Returns a value that differs once an identity was written; None if there is none."""
        try:
            return _writing(self._identity.stat())
        except OSError:
            return None

    def save(
        self,
        identity: Identity,
        authorities_pem: str,
        key_pem: str,
        certificate_pem: str,
        over: Written | Literal["any"] = "any",
    ) -> Written:
        """Takes a new certificate; a power cut in between leaves the old one, or the new one.

        Args:
            identity: to be kept, with what follows.
            authorities_pem: as the gateway gave them.
            key_pem: of the certificate.
            certificate_pem: as the gateway gave it.
            over: the writing that this one may take the place of; any that cannot be read it takes the place of, too.

        Returns:
            The result of `written` until another identity is written.

        Raises:
            CapacityError: the disk refuses.
            ConfigError: there is another writing than `over`.
        """
        try:
            make_folder(self.folder)
            with self._alone():
                if over not in ("any", self.written()) and readable_identity(self.state_dir) is not None:
                    raise ConfigError("The device has joined anew meanwhile, and that is not overwritten.")
                write_whole(self.authorities, authorities_pem.encode())
                write_whole(self.device, (key_pem + certificate_pem).encode())
                found = write_whole(self._identity, with_checksum(msgspec.json.encode(identity)))
                self._joining.unlink(missing_ok=True)
                self._give_to_owner()
        except OSError as error:
            raise self._refused(error) from error
        return _writing(found)

    def joining_key(self) -> str | None:
        """The key of an enrolment that was begun and not finished."""
        try:
            content = _read(self._joining)
        except OSError:
            return None
        return None if content is None else content.decode(errors="replace")

    def save_joining_key(self, key_pem: str) -> None:
        """Keeps the key of an enrolment before the gateway hears of it.

        Raises:
            CapacityError: the disk refuses.
        """
        try:
            make_folder(self.folder)
            write_whole(self._joining, key_pem.encode())
        except OSError as error:
            raise self._refused(error) from error

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """The agent renews while somebody joins: three files of which each is whole may not belong together."""
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # not every file system has locks
                fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _give_to_owner(self) -> None:
        """What root wrote belongs to whom the state directory belongs: the agent runs as that user."""
        if os.geteuid() != 0:
            return
        owner = self.folder.parent.stat()
        for path in (self.folder, *self.folder.iterdir()):
            # A container's root may lack the right, then it is the agent's user too; or the agent has just renamed it.
            with contextlib.suppress(OSError):
                os.chown(path, owner.st_uid, owner.st_gid)

    def _refused(self, error: OSError) -> CapacityError:
        return CapacityError(
            f"{self.folder} cannot be written: {error.strerror}; join as the agent's user, and free space there."
        )


def _writing(found: os.stat_result) -> Written:
    return found.st_ino, found.st_mtime_ns


def _read(path: Path) -> bytes | None:
    try:
        with path.open("rb") as stream:
            return stream.read(_LIMIT_BYTES)
    except FileNotFoundError:
        return None
