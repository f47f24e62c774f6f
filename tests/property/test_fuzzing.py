"""A few of the million inputs of `make -C bench fuzz`: readers of outside bytes parse or refuse them."""

import pytest

from bench.fuzzing import campaign, stores
from bench.fuzzing.campaign import Outcome, feed, made
from bench.fuzzing.targets import TARGETS, Target

SEED = 7


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_no_input_crashes_its_reader(target: Target) -> None:
    found = feed(target, SEED, range(1500 if target.share >= 0.05 else 150))  # a model takes milliseconds
    assert found.crashes == []
    assert 0 < found.refused < found.inputs  # damaged enough, and not beyond recognition


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_input_is_reproduced_from_its_number(target: Target) -> None:
    inputs, again = ([repr(made(target, SEED, number)) for number in range(50)] for _ in range(2))
    assert inputs == again
    assert len(set(inputs)) > 25


@pytest.mark.parametrize("position", range(len(stores.STORES)), ids=[store.name for store in stores.STORES])
def test_flipped_bits_give_neither_tracebacks_nor_wrong_answers(position: int) -> None:
    found = stores.flip(position, 1, SEED, limit=25)
    assert found.faults == []
    assert found.flips == min(25, found.pages)


def test_unexpected_exceptions_are_reported() -> None:
    def read(number: int) -> None:
        if number % 100 == 7:
            raise KeyError(number)
        if number % 2:
            raise ValueError(number)

    target = Target("numbers", lambda random: random.randrange(1000), read, (ValueError,), 1)
    found = feed(target, SEED, range(2000))
    assert found.inputs == 2000
    assert 800 < found.refused < 1100
    assert found.crashes
    for number, what in found.crashes:
        assert what == f"KeyError: {made(target, SEED, number)}"


def test_a_campaign_spreads_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "_CHUNK", 100)
    found = campaign.run(500, SEED, processes=1)
    assert {name: outcome.inputs for name, outcome in found.items()} == {
        target.name: round(500 * target.share) for target in TARGETS
    }
    one = Outcome()
    one.add(feed(TARGETS[0], SEED, range(200)))
    assert found[TARGETS[0].name].refused == one.refused
