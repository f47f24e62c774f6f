"""The devices whose connections are open, by the certificates that they showed in the TLS handshake."""

from __future__ import annotations

from firstline_core.protocol.http_server import Connection
from firstline_gateway.identity.client_certificate import Presented, read_presented
from firstline_gateway.identity.gatekeeper import Sessions


class Peers:
    """Implements the HTTP server's `PeerRegistry`: a revoked certificate's connections can be closed.

    Args:
        sessions: that are closed when their certificate is revoked.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def connected(self, certificate: bytes, connection: Connection) -> Presented:
        presented = read_presented(certificate)
        self._sessions.add(presented.serial, connection)
        return presented

    def disconnected(self, peer: Presented, connection: Connection) -> None:
        self._sessions.remove(peer.serial, connection)
