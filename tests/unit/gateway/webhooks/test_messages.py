"""Messages of webhooks: signing keys, and the example of the specification."""

import base64
from pathlib import Path

import pytest
from support.webhook_receiver import KEY, secret_file

from firstline_core.errors import ConfigError
from firstline_gateway.webhooks import messages
from firstline_gateway.webhooks.messages import Message

SHORT = base64.b64encode(b"short").decode()


def test_a_signing_key_is_read(tmp_path: Path) -> None:
    assert messages.read_key(secret_file(tmp_path), "webhooks.ops.secret_file") == KEY


@pytest.mark.parametrize("content", ["", "secret", "whsec_", "whsec_!!", f"whsec_{SHORT}", "a\nb"])
def test_a_file_without_a_signing_key_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"webhooks\.ops\.secret_file: ") as refused:
        messages.read_key(str(path), "webhooks.ops.secret_file")
    assert SHORT not in str(refused.value)


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        ("contract.alarm", "alarms"),
        ("contract.device_alarm", "alarms"),
        ("answer.final", "answers"),
        ("answer.expired", "answers"),
        ("rollout.pause", "rollouts"),
        ("device.enrol", "enrolments"),
        ("device.revoke", "enrolments"),
        ("device.tag", None),
        ("profile.put", None),
        ("alias.set", None),
    ],
)
def test_each_message_is_at_most_one_kind_of_event(action: str, kind: str | None) -> None:
    message = Message(1, "msg_1", action, b"{}")
    kinds = [each for each in ("alarms", "rollouts", "enrolments", "answers") if message.is_wanted((each,))]
    assert kinds == ([] if kind is None else [kind])


def test_the_signature_covers_id_time_and_body() -> None:
    # The key, id, time and body of the example in the specification's libraries, with its signature.
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    message = Message(1, "msg_p5jXN8AQM9LWM0D4loKWxJek", "rollout.create", b'{"test": 2432232314}')
    found = messages.headers(message, key, 1614265330.9)
    assert found["webhook-id"] == "msg_p5jXN8AQM9LWM0D4loKWxJek"
    assert found["webhook-timestamp"] == "1614265330"
    assert found["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
