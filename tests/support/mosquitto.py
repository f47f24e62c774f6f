"""A Mosquitto on the files that a gateway writes for it, with a certificate authority, devices and MQTT clients."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from support.broker import HOST, Broker, free_port

from firstline_core.protocol.limits import DEFAULT_LIMITS
from firstline_gateway.broker.config import CONFIGURATION
from firstline_gateway.broker.files import BrokerFolder
from firstline_gateway.identity import ca
from firstline_gateway.identity.authorities import Authorities
from firstline_gateway.identity.credentials import RevokedCertificate
from firstline_gateway.settings import settings
from firstline_gateway.settings.settings import BROKER_AUTHORITIES_FILE, BROKER_USER

PREFIX = "firstline/v1"
_TIMEOUT_S = 5.0


@dataclass
class Issuer:
    """An authority, and the files of the certificates that it gave to clients."""

    folder: Path
    authority: ca.Authority = field(default_factory=lambda: ca.create_authority(ca.new_key(), time.time()))
    serials: dict[str, str] = field(default_factory=dict)

    def device(self, name: str, *, made_s: float | None = None, days: float = 90) -> Path:
        """Key and certificate of a device in one file."""
        key, now_s = ca.new_key(), time.time() if made_s is None else made_s
        return self.keep(name, ca.issue_device(self.authority, name, key.public_key(), now_s, days), key)

    def server(self, name: str, hosts: tuple[str, ...] = (HOST,)) -> Path:
        """The same of a server."""
        return self.keep(name, *ca.issue_server(self.authority, hosts, time.time()))

    def keep(self, name: str, certificate: Any, key: Any) -> Path:
        self.folder.mkdir(exist_ok=True)
        file = self.folder / f"{name}.pem"
        file.write_bytes(ca.key_pem(key) + ca.pem_of(certificate).encode())
        self.serials[name] = ca.serial_of(certificate)
        return file


class Revocations:
    """The credentials of a gateway that had issued certificates to every device; a test changes them."""

    def __init__(self) -> None:
        self.certificates: list[RevokedCertificate] = []
        self.revoked_devices: set[str] = set()
        self.version = 1

    def revoked_certificates(self) -> list[RevokedCertificate]:
        return list(self.certificates)

    def knows(self, _device: str) -> bool:
        return True


class GeneratedBroker:
    """A broker on generated files; `revoke` rewrites them and signals the broker, as a gateway does."""

    def __init__(
        self,
        folder: Path,
        issuer: Issuer,
        *,
        body_bytes: int = DEFAULT_LIMITS.body_bytes,
        connections: int = 10_000,
        memory_bytes: int = 1 << 30,
    ) -> None:
        self.folder = folder
        self.issuer = issuer
        files = folder / "broker"
        self.settings = settings.BrokerSection(
            directory=str(files),
            hosts=(HOST,),
            port=free_port(),
            gateway_port=free_port(),
            connections=connections,
            memory_limit_bytes=memory_bytes,
            pid_file=str(folder / "pid"),
        )
        api, mqtt = settings.ApiSection(body_limit_bytes=body_bytes), settings.MqttSection(prefix=PREFIX)
        self.files = BrokerFolder(settings.Settings(broker=self.settings, api=api, mqtt=mqtt))
        self._revocations = Revocations()
        self.refresh()
        # The port is the one that it opens last.
        self.broker = Broker(folder, config=files / CONFIGURATION, port=self.settings.gateway_port)

    def refresh(self) -> set[str]:
        return self.files.refresh(Authorities(self.issuer.authority), self._revocations, time.time())

    def revoke(self, device: str, *, certificate: bool = True, name: bool = True) -> set[str]:
        """Refuses a device's certificate, its name, or both."""
        if certificate:
            revoked = RevokedCertificate(self.issuer.serials[device], time.time(), device)
            self._revocations.certificates.append(revoked)
        if name:
            self._revocations.revoked_devices.add(device)
        return self.refresh()

    def __enter__(self) -> GeneratedBroker:
        self.broker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.broker.stop()

    def device(self, certificate: Path | None, **options: Any) -> Peer:
        """A client on the devices' listener."""
        return Peer(self.settings.port, self._context(certificate), **options)

    def gateway(self, **options: Any) -> Peer:
        """A client on the gateways' listener, with their password."""
        options.setdefault("user", (BROKER_USER, self.files.password_file.read_text().strip()))
        return Peer(self.settings.gateway_port, self._context(None), **options)

    def stranger_at_gateways(self, certificate: Path | None, **options: Any) -> Peer:
        """A client on the gateways' listener, without."""
        return Peer(self.settings.gateway_port, self._context(certificate), **options)

    def _context(self, certificate: Path | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.files.path / BROKER_AUTHORITIES_FILE)
        context.sslsocket_class = _ClosingSocket
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context


class _ClosingSocket(ssl.SSLSocket):
    """Paho lets go of a socket whose handshake failed without closing it."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except OSError:
            self.close()
            raise


class Peer:
    """One MQTT 5 client that keeps what it receives; `said` is how its connection was greeted, "" where it was not."""

    def __init__(
        self,
        port: int,
        tls: ssl.SSLContext | None = None,
        *,
        user: tuple[str, str] | None = None,
        client_id: str = "",
        will: str = "",
    ) -> None:
        self.received: list[tuple[str, bytes]] = []
        self.said = ""
        self.gone = ""
        self._changed = threading.Condition()
        self._acknowledged: dict[int, str] = {}
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion.MQTTv5, reconnect_on_failure=False
        )
        if tls is not None:
            self.client.tls_set_context(tls)
        if user is not None:
            self.client.username_pw_set(*user)
        if will:
            self.client.will_set(will, b"the will", qos=1)
        self.client.on_connect = lambda _c, _u, _f, reason, _p: self._note("said", reason.getName())
        self.client.on_disconnect = lambda _c, _u, _f, reason, _p: self._note("gone", reason.getName())
        self.client.on_message = self._on_message
        self.client.on_publish = self._on_acknowledged
        self.client.on_subscribe = lambda c, u, mid, reasons, p: self._on_acknowledged(c, u, mid, reasons[0], p)
        try:
            self.client.connect(HOST, port)
            self.client.loop_start()
            self.wait(lambda: self.said or self.gone)
        except OSError as error:  # TLS 1.3 lets the client believe that all is well until it reads
            self.gone = str(error)

    @property
    def is_in(self) -> bool:
        """Whether the broker let it in, and has not cut it off since."""
        return self.said == "Success" and not self.gone

    def publish(self, topic: str, payload: bytes = b"x", *, retain: bool = False) -> str:
        """Publishes at QoS 1; the broker's reason, "Success" where it was let through."""
        mid = self.client.publish(topic, payload, qos=1, retain=retain).mid
        self.wait(lambda: mid in self._acknowledged or self.gone)
        reason = self._acknowledged.get(mid, self.gone)
        return "Success" if reason == "No matching subscribers" else reason

    def subscribe(self, topic: str) -> str:
        _, mid = self.client.subscribe(topic, qos=1)
        assert mid is not None
        self.wait(lambda: mid in self._acknowledged or self.gone)
        return self._acknowledged.get(mid, self.gone)

    def wait_for(self, topic: str) -> bytes:
        self.wait(lambda: any(found == topic for found, _ in self.received))
        return next(payload for found, payload in self.received if found == topic)

    def wait(self, condition: Callable[[], Any]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, timeout=_TIMEOUT_S), f"nothing came in {_TIMEOUT_S:g} s"

    def vanish(self) -> None:
        """Ends the connection as a cut cable does: without a goodbye, so that the will is published."""
        opened = self.client.socket()
        self.client.loop_stop()
        opened.close()

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def _note(self, name: str, reason: str) -> None:
        with self._changed:
            setattr(self, name, reason)
            self._changed.notify_all()

    def _on_message(self, _c: Any, _u: Any, message: paho.MQTTMessage) -> None:
        with self._changed:
            self.received.append((message.topic, message.payload))
            self._changed.notify_all()

    def _on_acknowledged(self, _c: Any, _u: Any, mid: int, reason: Any, _p: Any) -> None:
        with self._changed:
            self._acknowledged[mid] = reason.getName()
            self._changed.notify_all()
