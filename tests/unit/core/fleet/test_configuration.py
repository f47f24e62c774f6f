"""Fleet-managed settings: which keys a document can set."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline_core.errors import ConfigError
from firstline_core.fleet.configuration import (
    KEYS,
    LIMIT_BYTES,
    SECTIONS,
    configuration_at,
    configuration_path,
    parse_configuration,
)
from firstline_core.fleet.target import bundle_of_target
from firstline_core.types import NAME_PATTERN

HEAD = 'name = "quiet"\nversion = 2\n'


def parsed(text: str) -> dict[str, dict[str, object]]:
    return parse_configuration((HEAD + text).encode(), "quiet.toml").changes


def test_changes_list_exactly_the_set_keys() -> None:
    found = parsed("[policy]\nmin_threshold = inf\n[budget]\nbytes_per_day = 20_000\n[audit]\non_alarm = 'escalate'\n")
    assert found == {
        "policy": {"min_threshold": math.inf},
        "budget": {"bytes_per_day": 20_000},
        "audit": {"on_alarm": "escalate"},
    }


def test_an_empty_configuration_changes_nothing() -> None:
    assert parsed("") == parsed("[budget]\n") == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[links]\nurl = 'https://evil'\n", "unknown key 'links'"),
        ("[policy]\nlimit_bytes = 1\n", "unknown key 'policy.limit_bytes'"),
        ("[budget]\nbytes_per_day = -1\n", "bytes_per_day"),
        ("[audit]\nmax_share = 1.5\n", "max_share"),
        ("[policy]\nkind = 'mine'\n", "kind"),
        ("[policy]\nmin_threshold = nan\n", "no number"),
        ("#" * LIMIT_BYTES, "more than"),
    ],
)
def test_keys_that_cannot_be_set_remotely_are_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parsed(text)


@pytest.mark.parametrize("head", ["version = 1\n", 'name = "../x"\nversion = 1\n', 'name = "x"\nversion = 0\n'])
def test_a_configuration_has_a_name_and_a_version(head: str) -> None:
    with pytest.raises(ConfigError):
        parse_configuration(f"{head}[budget]\nbytes_per_day = 1\n".encode(), "it")


def test_addresses_identities_and_paths_cannot_be_set() -> None:
    assert {key.partition(".")[0] for key in KEYS} == set(SECTIONS)
    assert not [key for key in KEYS for word in ("url", "host", "file", "dir", "token", "limit") if word in key]


@given(st.from_regex(NAME_PATTERN, fullmatch=True), st.integers(1, 10**15 - 1))
def test_a_target_path_names_a_configuration_and_no_bundle(name: str, version: int) -> None:
    path = configuration_path(name, version)
    assert configuration_at(path) == (name, version)
    assert bundle_of_target(path) is None


@pytest.mark.parametrize("path", ["digits/1/manifest.json", "configurations/a@0.toml", "configurations/../a@1.toml"])
def test_other_paths_name_no_configuration(path: str) -> None:
    assert configuration_at(path) is None
