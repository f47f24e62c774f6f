"""Token buckets: a rate limit with room for a burst."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Protocol

from sqlalchemy import Connection

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import FirstlineError, RateLimitedError, UnauthorizedError
from firstline_core.telemetry.logs import logger
from firstline_gateway.identity.client_certificate import Presented
from firstline_gateway.identity.credentials import ApiKey, Changes, Known, read_changes
from firstline_gateway.identity.keys import key_hash
from firstline_gateway.store.readers import Readers

# Whoever comes beyond it makes the one that was heard of longest ago start with a full bucket.
_KEYS_LIMIT = 65_536


class Buckets:
    """One bucket for each key (an address, a principal), made full when the key is first seen."""

    def __init__(self) -> None:
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str, now_s: float, *, per_s: float, burst: float) -> float:
        """Takes one from a key's bucket.

        Args:
            key: whose bucket.
            now_s: monotonic time.
            per_s: tokens added each second.
            burst: capacity in tokens; at least 1.

        Returns:
            0 where there was one; otherwise the seconds until there is, and nothing was taken.
        """
        level, when_s = self._levels.get(key, (burst, now_s))
        level = min(burst, level + (now_s - when_s) * per_s)
        if level < 1:
            return (1 - level) / per_s
        self._levels[key] = level - 1, now_s
        self._levels.move_to_end(key)
        if len(self._levels) > _KEYS_LIMIT:
            self._levels.popitem(last=False)
        return 0.0

    def give_back(self, key: str) -> None:
        """Returns what `take` took."""
        if key in self._levels:
            level, when_s = self._levels[key]
            self._levels[key] = level + 1, when_s


class Session(Protocol):
    """One connection."""

    def abort(self) -> None:
        """Closes it at once, whatever is on the way."""
        ...


class Sessions:
    """All of them; used on the event loop alone."""

    def __init__(self) -> None:
        self._open: dict[str, set[Session]] = {}

    def add(self, serial: str, session: Session) -> None:
        self._open.setdefault(serial, set()).add(session)

    def remove(self, serial: str, session: Session) -> None:
        sessions = self._open.get(serial, set())
        sessions.discard(session)
        if not sessions:
            self._open.pop(serial, None)

    def end(self, serials: Iterable[str]) -> int:
        """Closes the connections that these certificates opened.

        Returns:
            How many there were.
        """
        ended = [session for serial in serials for session in self._open.get(serial, ())]
        for session in ended:
            session.abort()
        return len(ended)


# How often strangers may have the store looked through, all together.
_SPACING_S = 0.1
# How long after the grace a certificate is remembered, so that its device is told what is wrong with it.
REMEMBERED_S = 90 * 86_400.0

log = logger(__name__)


class Gatekeeper:
    """Of one gateway; used on its event loop, but for the constructor.

    Args:
        readers: of the store, where devices and keys are kept.
        refresh_s: how often changes are taken over.
        grace_s: how long after its end a certificate can still be renewed.
        on_revoked: called in a thread once certificates were found to be revoked.
        clock: gives wall and monotonic time.

    Raises:
        CapacityError: the store refuses.
    """

    def __init__(
        self,
        readers: Readers,
        *,
        refresh_s: float,
        grace_s: float,
        on_revoked: Callable[[], None] = lambda: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.sessions = Sessions()
        self.known = Known()
        self._readers = readers
        self._refresh_s = refresh_s
        self._grace_s = grace_s
        self._on_revoked = on_revoked
        self._clock = clock
        self._buckets = Buckets()
        self._lock = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None
        self._began_s = -_SPACING_S
        self._keeping: asyncio.Task[None] | None = None
        with readers.database.reading() as connection:
            self.known.apply(self._read(connection))

    def start(self) -> None:
        """Begins to take changes over."""
        self._keeping = asyncio.create_task(self._keep_fresh())

    async def close(self) -> None:
        for task in (self._keeping, self._next):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def wait_s(self, key: ApiKey) -> float:
        """Takes one use of a key: 0.0, or how long there is none and nothing was taken."""
        if key.requests_per_s is None:
            return 0.0
        rate = key.requests_per_s
        return self._buckets.take(key.sha256, self._clock.monotonic_s(), per_s=rate, burst=max(1.0, rate))

    async def key(self, text: str) -> ApiKey:
        """The API key with this text.

        Raises:
            UnauthorizedError: there is none, or it has expired.
            RateLimitedError: it was used too often.
            CapacityError: it is not known here, and the store cannot be asked.
        """
        digest = key_hash(text)
        found = self.known.key(digest)
        if found is None:
            await self.refreshed()
            found = self.known.key(digest)
        if found is None:
            raise UnauthorizedError(
                "The API key in the Authorization header is not valid here; ask the gateway's operator for a new one."
            )
        if found.expires_s is not None and found.expires_s <= self._clock.wall_s():
            raise UnauthorizedError(
                f"The API key '{found.name}' expired on {_date(found.expires_s)}; ask the gateway's operator for a new "
                "one."
            )
        wait_s = self.wait_s(found)
        if wait_s:
            raise RateLimitedError(
                f"The API key '{found.name}' may be used {found.requests_per_s:g} times a second.",
                retry_after_s=wait_s,
            )
        return found

    def holds(self, text: str) -> bool:
        """Whether the API key with this text is known, and has not expired; takes no use of it."""
        found = self.known.key(key_hash(text))
        return found is not None and (found.expires_s is None or found.expires_s > self._clock.wall_s())

    async def device(self, presented: Presented, *, renewing: bool = False) -> str:
        """Returns the device of a certificate.

        Args:
            presented: from an authority of ours.
            renewing: accept an expired certificate for as long as it can be renewed.

        Raises:
            UnauthorizedError: it names no device, is not known, revoked, expired, or not valid yet.
            CapacityError: it is not known here, and the store cannot be asked.
        """
        if presented.device is None:
            raise UnauthorizedError("The client certificate is no device's; enrol the device with a join token.")
        found = self.known.certificate(presented.serial)
        if found is None:
            await self.refreshed()
            found = self.known.certificate(presented.serial)
        if found is None or found.device != presented.device:
            raise UnauthorizedError(
                f"This gateway has not issued the certificate {presented.serial} to '{presented.device}'; enrol the "
                "device with a new join token."
            )
        if found.revoked_s is not None:
            raise UnauthorizedError(
                f"The certificate of '{found.device}' was revoked on {_date(found.revoked_s)}; to let the device in "
                "again, enrol it with a new join token."
            )
        now_s = self._clock.wall_s()
        if now_s < presented.not_before_s:
            raise UnauthorizedError(
                f"The certificate of '{found.device}' is valid from {_date(presented.not_before_s)} on, and here it is "
                f"{_date(now_s)}; is the gateway's clock right?"
            )
        if now_s > presented.not_after_s + (self._grace_s if renewing else 0):
            late = now_s > presented.not_after_s + self._grace_s
            raise UnauthorizedError(
                f"The certificate of '{found.device}' expired on {_date(presented.not_after_s)}; "
                + ("enrol the device with a new join token." if late else "renew it.")
            )
        return found.device

    async def refreshed(self) -> None:
        """Returns once changes were taken over that were made before this call.

        Raises:
            CapacityError: the store refuses.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._refresh_next())
            # Whoever waited may have left before it failed.
            self._next.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        await asyncio.shield(self._next)

    async def _refresh_next(self) -> None:
        await asyncio.sleep(max(0.0, self._began_s + _SPACING_S - self._clock.monotonic_s()))
        async with self._lock:
            self._next = None  # only here: everybody who asks while this waits gets its result
            await self._refresh()

    async def _refresh(self) -> None:
        """Takes changes over; one at a time."""
        self._began_s = self._clock.monotonic_s()
        revoked = self.known.apply(await self._readers.ask(self._read))
        if revoked:
            ended = self.sessions.end(revoked)
            log.info("certificates revoked", certificates=len(revoked), connections=ended)
            await asyncio.to_thread(self._on_revoked)

    def _read(self, connection: Connection) -> Changes:
        return read_changes(connection, self.known.version)

    async def _keep_fresh(self) -> None:
        """Runs until cancelled; while the store is away, the known credentials stay valid."""
        trouble = ""
        while True:
            await asyncio.sleep(self._refresh_s)
            try:
                async with self._lock:
                    await self._refresh()
                self.known.forget(self._clock.wall_s(), self._grace_s + REMEMBERED_S)
            except FirstlineError as error:
                if error.message != trouble:
                    log.error("revocations not read", error=error.message)
                trouble = error.message
            except Exception:  # the outermost loop of a task that must never end
                log.exception("revocations not read")
            else:
                trouble = ""


def _date(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="seconds")
