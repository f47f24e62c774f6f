import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline_core.errors import ConfigError, ProtocolError, RequestError
from firstline_core.protocol.topics import Topics, parse_request, shared_requests

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
def test_names_that_a_topic_cannot_carry_are_refused_where_they_enter(name: str) -> None:
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
