"""The gRPC server and its limits."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio

from firstline_core.errors import CapacityError
from firstline_core.protocol.grpc.service import InferenceService
from firstline_core.protocol.http_server import ServerLimits, connections_within_descriptors

METADATA_LIMIT_BYTES = 65_536
# Names and field lengths, which a REST body does not have.
_FRAME_BYTES = 65_536
_LIMITS = ServerLimits()


def peer_address(peer: str) -> str:
    """Returns the address in "ipv4:127.0.0.1:1234" or "ipv6:%5B::1%5D:1234"."""
    address = peer.partition(":")[2].rpartition(":")[0]
    return address.replace("%5B", "").replace("%5D", "").strip("[]")


class GrpcServer:
    """A gRPC server on one address; it serves after `start`.

    Args:
        service: answers the calls.
        address: "HOST:PORT"; port 0 for any free port.
        body_limit_bytes: of one message.
        calls_limit: concurrent calls; further ones are refused (RESOURCE_EXHAUSTED).
        credentials: for TLS; None for plain text.

    Raises:
        CapacityError: the address is in use, or does not belong to this machine.
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
                # Of connections, as for HTTP: any client that reaches the port can open them.
                ("grpc.server_handshake_timeout_ms", round(1000 * _LIMITS.handshake_s)),
                ("grpc.max_connection_idle_ms", round(1000 * _LIMITS.idle_s)),
                # HTTP may have half of the descriptors.
                ("grpc.max_allowed_incoming_connections", max(1, connections_within_descriptors() // 2)),
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
        """Starts to serve."""
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Refuses new calls; running calls have `grace_s` to end."""
        await self._server.stop(grace_s)
