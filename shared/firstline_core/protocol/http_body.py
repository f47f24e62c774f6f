"""The body of an HTTP request: its limits of size and time, its headers, and the thread that decodes it."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from firstline_core.errors import InvalidTensorError, PayloadTooLargeError, QueueFullError, RemoteTimeoutError
from firstline_core.protocol.http_errors import Lowered, header
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.tensors import shown

HEADER_LENGTH = "Inference-Header-Content-Length"

# A body may take so long, and longer by what came of it: the slowest mobile links carry more.
GRACE_S = 20.0
LEAST_BYTES_PER_S = 1024

# Some milliseconds of parsing, which one request may take from all others; more goes to a thread.
_INLINE_JSON_BYTES = 256 * 1024

# One thread: parsing holds the interpreter's lock, so several would not be faster, and each would have its turn
# before the event loop has.
_DECODING = ThreadPoolExecutor(1, thread_name_prefix="decoding")

T = TypeVar("T")


class BodyBudget:
    """Counts the bytes of the request bodies that are in memory; limits on single bodies let a few callers fill it.

    Args:
        limit_bytes: for all bodies together.
        fair: whether one client may hold at most as many bytes as are left free, so that there is always room for
            another client.
    """

    def __init__(self, limit_bytes: int, *, fair: bool = False) -> None:
        self._limit_bytes = limit_bytes
        self._fair = fair
        self._taken_bytes = 0
        self._of_principal: dict[str, int] = {}

    def share(self, principal: str) -> BodyShare:
        """Returns one request's share, a context manager that gives it back at the end."""
        return BodyShare(self, principal)

    def take(self, principal: str, size_bytes: int) -> None:
        """Holds bytes for a client until `give_back`. Bytes count when they arrive, not when announced.

        Raises:
            QueueFullError: the bytes do not fit.
        """
        of_client, free_bytes = self._of_principal.get(principal, 0), self._limit_bytes - self._taken_bytes
        if size_bytes > free_bytes or (self._fair and of_client + size_bytes > free_bytes - size_bytes):
            raise QueueFullError(
                f"Your requests in progress hold {of_client} bytes, and {free_bytes} are free; try again later, or "
                "raise api.bodies_limit_bytes.",
                retry_after_s=1.0,
            )
        self._taken_bytes += size_bytes
        self._of_principal[principal] = of_client + size_bytes

    def give_back(self, principal: str, size_bytes: int) -> None:
        """Returns bytes that `take` holds."""
        self._taken_bytes -= size_bytes
        left = self._of_principal.get(principal, 0) - size_bytes
        if left:
            self._of_principal[principal] = left
        else:
            self._of_principal.pop(principal, None)


class BodyShare:
    """The bytes of one request; a context manager that yields a function which takes more bytes, and returns them."""

    def __init__(self, budget: BodyBudget, principal: str) -> None:
        self._budget = budget
        self._principal = principal
        self._size_bytes = 0

    def __enter__(self) -> Callable[[int], None]:
        return self.take

    def __exit__(self, *_: object) -> None:
        if self._size_bytes:
            self._budget.give_back(self._principal, self._size_bytes)

    def take(self, size_bytes: int) -> None:
        """Takes more bytes; see `BodyBudget.take`."""
        self._budget.take(self._principal, size_bytes)
        self._size_bytes += size_bytes


def header_length(headers: Mapping[str, str]) -> int | None:
    """Bytes of JSON at the start of the body; None where the header is absent, so that all of it is JSON.

    Raises:
        InvalidTensorError: the header is not a whole number.
    """
    value = header(headers, HEADER_LENGTH)
    if value is None:
        return None
    # 18 digits are more than any body, and keep int() from work without end.
    if not (value.isascii() and value.isdigit() and len(value) <= 18):
        raise InvalidTensorError(f"{HEADER_LENGTH} is {shown(value)}; give the number of bytes of the JSON header.")
    return int(value)


async def within(chunks: AsyncIterable[bytes], headers: Mapping[str, str], limits: Limits) -> AsyncIterator[bytes]:
    """A body as it arrives, given up as soon as it is known to be too large.

    Args:
        chunks: as they arrive.
        headers: for Content-Length, which spares the reading.
        limits: `body_bytes` holds for the bytes on the wire here, and once more after decompression.

    Raises:
        PayloadTooLargeError: over the limit.
    """
    declared = header(headers, "Content-Length")
    if declared is not None and declared.isascii() and declared.isdigit():
        significant = declared.lstrip("0") or "0"
        if len(significant) > 18 or int(significant) > limits.body_bytes:
            raise _too_large(limits)
    size_bytes = 0
    async for chunk in chunks:
        size_bytes += len(chunk)
        if size_bytes > limits.body_bytes:
            raise _too_large(limits)
        yield chunk


async def in_time(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """A body's chunks; a client that sends them slowly costs only itself. In a task.

    Raises:
        RemoteTimeoutError: they come too slowly.
    """
    received_bytes = 0
    start_s = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout_at(start_s + GRACE_S) as patience:
            async for chunk in chunks:
                received_bytes += len(chunk)
                patience.reschedule(start_s + GRACE_S + received_bytes / LEAST_BYTES_PER_S)
                yield chunk
    except TimeoutError as error:
        raise RemoteTimeoutError(
            f"Only {received_bytes} bytes of the body came in time; send at least {LEAST_BYTES_PER_S} bytes a second."
        ) from error


async def read_body(chunks: AsyncIterable[bytes], headers: Mapping[str, str], limits: Limits) -> bytes:
    """All of a body; see `within`."""
    return b"".join([chunk async for chunk in within(chunks, headers, limits)])


def check_size(body: bytes, limits: Limits) -> None:
    """Whether a body that came in one piece is small enough, as `within` sees to for others.

    Raises:
        PayloadTooLargeError: over the limit.
    """
    if len(body) > limits.body_bytes:
        raise _too_large(limits)


def _too_large(limits: Limits) -> PayloadTooLargeError:
    return PayloadTooLargeError(f"The body is larger than {limits.body_bytes} bytes, the most that is accepted.")


def decoded_body(headers: Mapping[str, str], body: bytes, limits: Limits) -> bytes:
    """The body with its Content-Encoding undone.

    Raises:
        InvalidTensorError: an encoding other than gzip, deflate and identity, or a body that is not in it.
        PayloadTooLargeError: over `limits.body_bytes`, before or after; no more than that is ever inflated.
    """
    encoding = (header(headers, "Content-Encoding") or "identity").lower()
    if encoding == "identity":
        return body
    # HTTP's deflate is the zlib format (RFC 9110, section 8.4.1.2); 16 more window bits mean gzip.
    window_bits = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
    if encoding not in window_bits:
        raise InvalidTensorError(f"Content-Encoding {shown(encoding)} is not accepted; use gzip, deflate or none.")
    inflate = zlib.decompressobj(window_bits[encoding])
    try:
        plain = inflate.decompress(body, limits.body_bytes + 1)
    except zlib.error as error:
        raise InvalidTensorError(f"The body is not {encoding}, as its Content-Encoding says: {error}.") from error
    if len(plain) > limits.body_bytes:
        raise PayloadTooLargeError(f"The body inflates to more than {limits.body_bytes} bytes, the most accepted.")
    if not inflate.eof or inflate.unused_data:
        fault = "has bytes after its end" if inflate.eof else "is cut short"
        raise InvalidTensorError(f"The {encoding} body {fault}; send one complete stream.")
    return plain


class BodyForm(NamedTuple):
    """Form of a body by its headers: bytes of its JSON header (None: all is JSON), and its Content-Encoding."""

    header_length: int | None
    encoding: str | None


def body_form(headers: Mapping[str, str]) -> BodyForm:
    """Of headers that come again with each request of a connection it is found out once.

    Raises:
        InvalidTensorError: the header's length is not a whole number.
    """
    if not isinstance(headers, Lowered):
        return BodyForm(header_length(headers), header(headers, "Content-Encoding"))
    if headers.form is None:
        headers.form = BodyForm(header_length(headers), header(headers, "Content-Encoding"))
    form: BodyForm = headers.form
    return form


def is_soon_read(form: BodyForm, body_bytes: int) -> bool:
    """Whether to read a body does not hold up the event loop: binary tensors are views of it and cost nothing."""
    json_bytes = body_bytes if form.header_length is None else form.header_length
    return json_bytes <= _INLINE_JSON_BYTES and form.encoding is None


async def elsewhere(read: Callable[[], T]) -> T:
    """Reads a body where that does not hold up the event loop."""
    return await asyncio.get_running_loop().run_in_executor(_DECODING, read)


async def decoded(decode: Callable[[], T], headers: Mapping[str, str], json_bytes: int) -> T:
    """Runs `decode` where it does not hold up the event loop for long.

    Args:
        decode: from a body to what it means.
        headers: of the request, for its Content-Encoding.
        json_bytes: of the body as it came; binary tensors are views of it and cost nothing.
    """
    if is_soon_read(BodyForm(None, header(headers, "Content-Encoding")), json_bytes):
        return decode()
    return await elsewhere(decode)
