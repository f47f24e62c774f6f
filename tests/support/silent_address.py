"""A name with two addresses, of which the first, ::1, never answers."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

NAME = "localhost"


@contextmanager
def silent_ipv6(port: int) -> Iterator[None]:
    """Lets `NAME` resolve to ::1, which swallows each SYN at this port, and then to 127.0.0.1.

    With the queue of a listener full, the kernel drops each SYN, as a router without a route does.
    """
    resolve = socket.getaddrinfo

    def both(host: Any, *arguments: Any, **options: Any) -> list[Any]:
        if host not in (NAME, NAME.encode()):
            return resolve(host, *arguments, **options)
        where = (socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        return [(socket.AF_INET6, *where, ("::1", port, 0, 0)), (socket.AF_INET, *where, ("127.0.0.1", port))]

    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket(socket.AF_INET6))
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(("::1", port))
        listening.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket(socket.AF_INET6))
            waiting.setblocking(False)
            waiting.connect_ex(("::1", port))
        stack.enter_context(patch("socket.getaddrinfo", both))
        yield
