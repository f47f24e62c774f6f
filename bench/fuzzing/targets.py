"""What is fuzzed: readers of bytes from outside, each fed from valid inputs (`corpora.py`), and what it may raise."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from cryptography.utils import CryptographyDeprecationWarning

from bench.fuzzing.audio_files import make_audio, read_audio
from bench.fuzzing.byte_tensors import make_bytes, read_bytes
from bench.fuzzing.corpora import BODIES, CERTIFICATES, IMAGES, MANIFESTS, MESSAGES, PUBLICATIONS, SMALL, TOPICS
from bench.fuzzing.gateway_answers import make_answer, read_answer
from bench.fuzzing.graphs import check_graph, graph_input
from bench.fuzzing.image_headers import make_image, read_image
from bench.fuzzing.mutation import NUMBERS, WORDS, altered, damaged
from firstline_core.bundle.manifest import encode_manifest, parse_manifest
from firstline_core.errors import (
    ConfigError,
    FirstlineError,
    InferenceError,
    IntegrityError,
    ProtocolError,
    RequestError,
)
from firstline_core.processing.images import decode
from firstline_core.processing.steps import Decode
from firstline_core.protocol import mqtt_messages
from firstline_core.protocol.enrolment import parse_join_token, public_key_hash
from firstline_core.protocol.grpc import codec
from firstline_core.protocol.grpc.schema import message
from firstline_core.protocol.http import error_from
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.mqtt_messages import Message, Publication, Topics, parse_request
from firstline_core.protocol.oip import Encoded, Origin, decode_request, decode_response, encode_request
from firstline_core.runtime.onnx import external_data
from firstline_gateway.identity.ca import requested_key

LIMITS = Limits(body_bytes=65_536, json_bytes=32_768, elements=65_536, byte_elements=4096)

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


_BYTES = [encoded.body for encoded in BODIES]


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
    return random.random() < 0.6, *_body(random, random.choice(BODIES))


def _read_binary(found: Input) -> object:
    is_request, body, length = found
    if not is_request:
        try:
            return decode_response(body, length, LIMITS)
        except ProtocolError:
            return None
    request = decode_request("digits", body, length, Origin(now_s=1.0, trust_request_id=True, limits=LIMITS))
    return encode_request(request, binary=True, now_s=1.0)  # what was admitted can be sent on


def _grpc(random: Random) -> Input:
    """Damaged bytes hardly get past their lengths, so that mostly values are changed."""
    sent = random.choice(MESSAGES)
    if random.random() < 0.3:
        return damaged(random, sent, MESSAGES)
    found = message("ModelInferRequest").FromString(sent)
    for _ in range(random.randint(1, 2)):
        tensor, place = random.choice(found.inputs), random.randrange(8)
        if place == 0:
            tensor.shape.insert(random.randint(0, 2), _int64(random))
        elif place == 1:
            tensor.shape[random.randrange(len(tensor.shape))] = _int64(random)
        elif place == 2:
            tensor.datatype = random.choice(WORDS)
        elif place == 3:
            tensor.name = random.choice(WORDS)
        elif place == 4 and found.raw_input_contents:
            at = random.randrange(len(found.raw_input_contents))
            found.raw_input_contents[at] = damaged(random, found.raw_input_contents[at], MESSAGES)
        elif place == 5:
            name = random.choice(("timeout", "priority", "route", "privacy", "request_id", "shared_memory_region"))
            parameter = random.choice((found.parameters, tensor.parameters))[name]
            parameter.string_param = random.choice(WORDS)
            if random.random() < 0.5:
                parameter.int64_param = _int64(random)
        elif place == 6:
            tensor.contents.int64_contents.append(_int64(random))
        else:
            found.outputs.add(name=random.choice(WORDS)).parameters["classification"].int64_param = _int64(random)
    changed: bytes = found.SerializeToString()
    return changed


def _int64(random: Random) -> int:
    number = random.choice(NUMBERS)
    return number if isinstance(number, int) and abs(number) < 2**63 else 7


def _read_grpc(sent: Input) -> object:
    head, raw = codec.split(sent, LIMITS)
    request = codec.decode_request(head, raw, Origin(now_s=1.0, trust_request_id=True, limits=LIMITS))
    return encode_request(request, binary=True, now_s=1.0)  # what was admitted can be sent on


def _message(random: Random) -> Input:
    publication: Publication = random.choice(PUBLICATIONS)
    properties = dict(publication.properties)
    header_length = properties.get(mqtt_messages.HEADER_LENGTH)
    body, length = publication.payload, None if header_length is None else int(header_length)
    if random.random() < 0.6:
        body, length = _body(random, Encoded(body, length))
    if random.random() < 0.8 and length is not None:
        properties[mqtt_messages.HEADER_LENGTH] = str(length)
    for _ in range(random.choice((0, 0, 1, 2))):
        name = random.choice(
            [*properties, mqtt_messages.DEADLINE_MS, mqtt_messages.STATUS, mqtt_messages.MODEL_VERSION, ""]
        )
        properties[name] = str(random.choice((*NUMBERS, *WORDS, "²", "9" * 5000)))
    if random.random() < 0.1 and properties:
        del properties[random.choice(list(properties))]
    topic = publication.topic
    if random.random() < 0.2:
        topic = damaged(random, topic.encode(), [b"/req/", b"+#$"]).decode("utf-8", "surrogateescape")
    expiry_s = random.choice((None, 0, 1, 2**32 - 1))
    return Message(topic, body, properties, TOPICS.response, random.randbytes(random.randint(0, 16)), expiry_s)


def _read_message(message: Input) -> object:
    if message.properties.get(mqtt_messages.STATUS) is not None:
        return mqtt_messages.read_response(message, LIMITS)
    device, model = parse_request(message.topic)
    principal = f"device:{device}"
    request = mqtt_messages.read_request(message, model, Origin(now_s=1.0, principal=principal, limits=LIMITS))
    return mqtt_messages.request_publication(
        request, topic=message.topic, response_topic=Topics(device).response, correlation_data=b"", now_s=1.0
    )


def _manifest(random: Random) -> Input:
    text = random.choice(MANIFESTS)
    return damaged(random, text, MANIFESTS) if random.random() < 0.4 else altered(random, text)


def _read_manifest(text: Input) -> object:
    manifest = parse_manifest(text)
    assert parse_manifest(encode_manifest(manifest)) == manifest
    return manifest.artefacts, manifest.full_digest, manifest.policy.score.digest


def _image(random: Random) -> Input:
    return damaged(random, random.choice(IMAGES), IMAGES)


def _read_image(encoded: Input) -> object:
    return decode(encoded, Decode(), "Row 0").size


def _certificate(random: Random) -> Input:
    which = random.randrange(2)
    kind = ("CERTIFICATE REQUEST", "CERTIFICATE")[which]
    content = base64.encodebytes(damaged(random, CERTIFICATES[which], CERTIFICATES)).decode()
    return which, f"-----BEGIN {kind}-----\n{content}-----END {kind}-----\n"


def _read_certificate(found: Input) -> object:
    which, pem = found
    if which == 0:
        return requested_key(pem)
    try:
        return public_key_hash(pem)
    # The caller reports that no gateway answers; the library only warns of odd serial numbers.
    except (ValueError, CryptographyDeprecationWarning):
        return None


def _small(random: Random) -> Input:
    which = random.randrange(len(SMALL))
    return which, damaged(random, SMALL[which], SMALL)


def _read_small(found: Input) -> object:
    which, content = found
    if which == 0:
        return parse_join_token(content.decode("utf-8", "replace"))
    if which == 1:
        return error_from(content[0] * 2 if content else 500, content, {"retry-after": "9" * len(content)})
    try:
        return external_data(content)
    except ValueError:  # the caller reports that the file is not a model
        return None


TARGETS: Sequence[Target] = (
    Target("binary decoder", _binary, _read_binary, (RequestError,), 0.4),
    Target("MQTT envelope", _message, _read_message, (FirstlineError,), 0.3),
    Target("gRPC messages", _grpc, _read_grpc, (RequestError,), 0.1),
    Target("swapped and altered gateway answers", make_answer, read_answer, (ProtocolError,), 0.2),
    Target("manifest parser", _manifest, _read_manifest, (IntegrityError,), 0.3),
    Target("BYTES tensors", make_bytes, read_bytes, (RequestError,), 0.05),
    Target("image headers", make_image, read_image, (RequestError,), 0.05),
    Target("image decoder", _image, _read_image, (RequestError,), 0.05),
    Target("audio files", make_audio, read_audio, (RequestError,), 0.2),
    Target("certificates, and requests for them", _certificate, _read_certificate, (RequestError,), 0.05),
    Target("graphs whose rows depend on each other", graph_input, check_graph, (InferenceError,), 0.005),
    Target("tokens, errors, ONNX files", _small, _read_small, (ConfigError, ProtocolError), 0.05),
)
