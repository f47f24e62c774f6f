"""The representations of values contain no secrets."""

from pathlib import Path

from firstline import Client
from firstline_core.protocol.mqtt_messages import MqttSettings
from firstline_edge.api.access import TokenAccess, parse_tokens
from firstline_edge.cloud.http_link import HttpLink
from firstline_edge.settings.settings import LinkSection

API_TOKEN = "press-hall-4-of-tuesday"


def test_secrets_are_in_no_repr(tmp_path: Path) -> None:
    callers, token = tmp_path / "callers.token", tmp_path / "link.token"
    callers.write_text(f"app:{API_TOKEN}\n")
    token.write_text(API_TOKEN)
    link = LinkSection(kind="http", url="https://gateway.example.com", token_file=str(token))
    objects = [
        *(link, HttpLink(link), MqttSettings("broker", username="me", password=API_TOKEN)),
        *(TokenAccess(parse_tokens(str(callers), "api.token_file")), Client("http://127.0.0.1:1", token=API_TOKEN)),
    ]
    for value in objects:
        assert API_TOKEN not in repr(value) + str(value)
