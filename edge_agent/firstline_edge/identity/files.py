"""The identity on the disk: `identity/` in the state directory, mode 0700, every file 0600 and replaced as a whole.

ca.pem          the authorities that this device trusts, the gateway's and the broker's
device.pem      its key and its certificate in one file, so that the two can only change together
identity.json   its name, the addresses of gateway and broker, and the certificate's times; written last
joining.pem     the key of an unfinished enrolment: a gateway gives the same key the same certificate again
time            the newest time that a gateway vouched for
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from firstline_core.errors import CapacityError, ConfigError
from firstline_core.storage.files import (
    locked_folder,
    make_folder,
    sync_folder,
    system_reason,
    with_checksum,
    write_whole,
)
from firstline_edge.settings.identity import IdentityDocument, identity_path, read_identity, readable_identity

_LIMIT_BYTES = 1 << 20

JOINED_AGAIN = "The device has joined again since the agent was started; restart the agent."

Revision = tuple[int, int]
"""Identifies one version of the stored identity: inode and time of change of its file."""
NOT_STORED: Revision = (0, 0)


class IdentityFiles:
    """Reads and writes the identity.

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

    def read(self) -> IdentityDocument | None:
        """Returns the identity; None for a device that has not joined.

        Raises:
            ConfigError: the file cannot be used.
        """
        return read_identity(self.state_dir)

    def revision(self) -> Revision:
        """Returns the revision of the stored identity; `NOT_STORED` without one."""
        try:
            return _revision_of(self._identity.stat())
        except OSError:
            return NOT_STORED

    def save(
        self,
        identity: IdentityDocument,
        authorities_pem: str,
        key_pem: str,
        certificate_pem: str,
        replaces: Revision | None = None,
    ) -> Revision:
        """Stores a new certificate; a power cut leaves the old one or the new one.

        Args:
            identity: to be stored with the certificate.
            authorities_pem: as the gateway gave them.
            key_pem: of the certificate.
            certificate_pem: as the gateway gave it.
            replaces: the revision that may be replaced, None for any; an unreadable identity is always replaced.

        Returns:
            The revision of the stored identity.

        Raises:
            CapacityError: the disk refuses.
            ConfigError: another revision is stored.
        """
        try:
            # The agent may renew while `join` writes, and the files belong together.
            with self._opened() as folder, locked_folder(folder):
                if replaces not in (None, self.revision()) and readable_identity(self.state_dir) is not None:
                    raise ConfigError(JOINED_AGAIN)
                write_whole(folder / self.authorities.name, authorities_pem.encode(), folder_owners_mode=0o600)
                write_whole(folder / self.device.name, (key_pem + certificate_pem).encode(), folder_owners_mode=0o600)
                status = write_whole(
                    folder / self._identity.name, with_checksum(msgspec.json.encode(identity)), folder_owners_mode=0o600
                )
                (folder / self._joining.name).unlink(missing_ok=True)
        except OSError as error:
            raise self._refused(error) from error
        return _revision_of(status)

    def joining_key(self) -> str | None:
        """Returns the key of an unfinished enrolment; None if there is none."""
        try:
            with self._opened() as folder:
                file = os.open(folder / self._joining.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                with os.fdopen(file, "rb") as stream:
                    return stream.read(_LIMIT_BYTES).decode(errors="replace")
        except OSError:
            return None

    def save_joining_key(self, key_pem: str) -> None:
        """Stores the key of an enrolment before the gateway receives its request.

        Raises:
            CapacityError: the disk refuses.
        """
        try:
            with self._opened() as folder:
                write_whole(folder / self._joining.name, key_pem.encode())
        except OSError as error:
            raise self._refused(error) from error

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Path]:
        """Makes the folder, and yields its path.

        Root may write here for the owner of the state directory, as whom the agent runs. That user could put a link to
        a folder of root there: root refuses a link, and gets a path to the open folder, which no link can replace.

        Raises:
            OSError: the disk refuses, or the folder is a link.
        """
        owner = self.state_dir.stat() if os.geteuid() == 0 and self.state_dir.exists() else None
        if owner is None or owner.st_uid == 0:
            make_folder(self.folder)
            yield self.folder
            return
        with contextlib.suppress(FileExistsError):
            self.folder.mkdir(mode=0o700)
            sync_folder(self.folder.parent)
        opened = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # root in a container may lack the right, or know no such user
                os.fchown(opened, owner.st_uid, owner.st_gid)
            os.fchmod(opened, 0o700)
            yield Path(f"/proc/self/fd/{opened}")
        finally:
            os.close(opened)

    def _refused(self, error: OSError) -> CapacityError:
        return CapacityError(
            f"{self.folder} cannot be written: {system_reason(error)}; join as the agent's user, and free space there."
        )


def _revision_of(status: os.stat_result) -> Revision:
    return status.st_ino, status.st_mtime_ns
