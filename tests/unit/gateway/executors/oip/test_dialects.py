"""What any server of V2 is asked and believed, with the bundle's processing here."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from msgspec import structs
from support.gateway import DIGITS
from support.images import by_name, encode, grey, images

from firstline_core.bundle.loading import load_model
from firstline_core.bundle.store import open_bundle
from firstline_core.errors import (
    FirstlineError,
    InferenceError,
    InvalidTensorError,
    ModelMismatchError,
    ProtocolError,
    RequestError,
)
from firstline_core.processing.cost import PreparedRows
from firstline_core.protocol.http import error_reply, headers_for
from firstline_core.protocol.http_client import HttpReply
from firstline_core.protocol.limits import DEFAULT_LIMITS
from firstline_core.protocol.oip import Origin, decode_request, encode_response
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import PROBABILITIES, Array, InferRequest, InferResponse, Tensor
from firstline_gateway.executors.dispatch.dispatcher import is_executor_fault
from firstline_gateway.executors.local import run_batch
from firstline_gateway.executors.oip.dialects import FirstlineModel, RemoteModel, V2Model
from firstline_gateway.models.folder import ModelsFolder
from firstline_gateway.models.repository import ServedModel

INFER = "/v2/models/digits/versions/1"
METADATA = {
    "name": "digits",
    "inputs": [{"name": "pixels", "datatype": "FP32", "shape": [-1, 8, 8, 1]}],
    "outputs": [{"name": "logits", "datatype": "FP32", "shape": [-1, 10]}],
}


@pytest.fixture
def served() -> ServedModel:
    return next(iter(ModelsFolder(DIGITS).load(None)))


ROW = {"pixels": np.zeros((1, 1), np.float32)}


def questions(metadata: object = METADATA, config: object = None, ready: int = 200) -> dict[str, HttpReply]:
    return {
        INFER: HttpReply(200, {}, orjson.dumps(metadata)),
        f"{INFER}/ready": HttpReply(ready, {}, b""),
        f"{INFER}/config": HttpReply(404 if config is None else 200, {}, orjson.dumps(config)),
    }


def made(served: ServedModel) -> V2Model:
    model = V2Model(served, RuntimeOptions(), DEFAULT_LIMITS)
    assert model.check_loads and model.check(questions()) == ""
    assert not model.check_loads
    return model


def reply(
    logits: Array, *, name: str = "logits", model: str = "digits", version: str = "1", to: str = "r"
) -> HttpReply:
    request = InferRequest("digits", (Tensor("pixels", logits),), "r", binary_output=True)
    encoded = encode_response(request, InferResponse(model, version, (Tensor(name, logits),), id=to))
    return HttpReply(200, {key.lower(): value for key, value in headers_for(encoded).items()}, encoded.body)


def test_the_model_gets_prepared_rows_and_its_output_is_finished_here(served: ServedModel) -> None:
    model = made(served)
    picture = images(encode(np.arange(64, dtype=np.uint8).reshape(8, 8)))
    assert model.needs_thread
    rows = model.prepare(by_name(picture))
    encoded = model.encode(rows, "r", 12.5, 10.0)
    infer_request = decode_request("digits", encoded.body, encoded.header_length, Origin(now_s=20.0))
    assert (infer_request.inputs[0].name, infer_request.id) == ("pixels", "r")
    assert np.array_equal(infer_request.inputs[0].array, rows["pixels"])
    assert [(output.name, output.binary) for output in infer_request.outputs] == [("logits", True)]
    assert infer_request.deadline_s == 22.5
    assert (infer_request.full_model_digest, infer_request.promised) == ("", False)
    logits = np.arange(10, dtype=np.float32)[None]
    found = model.read(reply(logits), "r", rows)[PROBABILITIES]
    assert np.allclose(found, np.exp(logits) / np.exp(logits).sum(), atol=1e-6)


def test_it_is_the_same_as_the_model_in_this_process(served: ServedModel) -> None:
    bundle = open_bundle(DIGITS)
    assert bundle.manifest.full is not None
    here = load_model(bundle, bundle.manifest.full, RuntimeOptions())
    picture = images(encode(np.arange(64, dtype=np.uint8).reshape(8, 8) * 3))
    model = made(served)
    rows = model.prepare(by_name(picture))
    logits = here.runtime.run({here.inputs[0].port.name: rows["pixels"]})[here.output_names[0]]
    found = model.read(reply(logits), "r", rows)[PROBABILITIES]
    assert np.array_equal(found, here.predict(by_name(picture)).outputs[PROBABILITIES])
    here.close()


def test_only_servers_without_the_processing_get_prepared_rows(served: ServedModel) -> None:
    model, picture = made(served), images(grey())
    prepared = PreparedRows(model.prepare(by_name(picture)), by_name(picture))
    np.testing.assert_array_equal(model.prepare(prepared)["pixels"], prepared["pixels"])
    assert FirstlineModel(served, DEFAULT_LIMITS).prepare(prepared)["image"] is picture.array


def test_rows_for_an_input_of_another_name_are_prepared_again(served: ServedModel) -> None:
    """Executors of one bundle may run it from other files: a converted model names its input otherwise."""
    bundle, picture = open_bundle(DIGITS), images(grey())
    assert bundle.manifest.full is not None
    model = made(served)
    with closing(load_model(bundle, bundle.manifest.full, RuntimeOptions())) as here:
        own, remote = here.prepare(by_name(picture)), model.prepare(by_name(picture))
        assert (set(own), set(remote)) == ({"image"}, {"pixels"})
        by_here, by_model = (PreparedRows(rows, by_name(picture)) for rows in (own, remote))
        np.testing.assert_array_equal(model.prepare(by_here)["pixels"], remote["pixels"])
        expected = here.run(own)[PROBABILITIES]
        for batch in ([by_model], [by_model, by_model], [by_here, by_model], [by_model, by_here, by_name(picture)]):
            for outcome in run_batch(here, batch, max_rows=8):
                np.testing.assert_allclose(outcome[PROBABILITIES], expected, rtol=1e-5)
        with pytest.raises(InvalidTensorError, match="for a model without an input 'image'"):
            here.prepare(PreparedRows(remote))


def test_a_bad_input_is_refused_before_it_travels(served: ServedModel) -> None:
    with pytest.raises(InvalidTensorError, match="Row 0"):
        made(served).prepare(by_name(images(b"no image")))


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        ({"version": "2"}, ModelMismatchError, "Version 1 of 'digits' was requested, and it answered with '2'"),
        ({"model": "other"}, ModelMismatchError, "of 'other'"),
        ({"name": "scores"}, ProtocolError, "no output 'logits'"),
        ({"to": "s"}, ProtocolError, "the answer to request 's', not to r"),
    ],
)
def test_another_models_answer_is_an_error(
    served: ServedModel, answer: dict[str, str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        made(served).read(reply(np.zeros((1, 10), np.float32), **answer), "r", ROW)


def of_either_dialect(served: ServedModel) -> list[RemoteModel]:
    return [made(served), FirstlineModel(served, DEFAULT_LIMITS)]


@pytest.mark.parametrize("status", [301, 405, 418, 431, 511])
def test_the_status_of_a_proxy_is_not_about_the_request(served: ServedModel, status: int) -> None:
    for model in of_either_dialect(served):
        with pytest.raises(ProtocolError, match=f"status {status}"):
            model.read(HttpReply(status, {}, b"<html>"), "r", ROW)


@pytest.mark.parametrize(("status", "error"), [(400, RequestError), (500, FirstlineError), (501, FirstlineError)])
def test_only_other_servers_fail_without_a_code(served: ServedModel, status: int, error: type[FirstlineError]) -> None:
    failed = HttpReply(status, {}, b'{"error": "The shape is wrong."}')
    for model, kind in zip(of_either_dialect(served), (error, ProtocolError), strict=True):
        with pytest.raises(FirstlineError, match="The shape is wrong") as raised:
            model.read(failed, "r", ROW)
        assert type(raised.value) is kind


def test_a_gateway_refuses_a_request_with_a_code(served: ServedModel) -> None:
    refused = error_reply(InvalidTensorError("A row is negative."))
    with pytest.raises(InvalidTensorError, match="negative"):
        FirstlineModel(served, DEFAULT_LIMITS).read(HttpReply(refused.status, {}, refused.body), "r", ROW)


def test_a_missing_version_in_the_answer_is_the_requested_one(served: ServedModel) -> None:
    assert made(served).read(reply(np.zeros((1, 10), np.float32), version=""), "r", ROW)[PROBABILITIES].shape == (1, 10)


def test_numbers_that_are_no_probabilities_are_an_error(served: ServedModel) -> None:
    model = made(served)
    with pytest.raises(InferenceError, match="NaN"):
        model.read(reply(np.full((1, 10), np.nan, np.float32)), "r", ROW)
    with pytest.raises(InferenceError, match="for 2 rows"):
        model.read(reply(np.zeros((1, 10), np.float32)), "r", {"pixels": np.zeros((2, 1), np.float32)})


@pytest.mark.parametrize(
    "logits", [np.zeros((0, 10), np.float32), np.array([[b"a"] * 10], object)], ids=["no rows", "texts"]
)
def test_outputs_of_another_form_than_declared_are_an_error(served: ServedModel, logits: Array) -> None:
    with pytest.raises(ProtocolError, match="another shape or datatype than its metadata says"):
        made(served).read(reply(logits), "r", ROW)


def test_server_is_not_blamed_for_bundles_postprocessing(served: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise ValueError("operands could not be broadcast together")

    model = made(served)
    monkeypatch.setattr(model.loaded, "finish", failing)
    with pytest.raises(InferenceError, match="postprocessing of 'digits' failed: operands could not") as failed:
        model.read(reply(np.zeros((1, 10), np.float32)), "r", ROW)
    assert not is_executor_fault(failed.value)
    for other in (np.zeros((2, 10), np.float32), np.zeros((1, 9), np.float32), np.zeros((1, 10))):
        with pytest.raises(ProtocolError):
            model.read(reply(other), "r", ROW)


def named(part: str, **changes: Any) -> dict[str, Any]:
    return METADATA | {part: [METADATA[part][0] | changes]}


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (questions(ready=400), "is not ready"),
        (questions({"error": "x"}), "no 'inputs' as V2 describes them"),
        (questions(named("inputs", datatype="FP8")), "FP8"),
        (questions(named("inputs", shape=[])), "a tensor without an axis of rows"),
        (questions(named("inputs", shape={"1": 8})), "no 'inputs' as V2 describes them"),
        (questions(config={"parameters": {"sha256": {"string_value": "f" * 64}}}), "built from the file 'ffff"),
        (questions() | {INFER: HttpReply(404, {}, b'{"error": "unknown model"}')}, "unknown model"),
    ],
)
def test_a_server_without_the_model_says_why(served: ServedModel, found: dict[str, HttpReply], message: str) -> None:
    assert message in V2Model(served, RuntimeOptions(), DEFAULT_LIMITS).check(found)


def test_a_server_may_declare_an_output_without_a_shape(served: ServedModel) -> None:
    """It may be an output that is not used; one that is used is checked with each answer."""
    used = structs.replace(served.full, output="logits")
    model = V2Model(
        replace(served, manifest=structs.replace(served.manifest, full=used)), RuntimeOptions(), DEFAULT_LIMITS
    )
    more = [*METADATA["outputs"], {"name": "steps", "datatype": "FP32", "shape": []}]
    assert model.check(questions(METADATA | {"outputs": more})) == ""


def test_all_servers_must_take_and_give_the_same(served: ServedModel) -> None:
    model = made(served)
    other = named("inputs", name="image", shape=[1, 8, 8, 1])
    assert "than it does on another server" in model.check(questions(other))
    assert model.check(questions()) == "" and model.batch is None


@pytest.mark.parametrize("rows", [1, "1"])  # protobuf's JSON has 64-bit numbers as texts
@pytest.mark.parametrize("part", ["inputs", "outputs"])
def test_one_of_several_servers_may_fix_its_rows(served: ServedModel, part: str, rows: object) -> None:
    fixed, model = questions(named(part, shape=[rows, *METADATA[part][0]["shape"][1:]])), made(served)
    assert model.check(fixed) == "" and model.check(questions()) == ""
    assert model.batch == (1 if part == "inputs" else None)
    assert model.check(questions(config={"dynamic_batching": {}})) == ""  # the bundle allows joined rows


def test_a_servers_file_digest_is_compared_with_the_bundle(served: ServedModel) -> None:
    config = {"parameters": {"sha256": {"string_value": served.full.artefact.sha256.upper()}}}
    assert V2Model(served, RuntimeOptions(), DEFAULT_LIMITS).check(questions(config=config)) == ""


def test_servers_joining_requests_get_no_row_by_row_model(served: ServedModel) -> None:
    joins = questions(config={"dynamic_batching": {}})
    assert V2Model(served, RuntimeOptions(), DEFAULT_LIMITS).check(joins) == ""
    alone = structs.replace(served.manifest, full=structs.replace(served.full, batch=1))
    model = V2Model(replace(served, manifest=alone), RuntimeOptions(), DEFAULT_LIMITS)
    assert "remove dynamic_batching" in model.check(joins)
    assert model.check(questions(config={"max_batch_size": 8})) == ""
    bare = structs.replace(served.manifest, full=structs.replace(served.full, batch=1, without_rows=("pixels",)))
    model = V2Model(replace(served, manifest=bare), RuntimeOptions(), DEFAULT_LIMITS)
    assert "has no axis of rows" in model.check(questions())


def test_models_that_run_elsewhere_need_no_files_here(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes((DIGITS / "manifest.json").read_bytes())
    (only,) = ModelsFolder(tmp_path).load(None)
    assert only.loaded is None
    assert only.digest == only.full.digest
