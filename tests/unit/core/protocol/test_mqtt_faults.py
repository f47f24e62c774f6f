import pytest

from firstline_core import errors
from firstline_core.protocol.mqtt_faults import refusal


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
