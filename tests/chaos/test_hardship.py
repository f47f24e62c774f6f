"""A tier that cannot have what it wants says so in a sentence, and answers where it can do without."""

import pytest

from chaos import hardship

TIERS = ("agent", "gateway")


@pytest.mark.parametrize("tier", TIERS)
def test_a_locale_without_utf_8_changes_nothing(tier: str) -> None:
    started = hardship.plain_locale(tier)
    assert started.answered and started.honest, started.log


@pytest.mark.skipif(not hardship.may_mount(), reason="needs the right to mount")
@pytest.mark.parametrize("tier", TIERS)
class TestReadOnlyRoot:
    def test_with_room_for_its_state_it_answers(self, tier: str) -> None:
        started = hardship.read_only(tier, with_state=True)
        assert started.answered and started.honest, started.log

    def test_read_only_state_is_reported(self, tier: str) -> None:
        started = hardship.read_only(tier, with_state=False)
        assert not started.answered and started.honest, started.log
        assert "Read-only file system" in started.log
