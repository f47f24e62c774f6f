"""What a rollout brings, as a device's documents speak of it."""

from __future__ import annotations

import msgspec

from firstline_core.fleet.telemetry import ModelCounts
from firstline_core.fleet.twin import Desired, DesiredModel, Reported, RunningModel, Update, Window
from firstline_core.fleet.update import UpdateState
from firstline_gateway.fleet.totals import Totals, gained
from firstline_gateway.rollouts.definition import Definition
from firstline_gateway.rollouts.subject import Subject, desired_of, update_of, version_of, with_word

WORD = DesiredModel("quiet", 2, "1" * 64, "r1", 1.0, 2.0, Window(60, 30), attempt=3, undone=True)
OTHER = DesiredModel("digits", 1, "0" * 64)


def test_a_word_is_read_as_it_was_said() -> None:
    for subject in Subject:
        assert desired_of(with_word(Desired(1), subject, WORD), subject, "quiet") == WORD


def test_a_device_has_one_configuration_and_several_bundles() -> None:
    said = with_word(with_word(Desired(1), Subject.CONFIGURATION, OTHER), Subject.CONFIGURATION, WORD)
    assert said.models == () and desired_of(said, Subject.CONFIGURATION, "whatever") == WORD
    said = with_word(with_word(said, Subject.MODEL, WORD), Subject.MODEL, OTHER)
    assert [model.name for model in said.models] == ["digits", "quiet"]
    assert desired_of(said, Subject.MODEL, "digits") == OTHER


def test_a_bundle_and_a_configuration_of_one_name_are_two_things() -> None:
    model = Update("quiet", 7, UpdateState.COMMITTED)
    configuration = Update("quiet", 2, UpdateState.TRIAL, what="configuration")
    said = Reported(
        "s", 1, 1, (RunningModel("quiet", 7),), (model, configuration), configuration=2, configuration_name="quiet"
    )
    assert (version_of(said, Subject.MODEL, "quiet"), version_of(said, Subject.CONFIGURATION, "quiet")) == (7, 2)
    assert update_of(said, Subject.MODEL, "quiet") == model
    assert update_of(said, Subject.CONFIGURATION, "quiet") == configuration
    assert version_of(said, Subject.CONFIGURATION, "loud") == 0 == version_of(None, Subject.MODEL, "quiet")


def test_a_configuration_is_judged_by_all_that_a_device_answers() -> None:
    totals = Totals((ModelCounts("a", 1, rows=3, scores=(1, 2)), ModelCounts("b", 4, rows=4, scores=(1, 2, 3))))
    assert gained("", Totals(), totals).rows == 7 and gained("", Totals(), totals).scores == ()
    assert gained("b", Totals(), totals).rows == 4


def test_what_was_kept_before_there_were_configurations_brings_a_bundle() -> None:
    kept = b'{"bundle": "digits", "version": 2, "manifest_sha256": "%s"}' % (b"0" * 64)
    found = msgspec.json.decode(kept, type=Definition)
    assert (found.what, found.measured) == (Subject.MODEL, "digits")


def test_what_a_device_said_before_there_were_configurations_is_read() -> None:
    said = msgspec.json.decode(b'{"session": "s", "sequence": 1, "configuration": 0}', type=Reported)
    assert version_of(said, Subject.CONFIGURATION, "quiet") == 0
