from __future__ import annotations

from pathlib import Path

from firstline_core.protocol.mqtt_messages import MqttSettings


def test_a_password_is_read_anew_for_each_connection_and_kept_where_its_file_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "password"
    settings = MqttSettings("broker", password="old", password_file=file)
    assert settings.renewed().password == "old"
    file.write_text("new\n")
    assert settings.renewed().password == "new"
    assert MqttSettings("broker", password="old").renewed().password == "old"
