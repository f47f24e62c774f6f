"""A configuration over the device's own settings."""

import math
from pathlib import Path

import pytest
from support.agent import edge_settings

from firstline_core.errors import ConfigError
from firstline_core.fleet.configuration import KEYS, Configuration, parse_configuration
from firstline_edge.fleet.configuration.installed_configuration import changed_settings
from firstline_edge.settings.load import load
from firstline_edge.settings.settings import EdgeSettings


def parsed(text: str) -> Configuration:
    return parse_configuration(f'name = "quiet"\nversion = 1\n{text}'.encode(), "quiet.toml")


def test_every_key_of_a_configuration_is_a_setting() -> None:
    own = EdgeSettings()
    for key in KEYS:
        section, _, name = key.partition(".")
        assert hasattr(getattr(own, section), name), key


def test_only_the_set_keys_change(tmp_path: Path) -> None:
    own = edge_settings(tmp_path, budget__bytes_per_day=1000, audit__per_hour=7)
    found = changed_settings(
        own, parsed("[budget]\nbytes_per_day = 500\nbytes_per_hour = 50\n[policy]\nmin_threshold = inf\n")
    )
    assert (found.budget.bytes_per_day, found.budget.bytes_per_hour) == (500, 50)
    assert found.policy.min_threshold == math.inf and found.audit.per_hour == 7
    assert (found.links, found.api, found.agent) == (own.links, own.api, own.agent)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[budget]\nbytes_per_day = 1001\n", "allows 1000, and the fleet may only set less"),
        ("[budget]\nbytes_per_day = 20_000_000\n", "sets budget.bytes_per_day to 20000000; this"),
        ("[budget]\nbytes_per_day = 0\n", "which is no limit"),
        ("[policy]\nmin_threshold = 0.4\n", "demands 0.5, and the fleet may only set more"),
        ("[audit]\nper_hour = 1\n", "keeps to itself"),
        ("[costs]\nworth = 2\n", "keeps to itself"),
        ("[policy]\nkind = 'value'\nleast_value = 0\n", "price"),
    ],
)
def test_the_devices_own_file_limits_a_configuration(tmp_path: Path, text: str, why: str) -> None:
    own = edge_settings(
        tmp_path,
        budget__bytes_per_day=0 if "value" in text else 1000,
        policy__min_threshold=0.5,
        fleet__locked=["audit.per_hour", "costs"],
    )
    with pytest.raises(ConfigError, match=why):
        changed_settings(own, parsed(text))


def test_an_unknown_locked_key_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"fleet\.locked names 'links'"):
        load(None, environ={}, overrides={"fleet.locked": ["links"]})
