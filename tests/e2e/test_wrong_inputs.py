"""Each wrong input gets the message that `docs/reference/errors-by-example.md` shows, from both real tiers."""

from collections.abc import Iterator

import pytest
from support.wrong_cases import AREAS
from support.wrong_inputs import Case, Site, wrong_site
from support.wrong_page import FILE, entry

_CASES = [(area, case) for area, cases in AREAS.items() for case in cases]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with wrong_site(tmp_path_factory.mktemp("wrong")) as found:
        yield found


@pytest.mark.parametrize("case", [case for _, case in _CASES], ids=[f"{area}: {case.wrong}" for area, case in _CASES])
def test_a_wrong_input_gets_the_message_of_the_page(site: Site, case: Case) -> None:
    assert entry(case, site.message(case)) in FILE.read_text(), "run: make -C tests wrong-inputs"


def test_the_page_has_no_other_inputs() -> None:
    """Unit tests do not repeat these inputs, so one that goes needs a unit test instead."""
    assert FILE.read_text().count("```text\n") == len(_CASES) >= 450
