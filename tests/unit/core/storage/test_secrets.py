from pathlib import Path

import pytest

from firstline_core.errors import ConfigError
from firstline_core.storage.secrets import read_secret, read_token


@pytest.mark.parametrize("content", ["hush", "hush\n", "  hush\r\n", "\nhush\n\n", "\ufeffhush\n"])
def test_the_secret_is_the_one_line(tmp_path: Path, content: str) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content.encode())
    assert read_secret(str(file), "mqtt.password_file") == "hush"


def test_there_is_no_secret_without_a_file() -> None:
    assert read_secret("", "mqtt.password_file") == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\xff\xfe", "is not UTF-8 text; write the secret alone into it"),
        (b"hush\ntwo\n", "has more than one line; write"),
        (b"hush\0b", "has control characters; write"),
        (b"hush" * 2000, "has more than 4096 bytes"),
    ],
)
def test_an_invalid_secret_is_refused_and_not_shown(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_secret(str(file), "mqtt.password_file")
    assert caught.value.message.startswith(f"mqtt.password_file: {file} ")
    assert "hush" not in caught.value.message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", "absent does not exist; create it with the token, or correct the path"),
        (".", "is a folder"),
        ("a\0b", "cannot be read"),
    ],
)
def test_an_unreadable_secret_file_is_named(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "absent-minded").write_text("another secret, which is not suggested")
    with pytest.raises(ConfigError, match=message):
        read_secret(f"{tmp_path}/{name}", "links.token_file", "the token")


def test_a_token_has_only_letters_that_a_header_carries(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("hush\n")
    assert (read_token(str(file), "links.token_file"), read_token("", "links.token_file")) == ("hush", "")
    file.write_text("hüsh\n")
    with pytest.raises(ConfigError, match=r"^links\.token_file: .*token has letters beyond ASCII") as caught:
        read_token(str(file), "links.token_file")
    assert "hüsh" not in caught.value.message
