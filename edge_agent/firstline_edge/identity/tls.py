"""TLS as this device speaks it: its own authorities alone, and times judged by the floor instead of the clock.

OpenSSL verifies the chain, the name and the purpose, and leaves the times out (X509_V_FLAG_NO_CHECK_TIME): in 1970 no
certificate is valid yet. They are looked at here, right after the handshake and before a byte is sent, by whichever
way the handshake was made: asyncio's (`SSLObject`) or a socket's.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime

Judge = Callable[[float, float], str]
"""From a certificate's begin and end (wall time, seconds) to what is wrong with them, "" for nothing."""

_NO_CHECK_TIME = 0x200000  # openssl/x509_vfy.h: X509_V_FLAG_NO_CHECK_TIME
_VERIFY_ERROR = 1


class _Object(ssl.SSLObject):
    def do_handshake(self) -> None:
        super().do_handshake()
        _check_times(self)


class _Socket(ssl.SSLSocket):
    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
            _check_times(self)
        except OSError:
            self.close()  # paho would let go of it as it is
            raise


class DeviceContext(ssl.SSLContext):
    """A client's context; `judge` is asked after each handshake."""

    sslobject_class = _Object
    sslsocket_class = _Socket
    judge: Judge


def device_context(judge: Judge) -> DeviceContext:
    """Returns a context that trusts no authority yet; the caller loads authorities and the device's certificate."""
    context = DeviceContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # An operator's own authority may be another's intermediate, and is believed all the same.
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(_NO_CHECK_TIME)
    context.judge = judge
    return context


def unverified_context() -> ssl.SSLContext:
    """Accepts any server: for what is checked otherwise, and carries no secret."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def times_of(certificate: dict[str, object]) -> tuple[float, float]:
    """Begin and end of a certificate as `getpeercert` gives it (wall time, seconds)."""
    return (
        float(ssl.cert_time_to_seconds(str(certificate["notBefore"]))),
        float(ssl.cert_time_to_seconds(str(certificate["notAfter"]))),
    )


def shown(wall_s: float) -> str:
    """A time for people."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _check_times(connection: ssl.SSLObject | ssl.SSLSocket) -> None:
    context = connection.context
    certificate = connection.getpeercert()
    assert isinstance(context, DeviceContext)  # noqa: S101 (the classes above are its own)
    if not certificate:
        raise ssl.SSLCertVerificationError(_VERIFY_ERROR, "the server shows no certificate")
    if fault := context.judge(*times_of(dict(certificate))):
        raise ssl.SSLCertVerificationError(_VERIFY_ERROR, fault)
