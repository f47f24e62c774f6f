"""Valid inputs of every reader that is fuzzed, the same each time: what the damaged ones are made from."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from msgspec.structs import replace
from PIL import Image

from firstline_core.errors import RequestError
from firstline_core.protocol import mqtt_messages
from firstline_core.protocol.enrolment import (
    SECRET_BYTES,
    format_join_token,
    format_secret,
)
from firstline_core.protocol.grpc.codec import CONTENTS, write_parameters
from firstline_core.protocol.grpc.schema import message
from firstline_core.protocol.http import error_body
from firstline_core.protocol.mqtt_messages import Topics
from firstline_core.protocol.oip import Encoded, encode_request, encode_response
from firstline_core.protocol.tensors import to_binary
from firstline_core.telemetry.trace import received
from firstline_core.types import (
    DATATYPES,
    Answer,
    Attempt,
    AuditNote,
    ContractAlarm,
    ContractNotice,
    InferRequest,
    InferResponse,
    Privacy,
    Reason,
    RequestedOutput,
    Route,
    RowAnswer,
    Status,
    Tensor,
    Tier,
    Wait,
)

CHECKOUT = Path(__file__).parents[2]
ID = "01890a5d-ac96-774b-bcce-b302099a8057"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TOPICS = Topics("press-7")


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


def _encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    with io.BytesIO() as file:
        image.save(file, kind, **options)
        return file.getvalue()


_PNG = _encoded(Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)), "PNG")


NOTE = AuditNote(propensity=0.1, epsilon=0.02, threshold=0.9, edge_digest="a" * 64)
REQUESTS = (
    InferRequest("digits", (Tensor("image", np.array([_PNG], np.object_)),), ID),
    InferRequest(
        *("digits", (Tensor("x", np.zeros((1, 4), np.float32)),), ID),
        binary_output=True,
        audit=NOTE,
        edge_outputs={"probabilities": np.full((1, 10), 0.1, np.float32)},
    ),
    InferRequest(
        *("digits", _tensors(), ID, "7", "mine"),
        outputs=(RequestedOutput("probabilities", True), RequestedOutput("other", None)),
        route=Route.CLOUD,
        privacy=Privacy.LOCAL_ONLY,
        wait=Wait.FIRST,
        deadline_s=2.5,
        full_model_digest="b" * 64,
        alarm=ContractAlarm("c" * 64, "missed person"),
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
    rows=(RowAnswer(Tier.CACHE, Reason.CONFIDENT, Status.FINAL, True, 0.75, "d" * 64),) * 2,
    contract=ContractNotice(True, 12.5),
)
RESPONSES = (
    InferResponse("digits", "3", (Tensor("probabilities", np.full((1, 10), 0.1, np.float32)),), answer=ANSWER),
    InferResponse("digits", "3", _tensors(), id="mine", answer=ANSWER),
    InferResponse("other", "", (Tensor("y", np.zeros((2, 2), np.int64)),)),
)


def _bodies() -> list[Encoded]:
    requests = [encode_request(REQUESTS[0], binary=True), encode_request(REQUESTS[2], binary=True)]
    requests += [encode_request(REQUESTS[1], binary=binary) for binary in (True, False)]
    binary_and_json = [InferRequest("digits", (), ID, binary_output=binary) for binary in (True, False)]
    return requests + [encode_response(binary_and_json[0], response) for response in RESPONSES] + [
        encode_response(binary_and_json[1], response) for response in (RESPONSES[0], RESPONSES[2])
    ]  # fmt: skip


BODIES = _bodies()


def _message(request: InferRequest, *, raw: bool) -> bytes:
    """A ModelInferRequest with some of each parameter's kind."""
    made = message("ModelInferRequest")(model_name=request.model, model_version=request.version, id=request.id)
    write_parameters(made.parameters, {"request_id": ID, "priority": 1, "promised": True, "unknown": 0.5})
    for tensor in request.inputs:
        tensor_message = made.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if raw:
            made.raw_input_contents.append(bytes(to_binary("Input", tensor)))
        elif (field := CONTENTS.get(tensor.datatype)) is not None:
            getattr(tensor_message.contents, field).extend(tensor.array.reshape(-1).tolist())
    for output in request.outputs:
        made.outputs.add(name=output.name).parameters["classification"].int64_param = 3
    sent: bytes = made.SerializeToString()
    return sent


MESSAGES = [_message(request, raw=raw) for request in REQUESTS for raw in (True, False)]


PUBLICATIONS = [
    mqtt_messages.request_publication(
        request,
        topic=TOPICS.request("digits"),
        response_topic=TOPICS.response,
        correlation_data=b"1234",
        now_s=0.0,
    )
    for request in (*REQUESTS, replace(REQUESTS[0], trace=received(TRACEPARENT, "a=1,b=2")))
] + [
    *(mqtt_messages.response_publication(REQUESTS[1], response, topic=TOPICS.response) for response in RESPONSES),
    mqtt_messages.error_publication(RequestError("No."), topic=TOPICS.response, correlation_data=b"1"),
]


_MANIFEST = json.loads((CHECKOUT / "models/digits/bundle/manifest.json").read_bytes())
MANIFESTS = [json.dumps(_MANIFEST, separators=(",", ":")).encode()]  # damage should hit the content, and no line break


def _images() -> list[bytes]:
    found = [_PNG]
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
        image = Image.fromarray(rng.integers(0, 256, (9, 9, 3), np.uint8))
        found.append(_encoded(image.convert("L" if mode == "I;16" else mode).convert(mode), kind, **options))
    return found


IMAGES = _images()


SMALL = [
    format_join_token(format_secret(bytes(SECRET_BYTES)), bytes(32)).encode(),
    error_body(RequestError("No.", retry_after_s=3.0)),
    (CHECKOUT / "models/digits/bundle/full.onnx").read_bytes()[:4000],
]


def _certificates() -> list[bytes]:
    """A request for a certificate, and a certificate, DER; the same each time."""
    key, name = (
        ec.derive_private_key(7, ec.SECP256R1()),
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "press-7")]),
    )
    request = x509.CertificateSigningRequestBuilder().subject_name(name)
    begins = datetime(2026, 1, 1, tzinfo=UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(5).not_valid_before(begins).not_valid_after(begins + timedelta(days=90))
    return [one.sign(key, SHA256(), ecdsa_deterministic=True).public_bytes(Encoding.DER) for one in (request, made)]


CERTIFICATES = _certificates()
