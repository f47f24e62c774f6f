"""TLS contexts of a device: they trust only its own authorities, and judge times by the floor instead of the clock.

OpenSSL verifies the chain, the name and the purpose, and leaves the times out (X509_V_FLAG_NO_CHECK_TIME): in 1970 no
certificate is valid yet. They are checked here, right after the handshake and before a byte is sent, for the handshakes
of asyncio (`SSLObject`) and of sockets.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable

TimeCheck = Callable[[float, float], str]
"""Takes a certificate's begin and end (wall time, seconds), and returns what is wrong with them; "" if nothing is."""

_NO_CHECK_TIME = 0x200000  # openssl/x509_vfy.h: X509_V_FLAG_NO_CHECK_TIME
_VERIFY_ERROR = 1


class _Object(ssl.SSLObject):
    def do_handshake(self) -> None:
        super().do_handshake()
        _check_times(self)


class _Socket(ssl.SSLSocket):
    def do_handshake(self, block: bool = False) -> None:
        super().do_handshake(block)
        _check_times(self)


class DeviceContext(ssl.SSLContext):
    """A client's context; `check_times` is called after each handshake."""

    sslobject_class = _Object
    sslsocket_class = _Socket
    check_times: TimeCheck


def device_context(check_times: TimeCheck) -> DeviceContext:
    """Returns a context that trusts no authority yet; the caller loads authorities and the device's certificate."""
    context = DeviceContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # An operator's own authority may be an intermediate of another one, and is trusted nevertheless.
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(_NO_CHECK_TIME)
    context.check_times = check_times
    return context


def unverified_context() -> ssl.SSLContext:
    """Returns a context that accepts any server, for an exchange without secrets that is verified in another way."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def times_of(certificate: dict[str, object]) -> tuple[float, float]:
    """Returns begin and end of a certificate as `getpeercert` returns it (wall time, seconds)."""
    return (
        float(ssl.cert_time_to_seconds(str(certificate["notBefore"]))),
        float(ssl.cert_time_to_seconds(str(certificate["notAfter"]))),
    )


def _check_times(connection: ssl.SSLObject | ssl.SSLSocket) -> None:
    context = connection.context
    certificate = connection.getpeercert()
    assert isinstance(context, DeviceContext)  # noqa: S101 (the classes above are its own)
    if not certificate:
        raise ssl.SSLCertVerificationError(_VERIFY_ERROR, "the server shows no certificate")
    if fault := context.check_times(*times_of(dict(certificate))):
        raise ssl.SSLCertVerificationError(_VERIFY_ERROR, fault)
