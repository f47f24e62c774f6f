"""Promises about the events of a detector: what is certified, what is refused, and what is said about the rest."""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from support.cli import in_one_line, json_of, run
from support.images import encode
from support.sample_bundles import detector_bundle, number_bundle
from support.task_bundles import TASKS

from firstline.cli.proof_text import promises_text
from firstline.workbench.certify import Terms, certify_bundle, certify_classes, with_certificate
from firstline.workbench.event_promises import (
    BrokenPromise,
    EventBound,
    Unpromised,
    UsualAnswer,
    broken_promise,
    parse_promises,
    require_event,
    usual_answer,
)
from firstline.workbench.evidence import Evidence
from firstline.workbench.selection import EdgeRows
from firstline_core.bundle.manifest import Manifest, Policy, Score, encode_manifest, parse_manifest, valid_certificate
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.errors import ConfigError
from firstline_core.routing.contracts import EventsResult
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.detection import Detection
from firstline_core.tasks.embedding import Embedding
from firstline_core.tasks.regression import Regression
from firstline_core.tasks.segmentation import Segmentation
from firstline_core.types import PROBABILITIES

_TASK = Detection(("person", "bicycle", "car"), k=3)
_PERSON = {"missed person": EventBound(0.05, 0.1)}
_run, _json = partial(run, "certify"), partial(json_of, "certify")


def _frames(present: NDArray[np.bool_], sureness: NDArray[np.float64]) -> dict[str, Any]:
    """Returns the outputs for frames with at most one object of each class, best first.

    Args:
        present: (n, classes).
        sureness: (n,) the score of each object.
    """
    n, k = present.shape
    order = np.argsort(~present, axis=1, kind="stable")
    used = np.take_along_axis(present, order, axis=1)
    boxes = np.zeros((n, k, 4), np.float32)
    boxes[..., :2], boxes[..., 2:] = 100 * order[..., None], 100 * order[..., None] + 80
    return {
        "boxes": np.where(used[..., None], boxes, 0).astype(np.float32),
        "scores": np.where(used, sureness[:, None], 0).astype(np.float32),
        "classes": np.where(used, order, -1),
        "count": used.sum(axis=1),
    }


def _bundle(tmp_path: Any) -> Bundle:
    """A bundle of two models of the right names; they never run here."""
    bundle = number_bundle(tmp_path)
    edge, full = bundle.manifest.models[0], msgspec.structs.replace(bundle.manifest.models[0], id="full", precision="x")
    fields = {name: getattr(bundle.manifest, name) for name in ("name", "version", "inputs")}
    policy = Policy(Score("minimum_confidence"))
    return Bundle(bundle.path, Manifest(task=_TASK, edge=(edge,), full=full, policy=policy, **fields))


@pytest.fixture
def bundle(tmp_path: Any) -> Bundle:
    return _bundle(tmp_path)


def _evidence(
    bundle: Bundle,
    *,
    n: int = 3000,
    shares: tuple[float, float, float] = (0.4, 0.004, 0.2),
    seed: int = 0,
    blind: tuple[int, ...] = (),
    groups: tuple[str, ...] = (),
) -> Evidence:
    """Returns frames of which the edge model misses objects the more often the lower its score is.

    Args:
        bundle: of the models.
        n: frames.
        shares: of the frames that have a person, a bicycle and a car.
        seed: of all.
        blind: classes that the edge model never reports.
        groups: see `Evidence`.
    """
    random = np.random.default_rng(seed)
    full = random.random((n, 3)) < shares
    sure = random.random(n)
    edge = full & (random.random((n, 3)) > 0.4 * (1 - sure[:, None]) ** 2)
    edge[:, list(blind)] = False
    # The best candidate tells how sure an empty frame is.
    candidates = {
        f"candidate_{name}": array
        for name, array in _frames(~edge, 1 - sure).items()
        if name != "count"
    }  # fmt: skip
    rows = EdgeRows(_TASK, _frames(edge, sure), candidates)
    scores = rows.scores(Score("minimum_confidence")).astype(np.float64)
    return Evidence(bundle.manifest.edge[0], rows, scores, _frames(full, np.full(n, 0.9)), None, groups)


def _certify(bundle: Bundle, evidence: Evidence, promises: dict[str, EventBound], **options: Any) -> Any:
    found = certify_bundle(bundle, evidence, Terms(0, 0, **{"score": "bundle"} | options).about(promises))
    assert isinstance(found.result, EventsResult)
    return found


def test_promises_are_read_in_the_words_of_a_user() -> None:
    found = parse_promises(["missed person 5% at 90%", " invented car 0.5 % at 95 %"], _TASK)
    assert found == {"missed person": EventBound(0.05, 0.1), "invented car": EventBound(0.005, 0.05)}


def test_one_promise_may_be_about_all_answers() -> None:
    assert parse_promises(["2% at 95%"], _TASK, all_answers=True) == {"": EventBound(0.02, 0.05)}
    with pytest.raises(ConfigError, match="'2% at 95%' is about all answers; make no other promise"):
        parse_promises(["missed person 5% at 90%", "2% at 95%"], _TASK, all_answers=True)
    with pytest.raises(
        ConfigError, match=r"names no event; state one about all answers with --epsilon 0\.02 --delta 0\.05"
    ):
        parse_promises(["2% at 95%"], _TASK)


@pytest.mark.parametrize("text", ["missed person 0.00000000001% at 90%", "missed person 5% at 99.99999999999%"])
def test_promises_without_doubt_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="must be above 0% and below 100%"):
        parse_promises([text], _TASK)


@pytest.mark.parametrize("name", ["missed Potted  Plant", "MISSED potted plant"])
def test_case_and_spaces_matter_only_where_labels_differ(name: str) -> None:
    assert list(parse_promises([f"{name} 5% at 90%"], Detection(("potted plant", "car")))) == ["missed potted plant"]
    with pytest.raises(ConfigError, match="no event"):
        parse_promises([f"{name} 5% at 90%"], Detection(("potted plant", "Potted Plant")))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["missed person 0.05 at 0.9"], "not in the form"),
        (["missed person 0% at 90%"], "share of the promise .* is 0%, but must be above 0% and below 100%, such as 5%"),
        (["missed person 5% at 100%"], "confidence .* is 100%, but must be above 0% and below 100%, such as 90%"),
        (["missed person 5% at 90%", "missed person 4% at 90%"], "two promises about 'missed person'"),
    ],
)
def test_unclear_promise_is_refused(texts: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_promises(texts, _TASK)


def test_detector_needs_an_event_and_a_classifier_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a model that reports nothing would be certified.*--promise 'missed person"):
        require_event(_bundle(tmp_path / "detector").manifest)
    require_event(number_bundle(tmp_path / "numbers").manifest)


def test_a_large_open_gallery_needs_labels_with_events(tmp_path: Path) -> None:
    write, _ = TASKS["embedding"]
    gallery = write(tmp_path).manifest
    large = Embedding(3, labels=tuple(map(str, range(300))))
    with pytest.raises(ConfigError, match="names an event, and this bundle has none; name up to 256"):
        require_event(msgspec.structs.replace(gallery, task=large))
    watched = msgspec.structs.replace(large, event_labels=("7",))
    with pytest.raises(ConfigError, match="--promise 'missed 7 5% at 90%'"):
        require_event(msgspec.structs.replace(gallery, task=watched))


@pytest.mark.parametrize(
    ("task", "outputs", "expected"),
    [
        (
            Classification(("fine", "broken")),
            {PROBABILITIES: np.eye(2, dtype=np.float32)[[0] * 97 + [1] * 3]},
            UsualAnswer("fine", 0.97),
        ),
        (Classification(("fine", "broken")), {PROBABILITIES: np.eye(2, dtype=np.float32)[[0] * 90 + [1] * 10]}, None),
        (
            Segmentation(("floor", "crack"), width=2, height=1),
            {"mask": np.array([[[0, 0]]] * 98 + [[[0, 1]]] * 2, np.uint8), "confidence": np.ones(100, np.float32)},
            UsualAnswer("floor", 0.98),
        ),
        (Regression(("load",), absolute=1), {"values": np.zeros((9, 1), np.float32)}, None),
    ],
)
def test_usually_right_answer_is_named(bundle: Bundle, task: Any, outputs: Any, expected: UsualAnswer | None) -> None:
    edge = EdgeRows(task, outputs, {})
    evidence = Evidence(bundle.manifest.edge[0], edge, np.zeros(1), outputs, {})
    assert usual_answer(evidence, 0.05) == expected


def test_certificate_names_the_events(bundle: Bundle) -> None:
    evidence = _evidence(bundle)
    promises = {"missed person": EventBound(0.05, 0.1), "invented car": EventBound(0.02, 0.05)}
    found = _certify(bundle, evidence, promises)
    certificate = found.certificate
    assert (certificate.contract, certificate.audit_epsilon) == ("events", None)
    assert certificate.audit_bounds == {"missed person": 0.05, "invented car": 0.02}
    assert {name: one.delta for name, one in certificate.events.items()} == {"missed person": 0.1, "invented car": 0.05}
    accepted = evidence.scores >= certificate.threshold
    rest = found.selection.rest
    assert certificate.kept == accepted[rest].mean()
    for name, promise in certificate.events.items():
        event = _TASK.events_of([name], evidence.edge.outputs, evidence.full)[name]
        assert promise.n == event.counts[rest].sum()
        assert event.loss[accepted & event.counts].mean() <= promise.epsilon
    manifest = with_certificate(bundle.manifest, found)
    assert parse_manifest(encode_manifest(manifest)) == manifest
    assert valid_certificate(manifest, manifest.edge[0]) == certificate


@pytest.mark.parametrize("share", [0.001, 0.5])
def test_blind_detector_is_refused(bundle: Bundle, share: float) -> None:
    """It returns neither boxes nor candidates: its score is 0 for every frame."""
    evidence = _evidence(bundle, shares=(share, 0, 0), blind=(0, 1, 2))
    nothing = {name: np.zeros_like(array) for name, array in evidence.edge.evidence.items()}
    silent = EdgeRows(_TASK, evidence.edge.outputs, nothing)
    blind = replace(evidence, edge=silent, scores=silent.scores(Score("minimum_confidence")).astype(np.float64))
    for promises in (_PERSON, {"invented person": EventBound(0.5, 0.5)}):
        with pytest.raises(ConfigError, match=r"is 0 for all 3000 rows.*this edge model gives no confidence"):
            _certify(bundle, blind, promises)


@pytest.mark.parametrize("share", [0.001, 0.5])
@pytest.mark.parametrize("event", ["missed person", "invented person"])
def test_detector_that_lost_a_class_is_not_certified_for_it(bundle: Bundle, share: float, event: str) -> None:
    evidence = _evidence(bundle, n=1500, shares=(share, 0.1, 0.5), blind=(0,))
    for promises in ({event: EventBound(0.5, 0.4)}, {event: EventBound(0.5, 0.4), "missed car": EventBound(0.2, 0.4)}):
        found = _certify(bundle, evidence, promises, score="best")
        assert found.certificate is None and not found.result.certified


def test_report_says_what_cannot_be_promised(bundle: Bundle) -> None:
    evidence = _evidence(bundle, seed=1)
    found = _certify(bundle, evidence, _PERSON)
    bicycles, cars = (int((evidence.full["classes"] == label).any(axis=1).sum()) for label in (1, 2))
    assert found.unpromised == {
        "missed car": Unpromised(cars, 0), "missed bicycle": Unpromised(bicycles, 45 - bicycles),
    }  # fmt: skip
    text = " ".join(promises_text(found.result, found.unpromised))
    assert "at most 5 % of the edge answers miss 'person' where the full model reports it, with confidence 90 %" in text
    assert f"{found.result.events['missed person'].n:,} observations, of which" in text
    assert f"Too few observations for any such promise: missed bicycle ({bicycles} rows)." in text
    assert f"Nothing is promised about: missed car ({cars} rows)." in text
    assert list(asdict(found.result)["events"]["missed person"]) == [
        "epsilon", "delta", "n", "kept", "risk_upper", "n_needed",
    ]  # fmt: skip


def test_rare_event_is_not_certified_and_needs_more_rows(bundle: Bundle) -> None:
    found = _certify(bundle, _evidence(bundle), _PERSON | {"missed bicycle": EventBound(0.05, 0.1)})
    assert found.certificate is None
    events = found.result.events
    bicycles = events["missed bicycle"]
    assert (events["missed person"].n_needed, bicycles.n_needed) == (0, 45 - bicycles.n)
    assert found.result.n_needed >= bicycles.n_needed > 20
    text = " ".join(promises_text(found.result, found.unpromised))
    assert f"{bicycles.n} observations; at least {bicycles.n_needed} more would be needed" in text
    assert "Not proved with the others, but alone it could be: at most 5 % of the edge answers miss 'person'" in text
    assert text.count("No threshold serves all promises together") == 1
    lost = _certify(bundle, _evidence(bundle, blind=(0,)), _PERSON)
    text = " ".join(promises_text(lost.result, lost.unpromised, lost.broken))
    assert (
        "too many of the answers with high scores break it: 81 of the 81 observations with the highest scores" in text
    )
    assert (
        "No share up to ten times the promised one passes this test at this confidence. Try more data, another" in text
    )


def test_a_broken_promise_names_the_smallest_share_that_is_proved(bundle: Bundle) -> None:
    """Whatever share was asked for, and with the thresholds at which the certification starts."""
    evidence = _evidence(bundle, n=800, seed=3)
    evidence.edge.outputs["count"][::7] = 0

    def tried(epsilon: float) -> Any:
        return _certify(bundle, evidence, {"missed person": EventBound(epsilon, 0.1)})

    (least,) = {tried(epsilon).broken["missed person"].least_epsilon for epsilon in (0.03, 0.05)}
    assert tried(least).result.certified
    assert not tried(least - 0.01).result.certified


def test_the_break_of_a_promise_by_hand() -> None:
    """81 rows are tested first. Of 100 rows without error, 3 % can be proved at 90 %, and 2 % cannot."""
    scores, losses = np.arange(100.0), (np.arange(100) < 30).astype(float)

    def broken(proved_from: float) -> BrokenPromise:
        return broken_promise(scores, losses, EventBound(0.05, 0.1), lambda bound: bound.epsilon >= proved_from)

    assert broken(0.2) == BrokenPromise(11, 81, 0.2)
    assert broken(0.0) == BrokenPromise(11, 81, 0.03)
    assert broken(0.5).least_epsilon == 0.5  # ten times the promised share is the most that is tried
    assert broken(0.51).least_epsilon is None
    few = broken_promise(scores[:50], losses[:50], EventBound(0.05, 0.1), lambda bound: bound == EventBound(0.06, 0.1))
    assert few == BrokenPromise(30, 50, 0.06)
    many = np.zeros(3000)
    assert broken_promise(many, many, EventBound(0.05, 0.1), lambda _: True) == BrokenPromise(0, 81, 0.001)


def test_too_few_observations_that_break_the_promise_are_told(bundle: Bundle) -> None:
    found = _certify(bundle, _evidence(bundle, n=100, blind=(0,)), _PERSON)
    text = " ".join(promises_text(found.result, found.unpromised, found.broken))
    n = found.result.events["missed person"].n
    assert f"{n} observations; at least {45 - n} more would be needed. {n} of the {n} observations with the" in text
    assert "break it, so more data would hardly prove it: try another edge model" in text
    kept = _certify(bundle, _evidence(bundle, n=60, seed=3), _PERSON)
    assert "break it" not in " ".join(promises_text(kept.result, kept.unpromised, kept.broken))


def test_several_promises_set_a_part_aside(bundle: Bundle) -> None:
    evidence = _evidence(bundle, n=900)
    both = _PERSON | {"missed car": EventBound(0.1, 0.1)}
    assert _certify(bundle, evidence, _PERSON).selection.used == 0
    assert _certify(bundle, evidence, both).selection.used == 90
    with pytest.raises(ConfigError, match=r"set one aside with --select 0\.1"):
        _certify(bundle, evidence, both, select_fraction=0.0)


def test_rows_that_place_thresholds_are_scored_as_the_others(bundle: Bundle) -> None:
    """A score that is named gives the result that it gives as the bundle's own."""
    evidence, placing = _evidence(bundle, n=1500), _evidence(bundle, n=600, seed=1)
    named = Terms(0, 0, score="product", select_fraction=0).about(_PERSON | {"missed car": EventBound(0.1, 0.1)})
    found = certify_bundle(bundle, evidence, named, placing=placing)
    score = Score("product")
    own = Bundle(bundle.path, msgspec.structs.replace(bundle.manifest, policy=Policy(score)))
    rows, others = (replace(one, scores=one.edge.scores(score).astype(np.float64)) for one in (evidence, placing))
    expected = certify_bundle(own, rows, replace(named, score="bundle"), placing=others)
    assert found.result == expected.result and found.result.certified


def test_answers_without_a_class_have_no_promise_by_class(bundle: Bundle) -> None:
    with pytest.raises(ConfigError, match=r"No edge answer to the data has a class .* leave out --by"):
        certify_classes(bundle, _evidence(bundle, shares=(0, 0, 0)), Terms(0.05, 0.1))


def test_frames_of_one_clip_are_one_observation(bundle: Bundle) -> None:
    """Each frame is repeated 20 times: only the clips count, whatever the number of frames."""
    frames = _evidence(bundle, n=150, shares=(0.6, 0, 0))
    clips = np.repeat(np.arange(150), 20)
    edge = frames.edge.take(clips)
    repeated = Evidence(
        frames.variant,
        edge,
        frames.scores[clips],
        {name: array[clips] for name, array in frames.full.items()},
        None,
        tuple(f"clip {clip}" for clip in clips),
    )
    clustered = _certify(bundle, repeated, _PERSON)
    assert clustered.result.events == _certify(bundle, frames, _PERSON).result.events
    assert clustered.result.n == 150
    assert _certify(bundle, replace(repeated, clusters=()), _PERSON).result.events["missed person"].n > 1000


def test_clip_without_the_event_is_no_observation(bundle: Bundle) -> None:
    """One random frame of each clip among those with a person."""
    evidence = _evidence(bundle, n=1000, shares=(0.1, 0, 0))
    clips = tuple(f"clip {frame // 10}" for frame in range(1000))
    present = (evidence.full["count"] > 0).reshape(100, 10).any(axis=1).sum()
    found = _certify(bundle, replace(evidence, clusters=clips), _PERSON)
    assert found.result.events["missed person"].n == present < 100
    both = _PERSON | {"invented person": EventBound(0.05, 0.1)}
    part = _certify(bundle, replace(evidence, clusters=clips), both).selection
    in_rest = {row // 10 for row in part.rest}
    assert (part.used, len(in_rest), len(part.rest)) == (100, 90, 900)


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    """A hundred images from dark to bright; the detector finds a dog in those that are not dark."""
    folder = tmp_path / "frames"
    folder.mkdir()
    for number in range(100):
        (folder / f"{number * 7919 % 1000}.png").write_bytes(encode(np.full((6, 6, 3), 2 * number, np.uint8)))
    return folder


def test_detector_is_certified_by_the_command(tmp_path: Path, frames: Path) -> None:
    detector_bundle(tmp_path / "bundle")
    promise = (tmp_path / "bundle", "--data", frames, "--promise", "missed dog 10% at 90%")
    found = _json(*promise, "--out", tmp_path / "new")
    assert found["certified"] and found["n"] == 100 and found["sequences"] is None
    event = found["events"]["missed dog"]
    assert (event["epsilon"], event["delta"], event["n_needed"]) == (0.1, 0.1, 0) and 0 < event["n"] < 100
    (variant,) = open_bundle(tmp_path / "new").manifest.edge
    assert variant.certificate.audit_bounds == {"missed dog": 0.1}
    assert variant.certificate.threshold == found["threshold"]

    text = _run(*promise, "--promise", "invented cat 5% at 90%", "--require", code=1).stdout
    assert "Not proved: at most 5 % of the edge answers that report 'cat' invent it" in text
    assert "0 observations; at least 45 more would be needed." in text
    assert "No bundle was written." in text


def test_command_says_that_frames_depend_on_each_other(tmp_path: Path, frames: Path) -> None:
    detector_bundle(tmp_path / "bundle")
    promise = (tmp_path / "bundle", "--data", frames, "--promise", "missed dog 10% at 90%")
    for number, file in enumerate(sorted(frames.iterdir())):
        file.rename(frames / f"clip{number % 4}-frame-{number}.png")
    assert _json(*promise)["sequences"] == {"sign": "names such as 'clip0-frame-0.png'", "effective": 4}
    text = in_one_line(_run(*promise).stdout)
    assert "suggest sequences. Then they count as about 4 observations, not 100" in text


def test_command_says_which_promise_is_missing(tmp_path: Path, frames: Path) -> None:
    detector_bundle(tmp_path / "bundle")
    data = (tmp_path / "bundle", "--data", frames)
    plain = _run(*data, "--epsilon", 0.05, "--delta", 0.1, code=2).stderr
    assert "A contract of the task detection names an event" in plain
    assert "--promise 'missed cat 5% at 90%'; use one of missed cat, invented cat, missed dog" in plain
    assert "Name --epsilon and --delta, or a promise" in _run(*data, code=2).stderr
    promise = ("--promise", "missed dog 5% at 90%")
    for more in (("--epsilon", 0.1), ("--by", "class"), ("--contract", "stream"), ("--loss", "harm")):
        assert "leave out --epsilon, --delta" in _run(*data, *promise, *more, code=2).stderr
    assert "go with a bundle and --data" in _run("--scores", "-", *promise, code=2).stderr
    wrong = _run(*data, *promise, "--score", "margin", code=2).stderr
    assert "no score 'margin' for the task detection; use one of best, bundle, minimum_confidence" in wrong


def test_classifier_may_promise_about_a_label() -> None:
    digits = Path(__file__).parents[4] / "models/digits"
    promise = ("--promise", "missed seven 8% at 80%", "--score", "bundle")
    found = _json(digits / "bundle", "--data", digits / "heldout", *promise)
    assert found["certified"] and 40 < found["events"]["missed seven"]["n"] < 80
    assert "missed one" in found["unpromised"] and "missed seven" not in found["unpromised"]
    assert found["broken"] == {}
