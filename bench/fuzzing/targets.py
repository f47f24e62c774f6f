"""What is fuzzed: readers of bytes from outside, each with valid inputs to start from and the errors it may raise."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import NameOID
from PIL import Image

from firstline.sse import EventReader
from firstline_core.bundle.images import decode
from firstline_core.bundle.manifest import encode_manifest, parse_manifest
from firstline_core.errors import ConfigError, FirstlineError, IntegrityError, ProtocolError, RequestError
from firstline_core.protocol import envelope
from firstline_core.protocol.enrolment import (
    SECRET_BYTES,
    format_join_token,
    format_secret,
    parse_join_token,
    public_key_hash,
)
from firstline_core.protocol.http_errors import error_body, error_from
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.mqtt_messages import Message, Publication
from firstline_core.protocol.oip import Encoded, decode_request, decode_response, encode_request, encode_response
from firstline_core.protocol.topics import Topics, parse_request
from firstline_core.runtime.external_data import has_external_data
from firstline_core.types import (
    DATATYPES,
    Answer,
    Attempt,
    AuditNote,
    InferRequest,
    InferResponse,
    Privacy,
    Reason,
    RequestedOutput,
    Route,
    Status,
    Tensor,
    Tier,
    Wait,
)
from firstline_gateway.identity.ca import requested_key
from fuzzing.mutation import NUMBERS, WORDS, altered, damaged

CHECKOUT = Path(__file__).parents[2]
ID = "01890a5d-ac96-774b-bcce-b302099a8057"
LIMITS = Limits(body_bytes=65_536, json_bytes=32_768, elements=65_536, byte_elements=4096)
TOPICS = Topics("press-7")

Input = Any


@dataclass(frozen=True, slots=True)
class Target:
    """A reader.

    Args:
        name: for people, and part of each input's seed.
        make: an input, from its own `Random`.
        read: gives it to the reader.
        may: what the reader says of a bad input; whatever else it raises is a crash.
        share: of all inputs.
    """

    name: str
    make: Callable[[Random], Input]
    read: Callable[[Input], object]
    may: tuple[type[Exception], ...]
    share: float


def _tensors() -> tuple[Tensor, ...]:
    """One of each datatype, two rows."""
    rng = np.random.default_rng(0)
    found = []
    for name, dtype in DATATYPES.items():
        array: Any = np.empty((2, 2), dtype)
        if dtype.kind == "O":
            array = np.array([b"one", b"\xff\x00"], np.object_)
        else:
            array[:] = rng.integers(0, 2, (2, 2))
        found.append(Tensor(name.lower(), array))
    return tuple(found)


def _png() -> bytes:
    with io.BytesIO() as file:
        Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(file, "PNG")
        return file.getvalue()


NOTE = AuditNote(predicted=3, propensity=0.1, floor=0.05, epsilon=0.02, threshold=0.9, edge_digest="a" * 64)
REQUESTS = (
    InferRequest("digits", (Tensor("image", np.array([_png()], np.object_)),), ID),
    InferRequest("digits", (Tensor("x", np.zeros((2, 4), np.float32)),), ID, binary_output=True, audit=NOTE),
    InferRequest(
        *("digits", _tensors(), ID, "7", "mine"),
        outputs=(RequestedOutput("probabilities", True), RequestedOutput("other", None)),
        route=Route.CLOUD,
        privacy=Privacy.LOCAL_ONLY,
        wait=Wait.FIRST,
        deadline_s=2.5,
        full_model_digest="b" * 64,
        alarm="c" * 64,
    ),
)
ANSWER = Answer(
    request_id=ID,
    status=Status.PROVISIONAL,
    certified=True,
    durable=True,
    tier=Tier.EDGE,
    reason=Reason.LINK_DOWN,
    confidence=0.5,
    model_digest="d" * 64,
    attempts=(Attempt(Tier.CLOUD, "link_down", 3.5),),
)
RESPONSES = (
    InferResponse("digits", "3", (Tensor("probabilities", np.full((1, 10), 0.1, np.float32)),), answer=ANSWER),
    InferResponse("digits", "3", _tensors(), id="mine", answer=ANSWER),
    InferResponse("other", "", (Tensor("y", np.zeros((2, 2), np.int64)),)),
)


def _bodies() -> list[Encoded]:
    requests = [encode_request(REQUESTS[0], binary=True), encode_request(REQUESTS[2], binary=True)]
    requests += [encode_request(REQUESTS[1], binary=binary) for binary in (True, False)]
    asked = [InferRequest("digits", (), ID, binary_output=binary) for binary in (True, False)]
    return requests + [encode_response(asked[0], response) for response in RESPONSES] + [
        encode_response(asked[1], response) for response in (RESPONSES[0], RESPONSES[2])
    ]  # fmt: skip


_BODIES = _bodies()
_BYTES = [encoded.body for encoded in _BODIES]


def _body(random: Random, encoded: Encoded) -> tuple[bytes, int | None]:
    """A body and the length of its head, which mostly still fits."""
    length = encoded.header_length
    head, tail = encoded.body[:length], encoded.body[length:] if length is not None else b""
    kind = random.randrange(4)
    if kind == 0:
        body = damaged(random, encoded.body, _BYTES)
    else:
        head = altered(random, head) if kind < 3 else damaged(random, head, _BYTES)
        if random.random() < 0.2 and tail:
            tail = damaged(random, tail, _BYTES)
        body, length = head + tail, None if length is None else len(head)
    if random.random() < 0.1:
        length = random.choice((None, 0, 1, len(body), len(body) + 1, 2**31, random.randint(0, len(body))))
    return body, length


def _binary(random: Random) -> Input:
    return random.random() < 0.6, *_body(random, random.choice(_BODIES))


def _read_binary(found: Input) -> object:
    is_request, body, length = found
    if not is_request:
        try:
            return decode_response(body, length, LIMITS)
        except ProtocolError:
            return None
    request = decode_request("digits", body, length, now_s=1.0, trust_request_id=True, limits=LIMITS)
    return encode_request(request, binary=True, now_s=1.0)  # what was let in can be sent on


_PUBLICATIONS = [
    envelope.request_publication(
        request,
        topic=TOPICS.request("digits"),
        response_topic=TOPICS.response,
        correlation_data=b"1234",
        now_s=0.0,
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )
    for request in REQUESTS
] + [
    *(envelope.response_publication(REQUESTS[1], response, topic=TOPICS.response) for response in RESPONSES),
    envelope.error_publication(RequestError("No."), topic=TOPICS.response, correlation_data=b"1"),
]


def _message(random: Random) -> Input:
    publication: Publication = random.choice(_PUBLICATIONS)
    properties = dict(publication.properties)
    said = properties.get(envelope.HEADER_LENGTH)
    body, length = publication.payload, None if said is None else int(said)
    if random.random() < 0.6:
        body, length = _body(random, Encoded(body, length))
    if random.random() < 0.8 and length is not None:
        properties[envelope.HEADER_LENGTH] = str(length)
    for _ in range(random.choice((0, 0, 1, 2))):
        name = random.choice([*properties, envelope.DEADLINE_MS, envelope.STATUS, envelope.MODEL_VERSION, ""])
        properties[name] = str(random.choice((*NUMBERS, *WORDS, "²", "9" * 5000)))
    if random.random() < 0.1 and properties:
        del properties[random.choice(list(properties))]
    topic = publication.topic
    if random.random() < 0.2:
        topic = damaged(random, topic.encode(), [b"/req/", b"+#$"]).decode("utf-8", "surrogateescape")
    expiry_s = random.choice((None, 0, 1, 2**32 - 1))
    return Message(topic, body, properties, TOPICS.response, random.randbytes(random.randint(0, 16)), expiry_s)


def _read_message(message: Input) -> object:
    if message.properties.get(envelope.STATUS) is not None:
        return envelope.read_response(message, LIMITS)
    device, model = parse_request(message.topic)
    principal = f"device:{device}"
    request = envelope.read_request(message, model, now_s=1.0, principal=principal, limits=LIMITS)
    return envelope.request_publication(
        request, topic=message.topic, response_topic=Topics(device).response, correlation_data=b"", now_s=1.0
    )


def _manifests() -> list[bytes]:
    paths = [CHECKOUT / "models/digits/bundle/manifest.json"]
    paths += sorted((CHECKOUT / "tests/unit/core").glob("manifest_format_*.json"))
    # Without the line breaks for people: damage should meet what is said.
    return [json.dumps(json.loads(path.read_bytes()), separators=(",", ":")).encode() for path in paths]


_MANIFESTS = _manifests()


def _manifest(random: Random) -> Input:
    text = random.choice(_MANIFESTS)
    return damaged(random, text, _MANIFESTS) if random.random() < 0.4 else altered(random, text)


def _read_manifest(text: Input) -> object:
    manifest = parse_manifest(text)
    assert parse_manifest(encode_manifest(manifest)) == manifest
    return manifest.artefacts, manifest.full_digest, manifest.policy.score.digest


def _images() -> list[bytes]:
    found = [_png()]
    rng = np.random.default_rng(1)
    for mode, kind, options in (
        ("RGB", "JPEG", {}),
        ("L", "JPEG", {"progressive": True}),
        (
            "CMYK",
            "JPEG",
            {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\1\x01\x1a\0\5\0\0\0\1\0\0\0\x1a\0\0\0\0\0\0\0\1\0\0\0\1"},
        ),
        ("P", "PNG", {}),
        ("RGBA", "PNG", {}),
        ("I;16", "PNG", {}),
        ("1", "PNG", {}),
    ):
        with io.BytesIO() as file:
            pixels = rng.integers(0, 256, (9, 9, 3), np.uint8)
            Image.fromarray(pixels).convert("L" if mode == "I;16" else mode).convert(mode).save(file, kind, **options)
            found.append(file.getvalue())
    return found


_IMAGES = _images()


def _image(random: Random) -> Input:
    return damaged(random, random.choice(_IMAGES), _IMAGES)


def _read_image(encoded: Input) -> object:
    return decode(encoded, "RGB", "Row 0").size


_SMALL = [
    format_join_token(format_secret(bytes(SECRET_BYTES)), bytes(32)).encode(),
    error_body(RequestError("No.", retry_after_s=3.0)),
    b'id: 1\ndata: {"a":1}\n\n:\n\nid: 2\ndata: {}\n\n',
    (CHECKOUT / "models/digits/bundle/full.onnx").read_bytes()[:4000],
]


def _certificates() -> list[bytes]:
    """A request for a certificate, and a certificate, DER; the same each time."""
    key, name = (
        ec.derive_private_key(7, ec.SECP256R1()),
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "press-7")]),
    )
    asked = x509.CertificateSigningRequestBuilder().subject_name(name)
    begins = datetime(2026, 1, 1, tzinfo=UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(5).not_valid_before(begins).not_valid_after(begins + timedelta(days=90))
    return [one.sign(key, SHA256(), ecdsa_deterministic=True).public_bytes(Encoding.DER) for one in (asked, made)]


_CERTIFICATES = _certificates()


def _certificate(random: Random) -> Input:
    which = random.randrange(2)
    kind = ("CERTIFICATE REQUEST", "CERTIFICATE")[which]
    content = base64.encodebytes(damaged(random, _CERTIFICATES[which], _CERTIFICATES)).decode()
    return which, f"-----BEGIN {kind}-----\n{content}-----END {kind}-----\n"


def _read_certificate(found: Input) -> object:
    which, pem = found
    if which == 0:
        return requested_key(pem)
    try:
        return public_key_hash(pem)
    # It says so itself, and its caller that nobody answers as a gateway; of odd serial numbers the library only warns.
    except (ValueError, CryptographyDeprecationWarning):
        return None


def _small(random: Random) -> Input:
    which = random.randrange(len(_SMALL))
    return which, damaged(random, _SMALL[which], _SMALL)


def _read_small(found: Input) -> object:
    which, content = found
    if which == 0:
        return parse_join_token(content.decode("utf-8", "replace"))
    if which == 1:
        return error_from(content[0] * 2 if content else 500, content, {"Retry-After": "9" * len(content)})
    if which == 2:
        return EventReader(1000).read(content)
    try:
        return has_external_data(content)
    except ValueError:  # it says so itself, and its caller that the file is no model
        return None


TARGETS: Sequence[Target] = (
    Target("binary decoder", _binary, _read_binary, (RequestError,), 0.4),
    Target("MQTT envelope", _message, _read_message, (FirstlineError,), 0.3),
    Target("manifest parser", _manifest, _read_manifest, (IntegrityError,), 0.3),
    Target("image decoder", _image, _read_image, (RequestError,), 0.05),
    Target("certificates, and requests for them", _certificate, _read_certificate, (RequestError,), 0.05),
    Target("tokens, errors, events, ONNX files", _small, _read_small, (ConfigError, ProtocolError), 0.05),
)
