"""Mosquitto's configuration and access list as text. Pure functions; `files.py` writes them.

The name in a device's certificate decides access, never a name that the device claims:

- Devices use their own listener. It takes user name and client id from the certificate's common name: a device
  publishes and subscribes below that name, and cannot end the session of another device by its client id.
- Gateways use a second listener with a password and choose their client ids: replicas share the user name, and a
  gateway ends the session of a revoked device by its client id. This listener rejects device certificates.
- No device can have the gateways' user name (`firstline_core.types`).

Other modules handle two properties of Mosquitto 2.0. It accepts every subscription and then drops messages that the
client may not read, so the gateways keep the name of their shared subscription secret (`firstline_gateway/mqtt.py`).
It also keeps sessions open after their certificate is revoked (`updater.py`).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from firstline_gateway.settings.settings import BROKER_AUTHORITIES_FILE, BROKER_USER, Settings

ACCESS_LIST = "acl"
CERTIFICATE = "broker.pem"
CONFIGURATION = "mosquitto.conf"
KEY = "broker.key"
PASSWORDS = "passwords"
REVOCATIONS = "crl.pem"

# Topic and properties in addition to the payload: `firstline_gateway/mqtt.py` allows as much.
_PACKET_OVERHEAD_BYTES = 64 * 1024
# The default of mosquitto_passwd 2.0; a password of 256 random bits needs no slower hash.
_ITERATIONS = 101

_GATEWAY_READS = ("birth", "state", "req/+", "reported", "telemetry")
_GATEWAY_WRITES = ("res", "desired")
_DEVICE_READS = ("res", "desired")
_DEVICE_WRITES = ("birth", "state", "req/+", "results", "reported", "telemetry")


def configuration(settings: Settings) -> str:
    """mosquitto.conf."""
    broker, folder = settings.broker, settings.broker.seen_folder
    tls = f"certfile {folder / CERTIFICATE}\nkeyfile {folder / KEY}\ntls_version tlsv1.2"
    packet_bytes = settings.limits.body_bytes + _PACKET_OVERHEAD_BYTES
    pid_file = ""
    if broker.pid_file:
        path = Path(broker.pid_file).absolute()  # the broker may start in another folder
        pid_file = f"\n# The gateway signals this process after a revocation (SIGHUP).\npid_file {path}\n"
    return f"""\
# The gateway writes this file from [broker] in gateway.toml: change it there.
# The broker reads access list, revocations and certificates again on SIGHUP.
per_listener_settings false
allow_anonymous false
acl_file {folder / ACCESS_LIST}
{pid_file}
# Devices: the name in the certificate is the user name and the client id; names that a device sends are ignored.
listener {broker.port}
max_connections {broker.connections}
{tls}
cafile {folder / BROKER_AUTHORITIES_FILE}
crlfile {folder / REVOCATIONS}
require_certificate true
use_identity_as_username true
use_username_as_clientid true

# Gateways: a password, and any client id. Let only gateways reach this port.
listener {broker.gateway_port}
{tls}
password_file {folder / PASSWORDS}

# Without it, Nagle's algorithm and delayed acknowledgements add 40 ms to each round trip.
set_tcp_nodelay true

# The broker tells clients the largest packet, and disconnects those that send a larger one.
max_packet_size {packet_bytes}
# The number of messages that a gateway processes at once.
max_inflight_messages {settings.mqtt.concurrency}
# The queue for a client that is slow or away. The broker drops further messages, and the device asks again.
max_queued_messages 20000
max_queued_bytes 268435456
# For retained messages, which no other limit bounds, and for all queues together. A client whose message needs more is
# disconnected; without this limit, the broker would be killed, and again at each start with the same messages.
memory_limit {broker.memory_limit_bytes}
# Seconds; the broker disconnects a client that is silent for one and a half times as long.
max_keepalive 120

# Sessions and retained messages survive a restart; inference payloads are never retained. A power cut loses the
# messages of the last minute: devices publish their state at each connection, and the outbox sends again.
persistence true
persistence_location {broker.data_folder}/
autosave_interval 60
persistent_client_expiration 14d

log_dest stdout
log_type error
log_type warning
log_type notice
"""


def access_list(prefix: str, revoked: Iterable[str] = ()) -> str:
    """The ACL file.

    Args:
        prefix: first levels of every topic.
        revoked: devices that may not do anything any more, whatever certificate they hold.
    """
    gateway = [
        *(f"topic read {prefix}/+/{leaf}" for leaf in _GATEWAY_READS),
        *(f"topic write {prefix}/+/{leaf}" for leaf in _GATEWAY_WRITES),
    ]
    device = [
        *(f"pattern write {prefix}/%u/{leaf}" for leaf in _DEVICE_WRITES),
        "# Only the gateway writes these topics; each device reads its own.",
        *(f"pattern read {prefix}/%u/{leaf}" for leaf in _DEVICE_READS),
    ]
    denied = [line for name in sorted(revoked) for line in (f"user {name}", "topic deny #", "")]
    return "\n".join(
        [
            f"# Permissions for the topics below {prefix}. %u is a device's user name, from its certificate.",
            "",
            f"user {BROKER_USER}",
            *gateway,
            "",
            *denied,
            *device,
            "",
        ]
    )


def denied_devices(access: str) -> set[str]:
    """Returns the devices that an access list refuses."""
    return {line.removeprefix("user ") for line, after in pairwise(access.splitlines()) if after == "topic deny #"}


def password_line(user: str, password: str, salt: bytes) -> str:
    """A line of Mosquitto's password file: PBKDF2 with SHA-512, as `mosquitto_passwd` of 2.0 writes it."""
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ITERATIONS)
    return f"{user}:$7${_ITERATIONS}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}\n"
