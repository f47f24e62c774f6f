"""The gateway's registry: signed metadata, verified by python-tuf in a short-lived process, and the signed files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from firstline_core.bundle.trust_http import HttpMetadata
from firstline_core.errors import CapacityError, FirstlineError, LinkDownError, ProtocolError, SignatureError
from firstline_core.fleet.registry import BLOBS_PATH, METADATA_PATH
from firstline_core.runtime.threads import in_daemon_thread
from firstline_core.storage.artefact import SignedFile
from firstline_core.storage.files import system_reason, unreadable
from firstline_core.telemetry.logs import logger
from firstline_edge.fleet.http_client import FleetHttp
from firstline_edge.fleet.updates.metadata_verifier import Failure, Fetch, Listed, More, Part, Request, receive, send

if TYPE_CHECKING:  # this process does not import python-tuf
    from firstline_core.bundle.trust import MetadataSource

HTTP_REQUIRED = (
    "Models and configurations are fetched over HTTP, and this device has no HTTP link; add [[links]] with kind = "
    '"http" and the gateway\'s url below the MQTT one, which goes on to be asked first.'
)
"""Why a device without an HTTP link gets nothing from the fleet, and what to do."""

log = logger(__name__)

_ROOT_LIMIT_BYTES = 512_000
_WHOLE, _PARTIAL = 200, 206
_ANSWER_LIMIT_S = 120.0  # a slow device imports and verifies for seconds
_VERIFIER = (sys.executable, "-P", "-m", "firstline_edge.fleet.updates.metadata_verifier")
_OWN_VARIABLES = "FIRSTLINE_"


class GatewayRegistry:
    """A `SignedFileSource`: signed metadata and files of the gateway.

    Args:
        http: to the gateway; None on a device without an HTTP link, for which nothing is available.
        folder: stores verified metadata.
        root: file with the root metadata that the device trusts; "" if it trusts none.
        now_s: returns the time for checks of expiry.
    """

    def __init__(self, http: FleetHttp | None, folder: Path, root: str, now_s: Callable[[], float]) -> None:
        self._optional_http = http
        self._folder = folder
        self._root = root
        self._now_s = now_s
        self._lock = threading.Lock()  # one verification at a time, also if the caller of the previous one left
        if http is None:
            log.warning("models and configurations of the fleet unavailable", why=HTTP_REQUIRED)

    @property
    def _http(self) -> FleetHttp:
        if self._optional_http is None:
            raise LinkDownError(HTTP_REQUIRED)
        return self._optional_http

    async def files(self) -> dict[str, SignedFile]:
        """See `SignedFileSource`."""
        return await in_daemon_thread(self._files)  # a slow registry does not delay the end of the process

    def _files(self) -> dict[str, SignedFile]:
        with self._lock, self._http.blocking_client() as client:
            source = HttpMetadata(client, METADATA_PATH)
            return verified_files(self._folder, source, anchor=self._anchor(), now_s=self._now_s())

    def _anchor(self) -> bytes:
        if not self._root:
            raise SignatureError("This device does not know whose signatures count; set fleet.root_file.")
        try:
            with Path(self._root).open("rb") as stream:
                return stream.read(_ROOT_LIMIT_BYTES)
        except OSError as error:
            raise SignatureError(f"fleet.root_file {self._root} {unreadable(error)}") from error

    async def read(self, sha256: str, offset: int, size_bytes: int) -> AsyncIterator[bytes]:
        """See `SignedFileSource`."""
        headers = {"Range": f"bytes={offset}-{size_bytes - 1}"} if offset else {}
        async with self._http.streaming("GET", f"{BLOBS_PATH}/{sha256}", headers) as response:
            if response.status_code not in (_WHOLE, _PARTIAL):
                raise ProtocolError(
                    f"A file is answered with HTTP status {response.status_code}; does a proxy between this device and "
                    "the registry want a login?"
                )
            skip_bytes = 0 if response.status_code == _PARTIAL or not offset else offset
            async for part in response.aiter_raw():
                if skip_bytes < len(part):
                    yield part[skip_bytes:]
                skip_bytes = max(0, skip_bytes - len(part))


def verified_files(
    folder: Path,
    source: MetadataSource,
    *,
    anchor: bytes,
    now_s: float,
    limit_s: float = _ANSWER_LIMIT_S,
    command: tuple[str, ...] = _VERIFIER,
) -> dict[str, SignedFile]:
    """Returns the signed files by path; blocks while the process `metadata_verifier` verifies the metadata.

    Args:
        folder: stores verified metadata, and nothing else.
        source: of the metadata.
        anchor: the root metadata that the device trusts.
        now_s: the time for checks of expiry (wall time, seconds).
        limit_s: time limit of each answer of the process, before it is killed.
        command: starts the process.

    Raises:
        FirstlineError: as `Trust.refresh`, and other errors of the source.
        CapacityError: the process could not be started, was killed, or did not answer in time.
    """
    with _started(command) as process:
        message = _answer(process, Request(str(folder), anchor, now_s), limit_s)
        parts: Iterator[bytes] = iter(())
        while not isinstance(message, Listed | Failure):
            if isinstance(message, Fetch):
                parts = source.fetch(message.name)
            message = _answer(process, _next(parts), limit_s)
    if isinstance(message, Failure):
        raise message.error()
    return {file.path: file for file in message.files}


def _next(parts: Iterator[bytes]) -> Part | Failure:
    try:
        return Part(next((part for part in parts if part), b""))  # an empty part means the end
    except FirstlineError as error:
        return Failure.of(error)


def _answer(process: subprocess.Popen[bytes], message: Struct, limit_s: float) -> Fetch | More | Listed | Failure:
    """Sends a message to the process, and returns its answer."""
    assert process.stdin is not None and process.stdout is not None  # noqa: S101 (they are pipes)
    late = threading.Event()

    def end() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    answer: Fetch | More | Listed | Failure | None = None
    try:
        with suppress(BrokenPipeError):
            send(process.stdin, message)
            answer = receive(process.stdout, Fetch | More | Listed | Failure)
    finally:
        timer.cancel()
    if answer is None:
        end_of_process = f"said nothing for {limit_s:g} s" if late.is_set() else _exit_of(process)
        raise CapacityError(f"The registry's metadata is not verified yet: the process that does it {end_of_process}.")
    return answer


def _exit_of(process: subprocess.Popen[bytes]) -> str:
    code = process.wait()
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by {signal.Signals(-code).name}; is there too little memory?"


@contextmanager
def _started(command: tuple[str, ...]) -> Iterator[subprocess.Popen[bytes]]:
    """Starts the process, which ends with the block; it gets no settings or secrets of this one."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_VARIABLES)}
    try:
        process = subprocess.Popen(  # noqa: S603 (this Python)
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    except OSError as error:  # too many processes, or too little memory
        raise CapacityError(f"The registry's metadata is not verified yet: {system_reason(error)}.") from error
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
