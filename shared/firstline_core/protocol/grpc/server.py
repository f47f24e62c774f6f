"""The server that listens for gRPC, and its limits."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio

from firstline_core.errors import CapacityError
from firstline_core.protocol.grpc.service import InferenceService

METADATA_LIMIT_BYTES = 65_536
# Names, and the lengths of fields, beside what REST would have for a body.
_FRAME_BYTES = 65_536


def address_of(peer: str) -> str:
    """The address in "ipv4:127.0.0.1:1234" and "ipv6:%5B::1%5D:1234"."""
    address = peer.partition(":")[2].rpartition(":")[0]
    return address.replace("%5B", "").replace("%5D", "").strip("[]")


class GrpcServer:
    """Listens on one address, from `start` on.

    Args:
        service: answers.
        address: "HOST:PORT"; port 0 lets the system choose.
        body_limit_bytes: of one message.
        calls_limit: calls at the same moment; one more is refused (RESOURCE_EXHAUSTED).
        credentials: for TLS; None serves without.

    Raises:
        CapacityError: the address is taken, or not this machine's.
    """

    def __init__(
        self,
        service: InferenceService,
        address: str,
        *,
        body_limit_bytes: int,
        calls_limit: int,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self._server: Any = grpc.aio.server(
            handlers=(service.handler(),),
            maximum_concurrent_rpcs=calls_limit,
            options=(
                ("grpc.max_receive_message_length", body_limit_bytes + _FRAME_BYTES),
                ("grpc.max_send_message_length", -1),
                ("grpc.absolute_max_metadata_size", METADATA_LIMIT_BYTES),
                ("grpc.max_metadata_size", METADATA_LIMIT_BYTES),
                # Otherwise two processes could share the port, and each would get some of the calls.
                ("grpc.so_reuseport", 0),
            ),
        )
        try:
            self.port: int = (
                self._server.add_insecure_port(address)
                if credentials is None
                else self._server.add_secure_port(address, credentials)
            )
        except RuntimeError as error:
            raise CapacityError(
                f"Cannot listen for gRPC on {address}; choose another port (grpc.port), or stop what holds it."
            ) from error

    async def start(self) -> None:
        """Begins to answer."""
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Lets nobody new in; calls under way have `grace_s` to end."""
        await self._server.stop(grace_s)
