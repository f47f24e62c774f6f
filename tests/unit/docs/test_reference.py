"""The example settings and the reference of settings and commands are those that the code has."""

from pathlib import Path

import msgspec
import pytest
from support.reference import FILES

from firstline_edge.settings import settings as edge
from firstline_gateway.settings import settings as gateway


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_generated_file_is_up_to_date(file: Path) -> None:
    assert file.read_text() == FILES[file](), "run: make reference"


@pytest.mark.parametrize(
    ("basic", "example"),
    [(edge.BASIC, edge.EdgeSettings(links=(edge.LinkSection(kind="http"),))), (gateway.BASIC, gateway.Settings())],
    ids=["edge", "gateway"],
)
def test_basic_keys_are_few_and_exist(basic: frozenset[str], example: msgspec.Struct) -> None:
    assert len(basic) <= 15
    for section, _, key in (name.partition(".") for name in basic):
        value = getattr(example, section)
        assert hasattr(value[0] if isinstance(value, tuple) else value, key), f"{section}.{key}"
