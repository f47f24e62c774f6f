import json
import ssl
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.escalations import request, response

from firstline_core import errors
from firstline_core.errors import ConfigError, ProtocolError, RequestError
from firstline_core.protocol import mqtt_messages
from firstline_core.protocol.mqtt_messages import (
    Message,
    MqttSettings,
    Publication,
    Topics,
    handshake_problem,
    parse_request,
    refusal,
    shared_requests,
    tls_context,
)
from firstline_core.protocol.oip import Origin
from firstline_core.telemetry.trace import received
from firstline_core.types import InferRequest


def test_the_password_file_is_read_for_each_connection(tmp_path: Path) -> None:
    file = tmp_path / "password"
    settings = MqttSettings("broker", password="old", password_file=file)
    assert settings.renewed().password == "old"
    file.write_text("new\n")
    assert settings.renewed().password == "new"
    assert MqttSettings("broker", password="old").renewed().password == "old"


def test_there_is_no_tls_without_authorities() -> None:
    assert tls_context(MqttSettings("broker")) is None
    assert tls_context(MqttSettings("broker", tls_ca_file=Path("system"))) is not None


def test_a_certificate_is_never_silently_left_out() -> None:
    for named in ({"tls_certificate_file": Path("a.pem")}, {"tls_key_file": Path("a.key")}):
        with pytest.raises(ConfigError, match="tls_ca_file"):
            tls_context(MqttSettings("broker", **named))


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    for file, why in ((tmp_path / "absent.pem", "does not exist"), (Path(__file__), "it holds no certificate")):
        with pytest.raises(ConfigError, match=rf"mqtt\.tls_ca_file: {file} .*{why}; name a file"):
            tls_context(MqttSettings("broker", tls_ca_file=file))


def test_tls_alerts_about_the_certificate_are_explained() -> None:
    alert = ssl.SSLError(1, "[SSL: SSLV3_ALERT_CERTIFICATE_REVOKED] sslv3 alert certificate revoked (_ssl.c:2580)")
    assert handshake_problem("b:8883", alert) == (
        "The MQTT broker at b:8883 refuses this client's certificate: it was revoked; enrol with a new join token."
    )
    other = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)")
    assert "do not agree on TLS: " in handshake_problem("b:8883", other)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (0x80, errors.ProtocolError),
        (0x86, errors.UnauthorizedError),
        (0x87, errors.UnauthorizedError),
        (0x89, errors.CapacityError),
        (0x95, errors.PayloadTooLargeError),
        (0x97, errors.CapacityError),
        (0xFF, errors.ProtocolError),
    ],
)
def test_reason_codes_have_their_place_in_the_tree(code: int, kind: type[errors.FirstlineError]) -> None:
    error = refusal(code, "Some Reason", "the connection")
    assert type(error) is kind
    assert error.message == "The MQTT broker refused the connection: Some Reason."


BAD_NAMES = ["", "a+b", "#", "a/b", "$share", "nul\0", "tab\t", "x" * 129, "\ud800"]


def test_a_device_has_its_own_topics() -> None:
    topics = Topics("cam-1", prefix="plant/a")
    assert topics.birth == "plant/a/cam-1/birth"
    assert topics.state == "plant/a/cam-1/state"
    assert topics.response == "plant/a/cam-1/res"
    assert topics.results == "plant/a/cam-1/results"
    assert topics.desired == "plant/a/cam-1/desired"
    assert topics.reported == "plant/a/cam-1/reported"
    assert topics.telemetry == "plant/a/cam-1/telemetry"
    assert topics.request("digits") == "plant/a/cam-1/req/digits"


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_topics_cannot_contain_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="device name"):
        Topics(name)
    with pytest.raises(RequestError, match="model name"):
        Topics("cam-1").request(name)
    with pytest.raises(ConfigError, match="group"):
        shared_requests(name)


@pytest.mark.parametrize("prefix", ["", "/a", "a/", "a//b", "a/+", "$SYS/a"])
def test_a_prefix_is_made_of_plain_levels(prefix: str) -> None:
    with pytest.raises(ConfigError, match="prefix"):
        Topics("cam-1", prefix)


def test_replicas_share_every_request() -> None:
    assert shared_requests("gateway", "plant/a") == "$share/gateway/plant/a/+/req/+"


@pytest.mark.parametrize(
    "topic",
    [
        "firstline/v1/cam/req",
        "firstline/v1/cam/req/",
        "firstline/v1//req/m",
        "firstline/v1/cam/res/m",
        "firstline/v1/cam/req/m/n",
        "other/cam/req/m",
        "firstline/v1",
        "",
    ],
)
def test_other_topics_are_no_requests(topic: str) -> None:
    with pytest.raises(ProtocolError, match="firstline/v1/DEVICE/req/MODEL"):
        parse_request(topic)


name = st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="+#/$"), min_size=1, max_size=40)


@given(device=name, model=name, prefix=st.lists(name, min_size=1, max_size=3).map("/".join))
def test_a_request_topic_is_read_back(device: str, model: str, prefix: str) -> None:
    assert parse_request(Topics(device, prefix).request(model), prefix) == (device, model)


def delivered(publication: Publication, **changes: object) -> Message:
    """What a broker makes of a publication."""
    fields = {name: getattr(publication, name) for name in Publication.__dataclass_fields__}
    return Message(**(fields | changes))


def published(infer_request: object = None, now_s: float = 100.0) -> Publication:
    return mqtt_messages.request_publication(
        infer_request or request(2, deadline_s=100.25, full_model_digest="ab" * 32),
        topic="firstline/v1/cam/req/digits",
        response_topic="firstline/v1/cam/res",
        correlation_data=b"17",
        now_s=now_s,
    )


def read_back(message: Message) -> InferRequest:
    return mqtt_messages.read_request(message, "digits", Origin(now_s=7.0, principal="cam"))


def test_a_request_is_read_back() -> None:
    infer_request = request(2, deadline_s=100.25, priority=1, full_model_digest="ab" * 32)
    publication = published(infer_request)
    assert publication.response_topic == "firstline/v1/cam/res"
    assert publication.correlation_data == b"17"
    assert publication.properties["deadline-ms"] == "250"
    assert publication.expiry_s == 1  # whole seconds, rounded up
    assert not publication.retain
    read = read_back(delivered(publication))
    assert (read.request_id, read.model, read.version) == (infer_request.request_id, "digits", "1")
    assert read.principal == "cam"
    assert read.full_model_digest == "ab" * 32
    assert read.deadline_s == pytest.approx(7.25)
    assert read.priority == 1
    assert read.inputs[0].array.tolist() == [b"image 0", b"image 1"]


def test_request_and_answer_carry_the_trace_in_user_properties() -> None:
    context = received("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=1")
    publication = published(request(trace=context))
    assert {"traceparent": context.traceparent, "tracestate": "a=1"}.items() <= publication.properties.items()
    assert context.trace_id.encode() not in publication.payload
    delivery = delivered(publication)
    read = mqtt_messages.read_request(
        delivery, "digits", Origin(now_s=7.0, principal="cam", trace=mqtt_messages.trace_of(delivery))
    )
    assert (read.trace.trace_id, read.trace.parent_id) == (context.trace_id, context.span_id)
    answer = mqtt_messages.response_publication(read, response(read), topic="t")
    assert answer.properties["traceparent"] == read.trace.traceparent
    refused = mqtt_messages.error_publication(
        errors.RequestError("No."), topic="t", correlation_data=b"", trace=read.trace
    )
    assert refused.properties["traceparent"] == read.trace.traceparent
    for value in ("00-x", ""):
        broken = delivered(publication, properties=publication.properties | {"traceparent": value})
        assert mqtt_messages.trace_of(broken) is None


def test_time_spent_with_the_broker_counts() -> None:
    publication = published(request(deadline_s=110.0))
    assert publication.expiry_s == 10
    assert read_back(delivered(publication, expiry_s=3)).deadline_s == 10.0


@pytest.mark.parametrize("deadline_s", [1e10, 1e300, float("inf")])
def test_a_huge_deadline_fits_the_expiry_field(deadline_s: float) -> None:
    publication = published(request(deadline_s=deadline_s), now_s=3216.115137643968)  # at which 32 bits are rounded up
    assert publication.expiry_s == 2**32 - 1
    assert read_back(delivered(publication)).deadline_s is not None


def test_a_request_without_a_deadline_has_no_expiry() -> None:
    publication = published(request())
    assert publication.expiry_s is None
    assert "deadline-ms" not in publication.properties
    assert read_back(delivered(publication)).deadline_s is None


def test_a_deadline_that_has_passed_still_travels_as_one() -> None:
    publication = published(request(deadline_s=99.0))
    assert (publication.properties["deadline-ms"], publication.expiry_s) == ("0", 1)
    assert read_back(delivered(publication)).deadline_s == 7.0


@pytest.mark.parametrize("name", ["deadline-ms", "inference-header-content-length"])
@pytest.mark.parametrize("text", ["", "-1", "1.5", "NaN", "9" * 16, "²"])
def test_an_invalid_number_in_a_property_is_refused(name: str, text: str) -> None:
    publication = published()
    broken = delivered(publication, properties=publication.properties | {name: text})
    with pytest.raises(errors.InvalidTensorError, match=name):
        read_back(broken)


def test_an_answer_is_read_back() -> None:
    infer_request = request(3, binary_output=True)
    answer = response(infer_request, value=0.25)
    publication = mqtt_messages.response_publication(infer_request, answer, topic="t", correlation_data=b"17")
    assert publication.properties["status"] == "ok"
    read = mqtt_messages.read_response(delivered(publication))
    assert read.answer == answer.answer
    assert np.array_equal(read.output("probabilities"), answer.output("probabilities"))


def test_an_error_is_raised_as_it_was() -> None:
    for kind in errors.BY_CODE.values():
        error = kind("It is so. Do that.", retry_after_s=2.5)
        publication = mqtt_messages.error_publication(error, topic="t", correlation_data=b"17")
        assert publication.properties["status"] == kind.code
        assert json.loads(publication.payload)["error"] == "It is so. Do that."
        with pytest.raises(kind, match="It is so") as raised:
            mqtt_messages.read_response(delivered(publication))
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
def test_another_message_is_a_protocol_error(message: Message) -> None:
    with pytest.raises(errors.ProtocolError):
        mqtt_messages.read_response(message)


def test_an_invalid_request_id_is_refused() -> None:
    publication = published(replace(request(), request_id="../../etc"))
    with pytest.raises(errors.RequestError, match="request_id"):
        read_back(delivered(publication))
