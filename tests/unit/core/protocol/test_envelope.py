import json

import numpy as np
import pytest
from msgspec.structs import replace
from support.escalations import request, response

from firstline_core import errors
from firstline_core.protocol import envelope
from firstline_core.protocol.mqtt_messages import Message, Publication
from firstline_core.telemetry.trace import received


def delivered(publication: Publication, **changes: object) -> Message:
    """What a broker makes of a publication."""
    fields = {name: getattr(publication, name) for name in Publication.__dataclass_fields__}
    return Message(**(fields | changes))


def published(asked: object = None, now_s: float = 100.0) -> Publication:
    return envelope.request_publication(
        asked or request(2, deadline_s=100.25, full_model_digest="ab" * 32),  # type: ignore[arg-type]
        topic="firstline/v1/cam/req/digits",
        response_topic="firstline/v1/cam/res",
        correlation_data=b"17",
        now_s=now_s,
    )


def test_a_request_is_read_back() -> None:
    asked = request(2, deadline_s=100.25, priority=1, full_model_digest="ab" * 32)
    publication = published(asked)
    assert publication.response_topic == "firstline/v1/cam/res"
    assert publication.correlation_data == b"17"
    assert publication.properties["deadline-ms"] == "250"
    assert publication.expiry_s == 1  # whole seconds, rounded up
    assert not publication.retain
    read = envelope.read_request(delivered(publication), "digits", now_s=7.0, principal="cam")
    assert (read.request_id, read.model, read.version) == (asked.request_id, "digits", "1")
    assert read.principal == "cam"
    assert read.full_model_digest == "ab" * 32
    assert read.deadline_s == pytest.approx(7.25)
    assert read.priority == 1
    assert read.inputs[0].array.tolist() == [b"image 0", b"image 1"]


def test_a_request_s_trace_travels_beside_it_and_back_with_its_answer() -> None:
    context = received("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=1")
    assert context is not None
    publication = published(request(trace=context))
    assert {"traceparent": context.traceparent, "tracestate": "a=1"}.items() <= publication.properties.items()
    assert context.trace_id.encode() not in publication.payload
    came = delivered(publication)
    read = envelope.read_request(came, "digits", now_s=7.0, principal="cam", trace=envelope.trace_of(came))
    assert read.trace is not None
    assert (read.trace.trace_id, read.trace.parent_id) == (context.trace_id, context.span_id)
    answer = envelope.response_publication(read, response(read), topic="t")
    assert answer.properties["traceparent"] == read.trace.traceparent
    refused = envelope.error_publication(errors.RequestError("No."), topic="t", correlation_data=b"", trace=read.trace)
    assert refused.properties["traceparent"] == read.trace.traceparent
    for value in ("00-x", ""):
        broken = delivered(publication, properties=publication.properties | {"traceparent": value})
        assert envelope.trace_of(broken) is None


def test_time_spent_with_the_broker_counts() -> None:
    publication = published(request(deadline_s=110.0))
    assert publication.expiry_s == 10
    read = envelope.read_request(delivered(publication, expiry_s=3), "digits", now_s=7.0, principal="cam")
    assert read.deadline_s == 10.0


@pytest.mark.parametrize("deadline_s", [1e10, 1e300, float("inf")])
def test_a_deadline_beyond_all_reason_still_fits_its_four_bytes(deadline_s: float) -> None:
    publication = published(request(deadline_s=deadline_s))
    assert publication.expiry_s == 2**32 - 1
    read = envelope.read_request(delivered(publication), "digits", now_s=7.0, principal="cam")
    assert read.deadline_s is not None


def test_no_deadline_is_none() -> None:
    publication = published(request())
    assert publication.expiry_s is None
    assert "deadline-ms" not in publication.properties
    assert envelope.read_request(delivered(publication), "digits", now_s=7.0, principal="cam").deadline_s is None


def test_a_deadline_that_has_passed_still_travels_as_one() -> None:
    publication = published(request(deadline_s=99.0))
    assert (publication.properties["deadline-ms"], publication.expiry_s) == ("0", 1)
    assert envelope.read_request(delivered(publication), "digits", now_s=7.0, principal="cam").deadline_s == 7.0


@pytest.mark.parametrize("name", ["deadline-ms", "inference-header-content-length"])
@pytest.mark.parametrize("text", ["", "-1", "1.5", "NaN", "9" * 16, "²"])
def test_a_property_that_is_no_number_is_named(name: str, text: str) -> None:
    publication = published()
    broken = delivered(publication, properties=publication.properties | {name: text})
    with pytest.raises(errors.InvalidTensorError, match=name):
        envelope.read_request(broken, "digits", now_s=0.0, principal="cam")


def test_an_answer_is_read_back() -> None:
    asked = request(3, binary_output=True)
    answer = response(asked, value=0.25)
    publication = envelope.response_publication(asked, answer, topic="t", correlation_data=b"17")
    assert publication.properties["status"] == "ok"
    read = envelope.read_response(delivered(publication))
    assert read.answer == answer.answer
    assert np.array_equal(read.output("probabilities"), answer.output("probabilities"))


@pytest.mark.parametrize("kind", sorted(errors.BY_CODE.values(), key=lambda kind: kind.code))
def test_an_error_is_raised_as_it_was(kind: type[errors.FirstlineError]) -> None:
    error = kind("It is so. Do that.", retry_after_s=2.5)
    publication = envelope.error_publication(error, topic="t", correlation_data=b"17")
    assert publication.properties["status"] == kind.code
    assert json.loads(publication.payload)["error"] == "It is so. Do that."
    with pytest.raises(kind, match="It is so") as raised:
        envelope.read_response(delivered(publication))
    assert type(raised.value) is kind
    assert raised.value.retry_after_s == 2.5


@pytest.mark.parametrize(
    "message",
    [
        Message("t", b"{}"),
        Message("t", b"", {"status": "ok"}),
        Message("t", b"\xff", {"status": "queue_full"}),
        Message("t", b'{"error": "x", "code": "queue_full"}', {"status": "not_ready"}),
        Message("t", b"{}", {"status": "ok", "inference-header-content-length": "x"}),
    ],
)
def test_what_is_no_answer_is_the_links_fault(message: Message) -> None:
    with pytest.raises(errors.ProtocolError):
        envelope.read_response(message)


def test_a_request_id_that_is_none_is_refused() -> None:
    publication = published(replace(request(), request_id="../../etc"))
    with pytest.raises(errors.RequestError, match="request_id"):
        envelope.read_request(delivered(publication), "digits", now_s=0.0, principal="cam")
