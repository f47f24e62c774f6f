"""Writes files durably, sets damaged files aside, and erases files."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from firstline_core.errors import ConfigError, FirstlineError, IntegrityError, similar_name

DAMAGED = ".damaged"
"""Suffix of a file or folder that was set aside."""

_BEGUN = ".new"
_BEGUN_BYTES = 4  # random part of its name: another writer of the same file uses another name
_BEGUN_END = re.compile(rf"\.[0-9a-f]{{{2 * _BEGUN_BYTES}}}{re.escape(_BEGUN)}")
_FORGOTTEN_S = 3600.0
"""Age after which an unfinished file belongs to a writer that was killed."""
_DIGEST_BYTES = 16
_LOCK_PAUSE_S = 0.01
_CHUNK_BYTES = 1 << 20
# Some file systems have no durable names; nothing more can be done there.
_NO_SUCH_SYNC = (errno.EINVAL, errno.ENOTSUP)

_ALIKE = 0.75  # of file names, which have little in common in one folder
# Parts of sentences about a file: what to do if it cannot be read, its state, the reason of a failure, and what to do
# if it cannot be written.
_READING = {
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path",
    errno.ENAMETOOLONG: "check the path",
    errno.EISDIR: "name a file",
    errno.ELOOP: "name the file that the links should lead to",
    errno.EACCES: "let this user read it, or run this as its owner",
    errno.EFBIG: "name another file",
}
_STATES = {
    errno.ENOENT: "does not exist",
    errno.EISDIR: "is a folder",
    errno.ENOTDIR: "is not a folder",
    errno.ELOOP: "is a link to itself",
}
_REASONS = {
    errno.ENOENT: "there is no such file or folder",
    errno.EISDIR: "it is a folder",
    errno.ENOTDIR: "a part of its path is not a folder",
    errno.ELOOP: "it is a link to itself",
}
_WRITING = {
    errno.EACCES: "let this user write there, or name another place",
    errno.ENOSPC: "free space there, or name another place",
    errno.EDQUOT: "free space there, or name another place",
}
NOT_UTF8 = "is not UTF-8 text; save it as UTF-8."


@contextlib.contextmanager
def naming(what: object, done: str = "read", refusal: type[FirstlineError] = ConfigError) -> Iterator[None]:
    """Raises a system error, or text that is not UTF-8, as `refusal`, which says `what`, the reason, and what to do.

    Args:
        what: begins the sentence.
        done: "read" or "written".
        refusal: the type of the error.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        raise refusal(f"{what} {NOT_UTF8}") from error
    except OSError as error:
        raise refusal(f"{what} {unreadable(error) if done == 'read' else unwritable(error)}") from error


def check_folder(path: Path, setting: str) -> None:
    """Checks that a folder is there or can be made.

    Args:
        path: of the folder.
        setting: for messages.

    Raises:
        ConfigError: a file is in its place, or in the place of a folder above it.
    """
    with naming(f"{setting} {path}"):
        nearest = next((place for place in (path, *path.absolute().parents) if place.exists()), path)
        if nearest.exists() and not nearest.is_dir():
            found = "it" if nearest == path else nearest
            raise ConfigError(f"{setting}: {path} cannot be a folder, because {found} is a file; name another.")


def make_folder(path: Path) -> None:
    """Makes a folder with mode 0700, and the folders above it; their names are on the disk when it returns.

    Raises:
        OSError: the disk refuses.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)
    if path.stat().st_mode & 0o777 != 0o700:
        path.chmod(0o700)


@contextlib.contextmanager
def locked_folder(path: Path) -> Iterator[None]:
    """Locks a folder against other processes; on a file system without locks, the last writer wins.

    Raises:
        OSError: the folder cannot be opened.
    """
    import fcntl  # Windows, on which the Python client imports this module, lacks it

    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def take_lock(descriptor: int, tries: int = 20) -> bool:
    """Locks an open file until it is closed; returns False if another process holds the lock at each try."""
    import fcntl  # as above

    for _ in range(tries):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(_LOCK_PAUSE_S)
        else:
            return True
    return False


def sync_folder(path: Path) -> None:
    """Returns once the names in a folder are on the disk.

    Raises:
        OSError: the disk refuses.
    """
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in _NO_SUCH_SYNC:
            raise
    finally:
        os.close(folder)


def read_limited(path: Path, limit_bytes: int) -> bytes:
    """Returns the whole content of a file that may be of any size.

    Raises:
        OSError: it cannot be read, or has more than `limit_bytes` (EFBIG).
    """
    with path.open("rb") as stream:
        content = stream.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise OSError(errno.EFBIG, f"it has more than {limit_bytes} bytes", str(path))
    return content


def read_text(path: Path, limit_bytes: int) -> str:
    """Returns the content of a text file that a person wrote: UTF-8, with or without a byte order mark.

    Lines end with a line feed, whatever ends them in the file.

    Raises:
        OSError: see `read_limited`.
        UnicodeDecodeError: it is not UTF-8.
    """
    return read_limited(path, limit_bytes).decode("utf-8-sig").replace("\r\n", "\n")


def unreadable(error: OSError | UnicodeDecodeError) -> str:
    """Returns the end of a sentence about a file that cannot be read: why, and what to do."""
    if isinstance(error, UnicodeDecodeError):
        return NOT_UTF8
    number, advice = error.errno or 0, f"; {_READING.get(error.errno or 0, 'check the file and its disk')}."
    if isinstance(error.filename, str | os.PathLike):
        if number == errno.ENOTDIR and not Path(error.filename).exists():
            number = errno.ENOENT  # a file is on the way to it
        if number == errno.ENOENT:
            advice = did_you_mean_file(Path(error.filename))
    return f"{_STATES.get(number) or f'cannot be read: {system_reason(error)}'}{advice}"


def system_reason(error: OSError) -> str:
    """Returns why the system refuses a file, as the end of a sentence that names the file."""
    return _REASONS.get(error.errno or 0) or error.strerror or str(error)


def not_certificates(error: OSError) -> str:
    """Returns the end of a sentence about a file of certificates that `ssl`, or the system, refuses."""
    if getattr(error, "library", None) is not None or not error.errno:
        why = "cannot be used: it holds no certificate"
    else:
        why = _STATES.get(error.errno) or f"cannot be used: {system_reason(error)}"
    return f"{why}; name a file with certificates in PEM"


def did_you_mean_file(path: Path, otherwise: str = "; check the path.") -> str:
    """Returns the end of a sentence about a path that does not exist: a similar one, or what to do."""
    try:
        others = [name for name in os.listdir(path.parent) if name != path.name]  # noqa: PTH208 (names)
        close = similar_name(path.name, others, _ALIKE)
    except (OSError, ValueError):
        close = ""
    return f"; did you mean '{path.with_name(close)}'?" if close else otherwise


def unwritable(error: OSError) -> str:
    """Returns the end of a sentence about a place that cannot be written: why, and what to do."""
    return f"cannot be written: {system_reason(error)}; {_WRITING.get(error.errno or 0, 'name another place')}."


def write_whole(path: Path, content: bytes, *, folder_owners_mode: int | None = None) -> os.stat_result:
    """Replaces a file: after a power cut it has the old or the new content.

    Args:
        path: of the file, in an existing folder.
        content: all of it.
        folder_owners_mode: mode of a file that an administrator's command may write as root: it then belongs to the
            owner of its folder, whose process reads it. None: mode 0600, and the file belongs to this user.

    Returns:
        The status of the written file, even if another writer has replaced it since.

    Raises:
        OSError: the disk refuses; the old file stays.
    """
    _remove_forgotten(path)
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(_BEGUN_BYTES)}{_BEGUN}")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as stream:
            if folder_owners_mode is not None:
                give_to_owner_of(path.parent, stream.fileno())
                os.fchmod(stream.fileno(), folder_owners_mode)
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
            written = os.fstat(stream.fileno())
        fresh.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise
    sync_folder(path.parent)
    return written


def give_to_owner_of(folder: Path, file: int | Path) -> None:
    """Gives a file, or what a descriptor refers to, to the owner of a folder if this process runs as root.

    So the command of an administrator takes no file away from the process that runs in that folder.

    Raises:
        OSError: the system refuses.
    """
    if os.geteuid() == 0:
        owner = folder.stat()
        os.chown(file, owner.st_uid, owner.st_gid)


def _remove_forgotten(path: Path) -> None:
    """Removes unfinished files of writers that were killed."""
    start = path.name
    with contextlib.suppress(OSError):  # such a file does no harm
        names = os.listdir(path.parent)  # noqa: PTH208 (a folder may have thousands)
        for name in [name for name in names if name.startswith(start) and _BEGUN_END.fullmatch(name, len(start))]:
            left = path.with_name(name)
            if time.time() - left.stat().st_mtime > _FORGOTTEN_S:
                left.unlink()


def copy_whole(source: Path, target: Path) -> None:
    """Copies a file, mode 0600; its content is on the disk when it returns.

    Raises:
        OSError: the disk refuses.
    """
    opened = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with source.open("rb") as original, os.fdopen(opened, "wb") as copy:
        shutil.copyfileobj(original, copy, _CHUNK_BYTES)
        copy.flush()
        os.fsync(copy.fileno())


def with_checksum(line: bytes) -> bytes:
    """Returns a line of text and a second line with its BLAKE2b, for `read_checked`."""
    return line + b"\n" + _checksum(line) + b"\n"


def read_checked(path: Path) -> bytes:
    """Returns the line of a file made by `with_checksum`.

    Raises:
        FileNotFoundError: there is none.
        IntegrityError: the content is not what was written.
        OSError: the disk refuses.
    """
    line, _, rest = path.read_bytes().rstrip(b"\n").partition(b"\n")
    if rest != _checksum(line):
        raise IntegrityError(f"{path} is damaged: its checksum does not fit.")
    return line


def set_aside(path: Path) -> Path:
    """Renames a damaged file or folder, replacing one that was set aside before; returns its new path.

    Raises:
        OSError: the disk refuses.
    """
    aside = path.with_name(path.name + DAMAGED)
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside)
    path.replace(aside)
    return aside


def erase(path: Path) -> int:
    """Removes a file or folder, its set-aside and unfinished copies; returns how many bytes were erased.

    Files are filled with zeros before they are removed, so that their blocks hold nothing. A flash controller may keep
    copies of blocks that no program can reach: only encryption protects those.

    Raises:
        OSError: the disk refuses.
    """
    erased_bytes = 0
    for named in sorted(path.parent.glob(path.name + "*")):
        files = (named, *named.rglob("*"))
        erased_bytes += sum(_zero(file) for file in files if file.is_file() and not file.is_symlink())
        if named.is_dir() and not named.is_symlink():
            shutil.rmtree(named)
        else:
            named.unlink(missing_ok=True)
        sync_folder(named.parent)
    return erased_bytes


def _zero(file: Path) -> int:
    """Fills a file with zeros, except its holes: they hold nothing, and a full disk has no room for them."""
    with file.open("r+b", buffering=0) as stream:
        descriptor = stream.fileno()
        size_bytes = os.fstat(descriptor).st_size
        for at, end in _extents(descriptor, size_bytes):
            while at < end:
                at += os.pwrite(descriptor, bytes(min(_CHUNK_BYTES, end - at)), at)  # noqa: PLW2901
        os.fsync(descriptor)
    return size_bytes


def _extents(descriptor: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    """Yields the parts of a file that have content (lseek(2)): all of it if the file system does not know."""
    end = 0
    while end < size_bytes:
        try:
            begin = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole follows
                return
            raise
        end = os.lseek(descriptor, begin, os.SEEK_HOLE)
        yield begin, end


def _checksum(line: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=_DIGEST_BYTES).hexdigest().encode()
