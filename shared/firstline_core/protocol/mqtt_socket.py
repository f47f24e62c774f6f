"""An MQTT library's socket, watched by the event loop itself (`add_reader`) instead of a thread of the library's own.

So there is no lock, and no hop between threads on the way of an answer. Of MQTT nothing is known here: the library
reads and writes, when this says that it can.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any, Protocol


class Library(Protocol):
    """What is needed of paho's client."""

    def loop_read(self) -> object: ...

    def loop_write(self) -> object: ...

    def want_write(self) -> bool: ...


class WatchedSocket:
    """One socket, from its connection to its end. The library calls what has its form of callbacks.

    Args:
        unacknowledged_s: how long what was sent may stay unacknowledged by the far side's machine.
        unreadable: what the library raises where it reads what it cannot.
        on_unreadable: told of that.
    """

    raw: Any = None
    """The socket while there is one: Python's own, or one wrapped in TLS."""

    def __init__(
        self, unacknowledged_s: int, unreadable: tuple[type[Exception], ...], on_unreadable: Callable[[Exception], None]
    ) -> None:
        self._unacknowledged_s = unacknowledged_s
        self._unreadable = unreadable
        self._on_unreadable = on_unreadable
        self._loop = asyncio.get_running_loop()
        self._loops_thread = threading.get_ident()
        self._closed = False
        self._awaits_room = False

    # The library connects in a thread, so what that triggers is handed over to the loop.

    def opened(self, library: Library, _userdata: object, opened: Any) -> None:
        """There is a connection."""
        if isinstance(opened, socket.socket):
            # Nagle's algorithm holds a small packet back until the last one is acknowledged: 40 ms a round trip.
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                # A cut cable is noticed by what stays unacknowledged, not after a quarter of an hour.
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self._unacknowledged_s * 1000)
        self.raw = opened
        self._loop.call_soon_threadsafe(self._watch, library, opened)

    def wants_write(self, library: Library, _userdata: object, opened: Any) -> None:
        """There is something to write."""
        # Most packets fit the socket's buffer, so try first and ask to be called back only where one did not.
        if threading.get_ident() == self._loops_thread:
            self._flush(library, opened)
        else:
            self._loop.call_soon_threadsafe(self._flush, library, opened)

    def wants_no_write(self, _library: Library, _userdata: object, opened: Any) -> None:
        """All is written."""
        if self._awaits_room and opened.fileno() >= 0:
            self._loop.remove_writer(opened)
        self._awaits_room = False

    def closing(self, _library: Library, _userdata: object, opened: Any) -> None:
        """The library is about to close it."""
        self._forget(opened)

    def close(self) -> None:
        """Ends it, also where the thread is still connecting; calling it twice is harmless."""
        self._closed = True
        if (left := self.raw) is not None:
            self._forget(left)
            left.close()

    def _watch(self, library: Library, opened: Any) -> None:
        if self._closed:  # given up while the thread was still connecting
            self._forget(opened)
            opened.close()
        elif self.raw is opened:
            self._loop.add_reader(opened, self._read, library)

    def _read(self, library: Library) -> None:
        try:
            library.loop_read()
            # TLS may have decrypted more than was read; the descriptor will not tell of it.
            while self.raw is not None and getattr(self.raw, "pending", int)() > 0:
                library.loop_read()
        except self._unreadable as error:
            self._on_unreadable(error)

    def _flush(self, library: Library, opened: Any) -> None:
        if self.raw is opened and not self._closed:
            library.loop_write()
            if self.raw is opened and library.want_write():
                self._awaits_room = True
                self._loop.add_writer(opened, library.loop_write)

    def _forget(self, opened: Any) -> None:
        self.raw = None
        if opened.fileno() >= 0:
            self._loop.remove_reader(opened)
            self._loop.remove_writer(opened)
