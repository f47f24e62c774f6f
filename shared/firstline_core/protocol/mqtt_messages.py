"""The messages of devices over MQTT 5: topics, V2 requests and answers, settings and errors. No MQTT library.

`request_publication` encodes what a device sends, and `Topics` has all topics of a device. The payload of a request or
answer is the V2 body, and user properties take the place of HTTP's headers:

| user property                   | message  | value                                                              |
|---------------------------------|----------|--------------------------------------------------------------------|
| inference-header-content-length | both     | bytes of JSON before the binary tensors; absent if all is JSON     |
| model-version                   | request  | version of the bundle; absent for the current one                  |
| deadline-ms                     | request  | remaining time until the deadline, never a time of day             |
| status                          | answer   | "ok", or the code of an error                                      |
| traceparent, tracestate         | both     | W3C trace context, if there is one                                 |

The payload of an error is `{"error": sentence, "code": code}`, as over HTTP.
"""

from __future__ import annotations

import dataclasses
import math
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from firstline_core import errors
from firstline_core.protocol import oip
from firstline_core.protocol.http import error_body, error_from
from firstline_core.protocol.limits import DEFAULT_LIMITS, Limits
from firstline_core.protocol.oip import Encoded, Origin
from firstline_core.protocol.tls import verifying_context
from firstline_core.storage.files import system_reason
from firstline_core.storage.secrets import read_secret
from firstline_core.telemetry.trace import received
from firstline_core.types import TRACEPARENT, TRACESTATE, InferRequest, InferResponse, TraceContext

# RFC 8446, section 6.2, with OpenSSL's names.
_ALERTS = {
    "ALERT_CERTIFICATE_REVOKED": "it was revoked; enrol with a new join token",
    "ALERT_CERTIFICATE_EXPIRED": "by the broker's clock it has ended, or has not begun",
    "ALERT_UNKNOWN_CA": "it is of an authority that the broker does not believe",
    "ALERT_CERTIFICATE_REQUIRED": "there is none",
}


@dataclass(frozen=True, slots=True)
class MqttSettings:
    """Address, credentials and limits of a connection to the broker.

    Args:
        host: name or address.
        port: by convention 1883, with TLS 8883.
        client_id: unique at the broker, which ends an older connection with the same id.
        username: "" for none; the password is sent only with it.
        password_file: read again for each connection; None to keep `password`.
        tls_ca_file: trusted authorities for the broker's certificate, or "system" for those of the machine; TLS is on
            if and only if this is set.
        tls_certificate_file: client certificate, if the broker requires one, with `tls_key_file`.
        tls: a ready context instead of all these files.
        keepalive_s: ping interval of an idle connection; a silent loss is detected within twice this time.
        connect_timeout_s: for TCP, TLS and the CONNACK each.
        reconnect_max_s: maximum delay between two attempts.
        receive_maximum: unacknowledged messages of QoS 1, and so concurrent handlers.
        maximum_packet_bytes: the broker does not deliver larger packets.
        section: of the settings, for errors about the files.
    """

    host: str
    port: int = 1883
    client_id: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    password_file: Path | None = None
    tls_ca_file: Path | None = None
    tls_certificate_file: Path | None = None
    tls_key_file: Path | None = None
    tls: ssl.SSLContext | None = field(default=None, repr=False, compare=False)
    keepalive_s: int = 20
    connect_timeout_s: float = 5.0
    reconnect_max_s: float = 30.0
    receive_maximum: int = 64
    maximum_packet_bytes: int = 64 * 1024 * 1024
    section: str = "mqtt"

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def renewed(self) -> MqttSettings:
        """Returns the settings with the current password of the file; with the old one if it cannot be read."""
        if self.password_file is None:
            return self
        try:
            return dataclasses.replace(
                self, password=read_secret(str(self.password_file), "password_file", "the password")
            )
        except errors.ConfigError:  # it was readable before; the broker decides whether the old one is still valid
            return self


@dataclass(frozen=True, slots=True)
class Publication:
    """A message to publish.

    Args:
        properties: MQTT 5 user properties.
        expiry_s: seconds after which the broker drops it; None for never.
        qos: 0 or 1.
    """

    topic: str
    payload: bytes
    properties: dict[str, str] = field(default_factory=dict)
    response_topic: str = ""
    correlation_data: bytes = b""
    expiry_s: int | None = None
    retain: bool = False
    qos: int = 1


@dataclass(frozen=True, slots=True)
class Message(Publication):
    """A received message. If a user property is repeated, the last one counts.

    Args:
        expiry_s: remaining time; the broker has subtracted the time that the message waited there.
        ack: acknowledges it; only the first call counts, and only on the connection that delivered it.
    """

    ack: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)


def tls_context(settings: MqttSettings) -> ssl.SSLContext | None:
    """Returns the TLS context of the settings; None without TLS.

    Raises:
        ConfigError: a file that cannot be used, or a client certificate without TLS.
    """
    if settings.tls is not None:
        return settings.tls
    if settings.tls_ca_file is None:
        if settings.tls_certificate_file is not None or settings.tls_key_file is not None:
            raise errors.ConfigError(
                "The MQTT connection has a certificate or key but no tls_ca_file, so it would not be encrypted; name "
                'the authorities to trust, or "system" for the machine\'s own.'
            )
        return None
    file = None if str(settings.tls_ca_file) == "system" else settings.tls_ca_file
    context = verifying_context(file, f"{settings.section}.tls_ca_file")
    if settings.tls_certificate_file is not None:
        try:
            context.load_cert_chain(settings.tls_certificate_file, settings.tls_key_file)
        except OSError as error:
            _check_key(settings)
            named = " and ".join(str(file) for file in (settings.tls_certificate_file, settings.tls_key_file) if file)
            why = (
                system_reason(error)
                if error.errno and not isinstance(error, ssl.SSLError)
                else "they do not fit together"
            )
            raise errors.ConfigError(
                f"{settings.section}.tls_certificate_file: {named} cannot be used: {why}; name a certificate and its "
                "key, both in PEM."
            ) from error
    return context


def _check_key(settings: MqttSettings) -> None:
    """Raises ConfigError for a file of the key that holds none."""
    key = settings.tls_key_file
    if key is not None and key.is_file() and b" PRIVATE KEY-----" not in key.read_bytes():
        raise errors.ConfigError(
            f"{settings.section}.tls_key_file: {key} holds no private key in PEM; name the key of "
            f"{settings.tls_certificate_file}."
        )


def handshake_problem(where: str, error: ssl.SSLError) -> str:
    """Returns a sentence about a failed handshake; OpenSSL only names the TLS alert."""
    reason = str(error)
    for alert, meaning in _ALERTS.items():
        if alert in reason:
            return f"The MQTT broker at {where} refuses this client's certificate: {meaning}."
    return f"The MQTT broker at {where} and this client do not agree on TLS: {error}."


def refusal(code: int, name: str, what: str) -> errors.FirstlineError:
    """Returns the error for a reason code (MQTT 5, section 2.4).

    Args:
        code: 0x80 or more.
        name: name of the code, from the broker or the standard.
        what: the refused operation, e.g. "the connection".
    """
    message = f"The MQTT broker refused {what}: {name}."
    match code:
        case 0x86 | 0x87 | 0x8A | 0x8C:  # bad user name or password, not authorised, banned, bad authentication
            return errors.UnauthorizedError(message)
        case 0x88 | 0x89 | 0x96 | 0x97 | 0x9F:  # unavailable, busy, rate too high, quota exceeded
            return errors.CapacityError(message)
        case 0x95:
            return errors.PayloadTooLargeError(message)
        case _:
            return errors.ProtocolError(message)


def not_connected(address: str) -> errors.LinkDownError:
    """Returns the error for sending without a connection."""
    return errors.LinkDownError(f"Not connected to the MQTT broker at {address}.")


def connection_lost(address: str, why: str) -> errors.LinkDownError:
    """Returns the error for a packet whose answer cannot arrive."""
    return errors.LinkDownError(f"The connection to the MQTT broker at {address} was lost ({why}).")


DEFAULT_PREFIX = "firstline/v1"

_NAME_LIMIT_CHARACTERS = 128
# Wildcards, the separator, the prefix of shared subscriptions and of the broker's own topics, and NUL.
_REFUSED = frozenset("+#/$\0")


class Topics:
    """The topics of one device.

    Attributes:
        birth: session id, capabilities and model digests; retained.
        state: online or offline, with the session id; retained, and the last will.
        response: the gateway's answers to this device.
        results: corrections, for applications near the device; never retained.
        desired: the desired state; retained.
        reported: the reported state; retained.
        telemetry: the device's telemetry and events.
    """

    def __init__(self, device: str, prefix: str = DEFAULT_PREFIX) -> None:
        """Names the topics.

        Raises:
            ConfigError: an invalid prefix or device name.
        """
        _check_prefix(prefix)
        if why := _fault(device):
            raise errors.ConfigError(f"The device name {device!r} {why}.")
        self._own = own = f"{prefix}/{device}"
        self.birth, self.state = f"{own}/birth", f"{own}/state"
        self.response, self.results = f"{own}/res", f"{own}/results"
        self.desired, self.reported, self.telemetry = f"{own}/desired", f"{own}/reported", f"{own}/telemetry"

    def request(self, model: str) -> str:
        """Returns the topic of this device's requests to `model`.

        Raises:
            RequestError: an invalid model name.
        """
        if why := _fault(model):
            raise errors.RequestError(f"The model name {model!r} {why}.")
        return f"{self._own}/req/{model}"


def shared_requests(group: str, prefix: str = DEFAULT_PREFIX) -> str:
    """Returns the filter with which the gateway's replicas share the requests of all devices (MQTT 5, section 4.8.2).

    Raises:
        ConfigError: an invalid group or prefix.
    """
    _check_prefix(prefix)
    if why := _fault(group):
        raise errors.ConfigError(f"The shared subscription's group {group!r} {why}.")
    return f"$share/{group}/{prefix}/+/req/+"


def parse_request(topic: str, prefix: str = DEFAULT_PREFIX) -> tuple[str, str]:
    """Returns the device and model of a request topic.

    Raises:
        ProtocolError: another topic.
    """
    head = f"{prefix}/"
    parts = topic[len(head) :].split("/") if topic.startswith(head) else []
    if len(parts) != 3 or parts[1] != "req" or _fault(parts[0]) or _fault(parts[2]):
        raise errors.ProtocolError(f"'{topic}' is not a request topic; those are {prefix}/DEVICE/req/MODEL.")
    return parts[0], parts[2]


def _check_prefix(prefix: str) -> None:
    for level in prefix.split("/"):
        if why := _fault(level):
            raise errors.ConfigError(f"The topic prefix {prefix!r} has a level {level!r} that {why}.")


def _fault(level: str) -> str:
    """Returns why `level` cannot be one level of a topic; "" if it can."""
    if not level:
        return "is empty; give at least one character"
    if len(level) > _NAME_LIMIT_CHARACTERS:
        return f"has {len(level)} characters; a topic level here has at most {_NAME_LIMIT_CHARACTERS}"
    reserved = sorted(_REFUSED.intersection(level))
    if reserved:
        return f"contains {', '.join(map(repr, reserved))}, which MQTT topics reserve; leave it out"
    # Section 1.5.4 allows a broker to close the connection for these; surrogates are not UTF-8 at all.
    if any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 or 0xD800 <= ord(c) < 0xE000 for c in level):
        return "contains control characters, which MQTT brokers may refuse; leave them out"
    return ""


HEADER_LENGTH = "inference-header-content-length"
MODEL_VERSION = "model-version"
DEADLINE_MS = "deadline-ms"
STATUS = "status"

OK = "ok"

EXPIRY_MAX_S = 0xFFFF_FFFF
"""Longest expiry of a message: it has four bytes (MQTT 5, section 3.3.2.3.3)."""


def request_publication(
    request: InferRequest, *, topic: str, response_topic: str, correlation_data: bytes, now_s: float
) -> Publication:
    """Returns a request to publish. Its expiry is the deadline in whole seconds, after which the broker may drop it.

    Args:
        request: its `binary_output` decides the form of the answer.
        topic: request topic, see `Topics.request`.
        response_topic: topic for the answer.
        correlation_data: assigns the answer to its request.
        now_s: current time on the clock of `request.deadline_s`.

    Raises:
        InvalidTensorError: an input that V2 cannot represent.
    """
    encoded = oip.encode_request(request, binary=True, now_s=now_s)
    properties = _properties(encoded, request.trace)
    expiry_s = None
    if request.version:
        properties[MODEL_VERSION] = request.version
    if request.deadline_s is not None:
        left_s = min(max(0.0, request.deadline_s - now_s), EXPIRY_MAX_S)
        properties[DEADLINE_MS] = str(math.ceil(left_s * 1000))
        expiry_s = max(1, math.ceil(left_s))
    return Publication(
        topic=topic,
        payload=encoded.body,
        properties=properties,
        response_topic=response_topic,
        correlation_data=correlation_data,
        expiry_s=expiry_s,
    )


def trace_of(message: Message) -> TraceContext | None:
    """Returns the trace of a message; None without one."""
    return received(message.properties.get(TRACEPARENT, ""), message.properties.get(TRACESTATE, ""))


def read_request(message: Message, model: str, origin: Origin) -> InferRequest:
    """Decodes the request of a message and keeps its `request_id`, because only authenticated devices publish these.

    The deadline is the earliest one in the message. The expiry includes the time at the broker, but only in whole
    seconds.

    Args:
        message: message of a request topic.
        model: model in that topic.
        origin: its principal is the device of the topic, authorised by the broker; its trace see `trace_of`.

    Raises:
        RequestError: the message is invalid; `InvalidTensorError`, `PayloadTooLargeError`.
    """
    now_s, version = origin.now_s, message.properties.get(MODEL_VERSION, "")
    trusted, length = replace(origin, trust_request_id=True), _whole_number(message, HEADER_LENGTH)
    request = oip.decode_request(model, message.payload, length, trusted, version=version)
    deadline_ms = _whole_number(message, DEADLINE_MS)
    ends_s = [
        request.deadline_s,
        None if deadline_ms is None else now_s + deadline_ms / 1000,
        None if message.expiry_s is None else now_s + message.expiry_s,
    ]
    deadline_s = min((end_s for end_s in ends_s if end_s is not None), default=None)
    return replace(request, deadline_s=deadline_s, trace=origin.trace)


def json_bytes(message: Message) -> int:
    """Returns the bytes of a payload that must be parsed as JSON, which blocks the thread.

    Raises:
        InvalidTensorError: the header length is invalid.
    """
    length = _whole_number(message, HEADER_LENGTH)
    return len(message.payload) if length is None else min(length, len(message.payload))


def response_publication(
    request: InferRequest,
    response: InferResponse,
    *,
    topic: str,
    labels: Sequence[str] = (),
    correlation_data: bytes = b"",
    expiry_s: int | None = None,
) -> Publication:
    """Returns an answer to publish, never retained.

    Args:
        request: the answered request.
        response: to encode.
        topic: response topic.
        labels: names of the model's classes, for outputs requested as classes.
        correlation_data: of the request.
        expiry_s: seconds after which the broker drops it; None for never.

    Raises:
        InvalidTensorError: a requested output does not exist.
    """
    encoded = oip.encode_response(request, response, labels)
    properties = {STATUS: OK} | _properties(encoded, request.trace)
    return Publication(topic, encoded.body, properties, correlation_data=correlation_data, expiry_s=expiry_s)


def error_publication(
    error: errors.FirstlineError,
    *,
    topic: str,
    correlation_data: bytes,
    expiry_s: int | None = None,
    trace: TraceContext | None = None,
) -> Publication:
    """Returns an error to publish, with the trace of the request."""
    properties = {STATUS: error.code} | ({} if trace is None else trace.headers())
    return Publication(topic, error_body(error), properties, correlation_data=correlation_data, expiry_s=expiry_s)


def read_response(message: Message, limits: Limits = DEFAULT_LIMITS) -> InferResponse:
    """Decodes the answer of a message.

    Raises:
        FirstlineError: the published error.
        ProtocolError: the message is not an answer or an error.
    """
    status = message.properties.get(STATUS)
    if status is None:
        raise errors.ProtocolError(f"A message on '{message.topic}' has no user property '{STATUS}'.")
    if status != OK:
        error = error_from(500, message.payload)
        if error.code != status:
            raise errors.ProtocolError(
                f"A message on '{message.topic}' has status '{status}', but its payload differs."
            )
        raise error
    try:
        header_length = _whole_number(message, HEADER_LENGTH)
    except errors.InvalidTensorError as fault:
        raise errors.ProtocolError(fault.message) from fault
    return oip.decode_response(message.payload, header_length, limits)


def _properties(encoded: Encoded, trace: TraceContext | None) -> dict[str, str]:
    properties = {} if encoded.header_length is None else {HEADER_LENGTH: str(encoded.header_length)}
    return properties if trace is None else properties | trace.headers()


def _whole_number(message: Message, name: str) -> int | None:
    text = message.properties.get(name)
    if text is None:
        return None
    # 15 digits are enough for any body or time, and limit the work of int().
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise errors.InvalidTensorError(f"The user property '{name}' is {text[:40]!r}; give a whole number.")
    return int(text)
