from typing import Any

import numpy as np
import pytest
from PIL import Image

from firstline_core.errors import ConfigError, InferenceError, InvalidTensorError, ModelLoadError
from firstline_core.processing.ctc import compile_ctc, read_table
from firstline_core.processing.geometry import InputSize
from firstline_core.processing.steps import Confidence, Ctc, PostStep, Softmax
from firstline_core.storage.artefact import Artefact
from firstline_core.tasks.base import ModelOutputs
from firstline_core.tasks.text import LOWEST, MEAN, Text
from firstline_core.types import TensorSpec

pytest.importorskip("rapidfuzz", reason="the extra text is not installed")

TABLE = Artefact("symbols.txt", "0" * 64, 1)
SYMBOLS = "a\nb\n\n"  # a, b and the space


def texts(*each: str) -> dict[str, Any]:
    array: Any = np.empty(len(each), object)
    array[:] = [text.encode() for text in each]
    return {"text": array}


def path(symbols: str, sure: float = 0.8) -> Any:
    """Probabilities of -, a, b and the space over time, for one row."""
    steps = np.full((1, len(symbols), 4), (1 - sure) / 3, np.float32)
    for position, symbol in enumerate(symbols):
        steps[0, position, "-ab ".index(symbol)] = sure
    return steps


def post(*steps: PostStep, symbols: str = SYMBOLS, ports: tuple[str, ...] = ("out",)) -> Any:
    specs = tuple(TensorSpec(name, "FP32", (-1, -1)) for name in ports)
    model = ModelOutputs(
        "Model 'm'", steps, specs, "out", lambda: InputSize(1, 1), lambda _: lambda a: a, lambda _: symbols.encode()
    )
    return Text().postprocess(model).run


@pytest.mark.parametrize(
    ("symbols", "text"), [("aab", "ab"), ("a-ab", "aab"), ("--", ""), ("a b", "a b"), ("-aa--a-bb-", "aab")]
)
def test_ctc_drops_repeats_and_blanks(symbols: str, text: str) -> None:
    found = post(Ctc(TABLE))({"out": path(symbols)}, {"x": np.zeros(1)})
    assert found.outputs["text"].tolist() == [text.encode()]
    np.testing.assert_allclose([found.evidence[MEAN], found.evidence[LOWEST]], 0.8, atol=1e-5)


def test_the_lowest_symbol_is_evidence() -> None:
    probabilities = np.concatenate([path("a", 0.9), path("-", 0.4), path("b", 0.6)], axis=1)
    found = post(Ctc(TABLE))({"out": probabilities}, {"x": np.zeros(1)})
    assert found.outputs["text"].tolist() == [b"ab"]
    assert found.evidence[LOWEST][0] == pytest.approx(0.6)
    assert found.evidence[MEAN][0] == pytest.approx(np.sqrt(0.9 * 0.6))


def test_logits_become_probabilities_first() -> None:
    for axes, order in (("ntc", (0, 1, 2)), ("tnc", (1, 0, 2)), ("nct", (0, 2, 1))):
        found = post(Softmax(), Ctc(TABLE, axes=axes))({"out": np.log(path("ab")).transpose(order)}, {"x": np.zeros(1)})
        assert (found.outputs["text"].tolist(), round(float(found.evidence[MEAN][0]), 5)) == ([b"ab"], 0.8)


def test_rows_may_be_the_second_axis() -> None:
    both = np.concatenate([path("ab"), path("ba")])
    for output in (both.transpose(1, 0, 2), both.reshape(4, 1, 4)):  # together, and one after the other
        found = post(Ctc(TABLE, axes="tnc"))({"out": output}, {"x": np.zeros(2)})
        assert found.outputs["text"].tolist() == [b"ab", b"ba"]


def test_the_blank_may_be_the_last_class() -> None:
    run = compile_ctc(Ctc(TABLE, blank=-1), SYMBOLS.encode(), logits=False)
    assert run(np.roll(path("a-b"), -1, axis=2), 1, "m")[0].tolist() == [b"ab"]


@pytest.mark.parametrize(
    ("steps", "output", "reason"),
    [
        ((Ctc(TABLE),), np.zeros((1, 4, 9), np.float32), "gave 9 classes, but symbols.txt has 3 symbols"),
        ((Ctc(TABLE),), np.zeros((1, 4), np.float32), "reads three axes"),
        ((Softmax(), Ctc(TABLE, axes="nct")), np.zeros((1, 4), np.float32), "reads three axes"),
        ((Ctc(TABLE),), np.zeros((3, 4, 4), np.float32), "name the order of its axes"),
        ((Ctc(TABLE),), np.full((1, 4, 4), np.nan, np.float32), "NaN or infinity"),
        ((Ctc(TABLE),), np.full((1, 4, 4), 3, np.float32), "not probabilities; add softmax before ctc"),
        ((Ctc(TABLE),), np.full((1, 4, 4), -1.4, np.float32), "not probabilities; add softmax before ctc"),
        ((), np.zeros((1, 4), np.float32), "in place of a string each"),
    ],
)
def test_outputs_of_another_form_are_errors(steps: Any, output: Any, reason: str) -> None:
    with pytest.raises(InferenceError, match=reason):
        post(*steps)({"out": output}, {"x": np.zeros(1)})


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff"])
def test_a_file_without_symbols_is_refused(content: bytes) -> None:
    with pytest.raises(ModelLoadError, match=r"symbols\.txt"):
        read_table(content, "symbols.txt")


def test_a_model_may_give_strings_and_the_probabilities_of_tokens() -> None:
    run = post(Confidence("p"), ports=("out", "p"))
    raw = {"out": np.array([["äb"], [""]], object), "p": np.array([[0.5, 0.25, 0], [0, 0, 0]], np.float32)}
    found = run(raw, {"x": np.zeros(2)})
    assert found.outputs["text"].tolist() == ["äb".encode(), b""]
    np.testing.assert_allclose(found.evidence[MEAN], [np.sqrt(0.125), 1])
    np.testing.assert_allclose(found.evidence[LOWEST], [0.25, 1])
    empty = run({"out": np.array([[""]], object), "p": np.zeros((1, 0), np.float32)}, {"x": np.zeros(1)})
    assert (empty.evidence[MEAN].tolist(), empty.evidence[LOWEST].tolist()) == ([1], [1])
    for wrong in (-0.7, 1.5, np.nan):
        with pytest.raises(InferenceError, match="outside of 0 to 1; take the exponential of logarithms"):
            run(raw | {"p": np.full((2, 3), wrong, np.float32)}, {"x": np.zeros(2)})


def test_the_loss_is_the_edit_distance_above_the_tolerance() -> None:
    edge, full = texts("abcd", "abcd", "", "a  b"), texts("abcd", "abce", "ab", " a b ")
    assert Text().loss(edge, full).tolist() == [0, 1, 1, 0]
    assert Text(tolerance=0.25).loss(edge, full).tolist() == [0, 0, 1, 0]
    assert Text(loss_kind="distance").loss(edge, full).tolist() == [0, 0.25, 1, 0]
    assert Text(loss_kind="distance").loss(texts("a", "ab", ""), texts("b", "a", "")).tolist() == [1, 0.5, 0]
    assert Text(ignore_space=False).loss(edge, full).tolist() == [0, 1, 1, 1]
    assert Text(ignore_case=True).loss(texts("ABC"), texts("abc")).tolist() == [0]


def test_a_keyword_is_an_event() -> None:
    task = Text(keywords=("stop", "go on"), ignore_case=True)
    edge, full = texts("Stop", "nonstop", "", "go  on stop"), texts("stop now", "stop", "go on", "go")
    assert task.events == ("missed stop", "invented stop", "missed go on", "invented go on")
    missed, invented = task.events_of(["missed stop", "invented stop"], edge, full).values()
    assert (missed.counts.tolist(), missed.loss.tolist()) == ([True, True, False, False], [0, 1, 0, 0])
    assert (invented.counts.tolist(), invented.loss.tolist()) == ([True, False, False, True], [0, 0, 0, 1])
    assert task.events_of(["missed go on"], edge, full)["missed go on"].loss.tolist() == [0, 0, 1, 0]
    assert task.groups(edge) == ["stop", "", "", "stop"]
    assert task.occurrences(texts("stop, stop! go on")).tolist() == [[2, 1]]
    with pytest.raises(ConfigError, match="There is no event 'missed halt'"):
        task.events_of(["missed halt"], edge, full)


def test_only_texts_with_keywords_need_an_event() -> None:
    assert Text(keywords=("stop",)).needs_event(()) and not Text().needs_event(())


def test_figures_are_error_rates() -> None:
    found = Text().summary(texts("a bc", "x"), {}, texts("a bd", "x y"))
    assert found == {"cer": 3 / 7, "wer": 2 / 4, "different": 1.0}
    assert Text().summary(texts(""), {}, texts("")) == {"cer": 0, "wer": 0, "different": 0}


def test_scores_are_probabilities_of_tokens() -> None:
    evidence = {MEAN: np.array([0.9], np.float32), LOWEST: np.array([0.25], np.float32)}
    task, outputs = Text(), texts("ab")
    assert task.score(MEAN, outputs, evidence).tolist() == [np.float32(0.9)]
    assert task.score(LOWEST, outputs, evidence, temperature=2).tolist() == [0.5]
    assert task.features(outputs, {})[0, 0] == 0
    with pytest.raises(InvalidTensorError, match="gives none"):
        task.score(MEAN, outputs, {})
    assert task.unscored(MEAN, ()) and not task.unscored(MEAN, (Ctc(TABLE),))


def test_answers_are_described_and_drawn() -> None:
    task = Text(keywords=("stop",))
    assert task.describe(texts("stop now"), 0) == {"text": "stop now", "keywords": ["stop"]}
    assert Text().describe(texts("é"), 0) == {"text": "é"}
    assert task.draw(Image.new("RGB", (90, 40), "black"), texts("stop"), 0).getbbox() is not None


def test_outputs_that_are_not_text_are_faults() -> None:
    assert Text().fault(texts("fine")) == ""
    assert Text().fault({"text": np.array([b"\xff"], object)}) == "row 0 that is not UTF-8"
    assert "of type str" in Text().fault({"text": np.array(["a"], object)})


def test_golden_answers_are_compared_by_distance() -> None:
    assert Text().difference(texts("abcd"), texts("abcx")) == 0.25
    assert Text().difference(texts("a"), texts("a", "b")) == np.inf


def test_keywords_differ() -> None:
    with pytest.raises(ValueError, match="keywords differ"):
        Text(keywords=("stop", "Stop"))


def test_a_tier_without_the_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "rapidfuzz.distance", None)
    with pytest.raises(ModelLoadError, match=r"needs the package 'rapidfuzz'.*pip install 'firstline\[text\]'"):
        post(Ctc(TABLE))
