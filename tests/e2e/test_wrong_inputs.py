"""Each wrong input gets the message that `docs/reference/errors-by-example.md` shows, from both real tiers."""

from collections.abc import Iterator

import pytest
from support.wrong_cases import AREAS
from support.wrong_inputs import Site, wrong_site
from support.wrong_page import FILE, entry


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with wrong_site(tmp_path_factory.mktemp("wrong")) as found:
        yield found


@pytest.mark.parametrize("area", AREAS)
def test_wrong_inputs_get_the_messages_of_the_page(site: Site, area: str) -> None:
    page = FILE.read_text()
    entries = [entry(case, site.message(case)) for case in AREAS[area]]
    assert [each for each in entries if each not in page] == [], "run: make -C tests wrong-inputs"


def test_the_page_has_no_other_inputs() -> None:
    """Unit tests do not repeat these inputs, so one that goes needs a unit test instead."""
    assert FILE.read_text().count("```text\n") == sum(map(len, AREAS.values())) >= 450
