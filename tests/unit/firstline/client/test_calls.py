import io
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import httpx
import numpy as np
import orjson
import pytest
from opentelemetry.trace import INVALID_SPAN, NonRecordingSpan, SpanContext, TraceFlags, TraceState, use_span

import firstline
from firstline.client import calls, connection
from firstline_core import errors
from firstline_core.protocol import http, oip
from firstline_core.protocol.http_transport import BlockingTransport
from firstline_core.types import Answer, InferRequest, InferResponse, Privacy, Reason, Route, Status, Tensor, Tier, Wait

ANSWER = Answer(
    "01890a5d-ac96-774b-bcce-b302099a8057", Status.FINAL, True, False, Tier.EDGE, Reason.CONFIDENT, 0.9, "d"
)


def response(status: int = 200, content: bytes = b"", **headers: str) -> httpx.Response:
    request = httpx.Request("POST", "http://127.0.0.1:8070/v2/models/m/infer")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, content=content, headers=named, request=request)


def sent(call: calls.Call) -> InferRequest:
    """What a server reads."""
    return oip.decode_request("m", call.content, http.header_length(httpx.Headers(call.headers)))


class TestInfer:
    def test_request_fields_are_encoded(self) -> None:
        call = calls.infer(
            "m",
            {"x": np.eye(2, dtype=np.float32)},
            {
                "route": "cloud",
                "privacy": Privacy.ANY,
                "wait": "first",
                "timeout_ms": 250,
                "priority": 1,
                "source": "gate",
            },
            client_id="mine",
            outputs=["y"],
        )
        found = sent(call)
        assert (call.method, call.path) == ("POST", "/v2/models/m/infer")
        assert (found.id, found.route, found.privacy, found.wait) == ("mine", Route.CLOUD, Privacy.ANY, Wait.FIRST)
        assert (found.deadline_s, found.priority, found.source) == (pytest.approx(0.25), 1, "gate")
        assert [output.name for output in found.outputs] == ["y"]
        assert found.binary_output
        np.testing.assert_array_equal(found.inputs[0].array, np.eye(2))

    def test_names_are_quoted_in_the_path(self) -> None:
        assert (
            calls.infer("a/b ?", {"x": [1]}, {}, version="1/..").path == "/v2/models/a%2Fb%20%3F/versions/1%2F../infer"
        )
        assert calls.infer_file("a/b", b"x", {}).path == "/firstline/v1/models/a%2Fb/infer"
        assert calls.answer("../x").path == "/firstline/v1/answers/..%2Fx"

    @pytest.mark.parametrize("text", ["\ud800", None])
    def test_text_that_no_path_carries_is_refused(self, text: Any) -> None:
        for call in (calls.answer, calls.forget, calls.metadata):
            with pytest.raises(errors.InvalidTensorError, match="cannot be sent as text"):
                call(text)
        with pytest.raises(errors.InvalidTensorError, match="a label of classes"):
            calls.infer_file("m", b"x", {"classes": [text]})
        with pytest.raises(errors.InvalidTensorError, match="version"):
            calls.metadata("m", "\ud800")

    def test_version_can_be_a_number(self) -> None:
        assert calls.infer("m", {"x": [1]}, {}, version=3).path == "/v2/models/m/versions/3/infer"
        assert calls.metadata("m", 0).path == "/v2/models/m/versions/0"

    @pytest.mark.parametrize("value", [b"png", [b"png"], (b"png",), np.array([b"png"], dtype=np.object_)])
    def test_bytes_are_accepted_in_every_form(self, value: Any) -> None:
        assert list(sent(calls.infer("m", {"image": value}, {})).inputs[0].array) == [b"png"]

    @pytest.mark.parametrize(
        "value", ["grüß", ["grüß"], ("grüß",), ["grüß".encode()], np.array(["grüß"]), np.array(["grüß"], object)]
    )
    def test_text_is_sent_as_utf8(self, value: Any) -> None:
        assert list(sent(calls.infer("m", {"text": value}, {})).inputs[0].array) == ["grüß".encode()]

    def test_text_that_is_no_unicode_is_refused(self) -> None:
        with pytest.raises(errors.InvalidTensorError, match="cannot be sent as text"):
            calls.infer("m", {"text": ["\ud800"]}, {})

    @pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "float64", "bool"])
    def test_numeric_arrays_keep_their_dtype(self, dtype: str) -> None:
        found = sent(calls.infer("m", {"x": np.ones((2, 3), dtype)[:, ::2]}, {})).inputs[0].array
        assert (found.dtype, found.shape) == (np.dtype(dtype), (2, 2))

    @pytest.mark.parametrize(
        "value", [[["text"]], [[1], [1, 2]], np.ones(2, ">f4"), np.array(["2026-01-01"], "datetime64[D]"), [1j]]
    )
    def test_unsupported_inputs_are_refused(self, value: Any) -> None:
        with pytest.raises(errors.InvalidTensorError, match="'x'"):
            calls.infer("m", {"x": value}, {})


@pytest.mark.parametrize(
    "make",
    [lambda options: calls.infer("m", {"x": [1]}, options), lambda options: calls.infer_file("m", b"x", options)],
)
class TestRequestOptions:
    def test_misspelt_option_is_refused(self, make: Any) -> None:
        with pytest.raises(TypeError, match="'privcy' is not an option of requests; there are route, privacy,"):
            make({"privcy": "local_only"})

    @pytest.mark.parametrize("timeout_ms", [0, -1, float("nan"), float("inf"), 1e30, None, "5"])
    def test_timeout_out_of_range_is_refused(self, make: Any, timeout_ms: Any) -> None:
        with pytest.raises(errors.InvalidTensorError, match=r"timeout_ms is .*at most 86400000 ms \(a day\)"):
            make({"timeout_ms": timeout_ms})

    @pytest.mark.parametrize("priority", [-1, 4])
    def test_priority_out_of_range_is_refused(self, make: Any, priority: int) -> None:
        with pytest.raises(errors.InvalidTensorError, match=rf"priority is {priority}; use 1 \(the highest\) to 3"):
            make({"priority": priority})


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"inputs": None}, "inputs is NoneType; give arrays by the names"),
        ({"inputs": [np.zeros(1)]}, "inputs is list;"),
        ({"inputs": {1: np.zeros(1)}}, "the name of an input is 1,"),
        ({"inputs": {"\ud800": np.zeros(1)}}, "cannot be sent as text"),
        ({"client_id": "\ud800"}, r"id is '\ud800', which cannot be sent as text"),
        ({"model": "\ud800"}, r"model is '\ud800', which cannot be sent as text"),
        ({"outputs": ["\ud800"]}, "the name of an output is"),
        ({"outputs": "probabilities"}, "outputs is the string 'probabilities'; give a list of names."),
    ],
)
def test_text_that_cannot_be_sent_is_refused(overrides: dict[str, Any], sentence: str) -> None:
    arguments: dict[str, Any] = {
        "model": "digits",
        "inputs": {"image": np.zeros((1, 2), np.float32)},
        "options": {},
    } | overrides
    with pytest.raises(errors.InvalidTensorError) as refused:
        calls.infer(**arguments)
    assert sentence in refused.value.message


@pytest.mark.parametrize(("left_s", "wait_s"), [(100.0, 5), (3.9, 3), (0.5, 0), (-1.0, 0), (float("inf"), 5)])
def test_long_polling_is_limited_by_the_time_left(left_s: float, wait_s: int) -> None:
    assert (calls.long_polling(calls.answer("x"), left_s).headers or {})["Prefer"] == f"wait={wait_s}"


def test_a_later_answer_shows_what_the_options_select() -> None:
    call = calls.prediction("r-1", {"min_score": 0.5, "classes": ["a, b"], "masks": "rle", "wait": "first"})
    assert call.params == {"min_score": "0.5", "classes": ["a, b"], "masks": "rle"}


def test_invalid_choice_lists_its_values() -> None:
    with pytest.raises(errors.InvalidTensorError, match="privacy is 'none'; use one of any, local_only"):
        calls.infer("m", {"x": [1]}, {"privacy": "none"})


class TestInferFile:
    def test_file_can_be_a_path_or_text(self, tmp_path: Path) -> None:
        file = tmp_path / "scan.png"
        file.write_bytes(b"png")
        assert calls.infer_file("m", file, {}).content == calls.infer_file("m", str(file), {}).content == b"png"

    def test_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(errors.InvalidTensorError, match=r"scan\.png does not exist"):
            calls.infer_file("m", tmp_path / "scan.png", {})
        with pytest.raises(errors.InvalidTensorError, match=r"great thanks does not exist.* give a text as bytes"):
            calls.infer_file("m", "great thanks", {})

    @pytest.mark.parametrize(
        ("file", "sentence"),
        [
            (np.zeros((2, 2, 3), np.uint8), "file is ndarray; give a path, or the content"),
            (None, "file is NoneType;"),
            (io.BytesIO(b"png"), "file is BytesIO;"),
            ("a\0b.png", "file is the path 'a\\x00b.png'"),
            ("\ud800.png", "file is the path '\\ud800.png'"),
        ],
    )
    def test_what_is_not_a_file_is_refused(self, file: Any, sentence: str) -> None:
        with pytest.raises(errors.InvalidTensorError) as refused:
            calls.infer_file("m", file, {})
        assert sentence in refused.value.message

    def test_options_are_query_parameters(self) -> None:
        call = calls.infer_file(
            "m",
            b"x",
            {"route": Route.EDGE, "privacy": "local_only", "timeout_ms": 0.0001, "priority": 3, "source": "gate"},
            client_id="mine",
        )
        assert call.params == {
            "route": "edge",
            "privacy": "local_only",
            "timeout": "1",
            "priority": "3",
            "source": "gate",
            "id": "mine",
        }

    def test_view_options_are_query_parameters(self) -> None:
        call = calls.infer_file("m", b"x", {"min_score": 0.5, "classes": ["a", "b"], "max_objects": 3}, client_id="i")
        assert call.params == {"min_score": "0.5", "max_objects": "3", "classes": ["a", "b"], "id": "i"}
        with pytest.raises(errors.InvalidTensorError, match="classes is the string 'person'; give a list of labels"):
            calls.infer_file("m", b"x", {"classes": "person"})
        with pytest.raises(TypeError, match="'min_score' is not an option of requests"):
            calls.infer("m", {"x": [1]}, {"min_score": 0.5})


class TestReadInfer:
    def test_tensors_and_answer_are_read(self) -> None:
        answer = InferResponse("m", "3", (Tensor("y", np.ones((1, 2), np.float32)),), answer=ANSWER)
        encoded = oip.encode_response(InferRequest("m", (), "", binary_output=True), answer)
        found = calls.read_infer(response(200, encoded.body, **http.headers_for(encoded)))
        assert (found.model, found.version, found.answer) == ("m", "3", ANSWER)
        np.testing.assert_array_equal(found.output("y"), [[1, 1]])

    @pytest.mark.parametrize(
        ("content", "headers"),
        [(b"<html>", {}), (b"{}", {}), (b"{}", {"Inference_Header_Content_Length": "many"}), (b"\xff" * 100, {})],
    )
    def test_malformed_answer_is_a_protocol_error(self, content: bytes, headers: dict[str, str]) -> None:
        with pytest.raises(errors.ProtocolError, match=r"http://127.0.0.1:8070\S+ did not answer as a V2 server does"):
            calls.read_infer(response(200, content, **headers))


class TestReadAnswer:
    def test_answer_to_another_request_is_a_protocol_error(self) -> None:
        answer = InferResponse("m", "3", (Tensor("y", np.ones((1, 2), np.float32)),), answer=ANSWER)
        encoded = oip.encode_response(InferRequest("m", (), "", binary_output=True), answer)
        reply = response(200, encoded.body, **http.headers_for(encoded))
        assert calls.answer(ANSWER.request_id.upper()).read(reply).answer == ANSWER
        with pytest.raises(errors.ProtocolError, match=f"answer to request {ANSWER.request_id}, not to other"):
            calls.answer("other").read(reply)


class TestReadPrediction:
    def reply(self, **changes: Any) -> httpx.Response:
        from firstline_core.protocol import file_inference
        from firstline_core.tasks import describe
        from firstline_core.tasks.classification import Classification

        answer = InferResponse("m", "3", (Tensor("probabilities", np.array([[0.2, 0.8]], np.float32)),), answer=ANSWER)
        results = describe(Classification(("no", "yes")), answer.arrays)
        return response(200, orjson.dumps(file_inference.answer_json(answer, results) | changes))

    def test_label_is_read(self) -> None:
        found = calls.read_prediction(self.reply())
        assert isinstance(found, firstline.Classification)
        assert (found.label, found.probability) == ("yes", pytest.approx(0.8))
        assert [label for label, _ in found.top] == ["yes", "no"]
        assert (found.model, found.version, found.answer) == ("m", "3", ANSWER)

    @pytest.mark.parametrize(
        "changes",
        [
            {"label": None, "top": 5},
            {"probability": "x"},
            {"tier": "moon"},
            {"top": [{}]},
            {"objects": [{"label": "a"}]},
            {"objects": 5},
            {"results": [{}]},
            {"outputs": []},
        ],
    )
    def test_malformed_prediction_is_a_protocol_error(self, changes: dict[str, Any]) -> None:
        with pytest.raises(errors.ProtocolError, match="did not answer as a Firstline server does"):
            calls.read_prediction(self.reply(**changes))

    @pytest.mark.parametrize("content", [b"<html>", b"[]", b"{}"])
    def test_answer_that_is_not_json_is_a_protocol_error(self, content: bytes) -> None:
        with pytest.raises(errors.ProtocolError):
            calls.read_prediction(response(200, content))

    def test_answer_without_the_id_of_the_call_is_a_protocol_error(self) -> None:
        call = calls.infer_file("m", b"x", {}, client_id="mine")
        assert call.params == {"id": "mine"}
        assert call.read(self.reply(id="mine")).answer == ANSWER
        for changes in ({"id": "another"}, {"id": ["mine"]}, {"id": None}, {}):
            with pytest.raises(errors.ProtocolError, match=r"answer to request .*, not to mine"):
                call.read(self.reply(**changes))

    def test_each_call_has_an_id_of_its_own(self) -> None:
        assert len({str(calls.infer_file("m", b"x", {}).params) for _ in range(3)}) == 3


class TestRefusals:
    @pytest.mark.parametrize(
        "kind", [errors.UnknownModelError, errors.UnauthorizedError, errors.PayloadTooLargeError, errors.QueueFullError]
    )
    def test_server_error_becomes_its_class(self, kind: type[errors.FirstlineError]) -> None:
        reply = http.error_reply(kind("The reason.", retry_after_s=2.0))
        with pytest.raises(kind, match=r"^The reason\.$") as caught:
            calls.read_infer(response(reply.status, reply.body, **reply.headers))
        assert type(caught.value) is kind
        assert caught.value.retry_after_s == 2.0

    @pytest.mark.parametrize("content", [b"", b"<html>Not found</html>", b"[]", b'{"detail":"Not Found"}'])
    def test_foreign_404_is_not_an_unknown_model(self, content: bytes) -> None:
        with pytest.raises(errors.ProtocolError, match="status 404, and not as a V2 server does; is the address right"):
            calls.read_metadata(response(404, content))

    def test_other_v2_servers_error_text_is_preserved(self) -> None:
        with pytest.raises(errors.UnknownModelError, match="no such model"):
            calls.read_metadata(response(404, b'{"error":"no such model"}'))
        with pytest.raises(errors.RequestError, match="bad shape"):
            calls.read_infer(response(400, b'{"error":"bad shape"}'))

    def test_not_ready_is_not_an_error(self) -> None:
        assert calls.read_ready(response(200, b""))
        assert not calls.read_ready(response(400, b""))
        with pytest.raises(errors.UnauthorizedError):
            calls.read_ready(response(401, b""))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (httpx.ConnectError(""), errors.LinkDownError),
        (httpx.ConnectTimeout(""), errors.LinkDownError),
        (httpx.ReadError(""), errors.LinkDownError),
        (httpx.ReadTimeout(""), errors.RemoteTimeoutError),
        (httpx.PoolTimeout(""), errors.RemoteTimeoutError),
        (httpx.RemoteProtocolError("odd"), errors.ProtocolError),
        (httpx.DecodingError("odd"), errors.ProtocolError),
    ],
)
def test_httpx_errors_become_firstline_errors(error: httpx.HTTPError, kind: type[errors.FirstlineError]) -> None:
    found = connection.link_error(error, "http://127.0.0.1:8070")
    assert type(found) is kind
    assert found.message.startswith("http://127.0.0.1:8070 ")
    assert ": ." not in found.message


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://gateway.example", "through the proxy proxy.example:3128: refused. Correct the variables of the proxy"),
        ("http://127.0.0.1:8070", "reached: refused. Start the server"),
        ("unix:/run/agent.socket", "reached: refused. Start the server"),
    ],
)
def test_failure_names_proxy_without_its_password(monkeypatch: pytest.MonkeyPatch, url: str, sentence: str) -> None:
    monkeypatch.setenv("http_proxy", "http://user:secret@proxy.example:3128")
    message = connection.link_error(httpx.ConnectError("refused"), url).message
    assert sentence in message and "secret" not in message


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8070",
        "localhost",
        "ftp://host",
        "http://",
        "http://[::1",
        "http://a:b",
        "http://a?b=1",
        "http://a#b",
    ],
)
def test_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(errors.ConfigError, match="URL"):
        connection.base_url(url)


@pytest.mark.parametrize("url", ["https://me:secret@host", "https://me:secret@host?b=1", "https://me:secret@host#b"])
def test_refused_url_is_shown_without_its_password(url: str) -> None:
    with pytest.raises(errors.ConfigError, match="has a user or a password") as refused:
        connection.base_url(url)
    assert "secret" not in refused.value.message


@pytest.mark.parametrize("timeout_s", [0, -1.0, math.nan, math.inf, 1e20, None, "3"])
def test_a_timeout_that_no_socket_takes_is_refused(timeout_s: Any) -> None:
    with pytest.raises(errors.ConfigError, match=r"timeout_s is .*above 0 and at most 86400 s"):
        firstline.Client("http://127.0.0.1:8070", timeout_s=timeout_s)


@pytest.mark.parametrize("files", ["photos", b"photo", Path("photos")])
def test_one_file_is_no_list_of_files(files: Any) -> None:
    with firstline.Client() as client, pytest.raises(errors.InvalidTensorError, match="give a list of files"):
        client.infer_files("m", files)


class TestMetadata:
    FOUND: ClassVar[dict[str, Any]] = {
        "name": "m",
        "versions": ["1"],
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}],
        "outputs": [],
    }

    def test_metadata_is_read(self) -> None:
        found = calls.read_metadata(response(200, orjson.dumps(self.FOUND)))
        assert (found.name, found.versions, found.labels) == ("m", ("1",), ())
        assert (found.inputs[0].datatype, found.inputs[0].shape) == ("FP32", (-1,))

    @pytest.mark.parametrize("changes", [{"inputs": None}, {"inputs": [{}]}, {"inputs": ["x"]}, {"outputs": 5}])
    def test_malformed_metadata_is_a_protocol_error(self, changes: dict[str, Any]) -> None:
        with pytest.raises(errors.ProtocolError, match="did not describe a V2 model"):
            calls.read_metadata(response(200, orjson.dumps(self.FOUND | changes)))

    def test_models_are_listed_with_their_versions(self) -> None:
        entries = [{"name": name, "version": version} for name, version in (("a", "1"), ("b", 3), ("a", "2"))]
        assert calls.read_models(response(200, orjson.dumps(entries))) == {"a": ("1", "2"), "b": ("3",)}
        for content in (b"no JSON", b"[1]", b"[{}]", b"1"):
            with pytest.raises(errors.ProtocolError, match="did not list its models"):
                calls.read_models(response(200, content))


class TestToken:
    @pytest.mark.parametrize("token", ["flt_abc", "flt_abc\n", " flt_abc\r\n"])
    def test_line_end_is_removed_from_the_token(self, token: str) -> None:
        assert connection.authorization(token) == {"Authorization": "Bearer flt_abc"}

    @pytest.mark.parametrize("token", [None, "", "\n"])
    def test_no_token_sends_no_header(self, token: str | None) -> None:
        assert connection.authorization(token) == {}

    @pytest.mark.parametrize(
        "token", ["flt_se cret", "flt_se\ncret", "flt_secr\u00e9t", "flt_se\0cret", "flt_\u2028cret"]
    )
    def test_invalid_token_is_refused_and_not_quoted(self, token: str) -> None:
        for make in (firstline.Client, firstline.AsyncClient):
            with pytest.raises(errors.ConfigError) as caught:
                make(token=token)
            assert "cret" not in caught.value.message
            assert caught.value.__cause__ is None


class TestTrace:
    PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    def trace_headers(self, **options: Any) -> list[dict[str, str]]:
        requests = [calls.infer("m", {"x": [1]}, options), calls.infer_file("m", b"x", options)]
        headers = [dict(each.headers or {}) for each in requests]
        return [{name: each[name] for name in ("traceparent", "tracestate") if name in each} for each in headers]

    def test_named_trace_is_sent(self) -> None:
        assert self.trace_headers() == [{}, {}]
        assert self.trace_headers(traceparent=self.PARENT) == [{"traceparent": self.PARENT}] * 2
        named = {"traceparent": self.PARENT, "tracestate": "a=1"}
        assert self.trace_headers(**named) == [named] * 2

    @pytest.mark.parametrize("value", [None, "", "00-x", PARENT.upper(), PARENT + "\r\nX: y"])
    def test_malformed_trace_is_ignored(self, value: str | None) -> None:
        assert self.trace_headers(traceparent=value, tracestate="a=1") == [{}, {}]

    def test_current_opentelemetry_span_is_sent(self) -> None:
        span = NonRecordingSpan(SpanContext(10, 11, True, TraceFlags(1), TraceState([("a", "1")])))
        theirs = {"traceparent": f"00-{10:032x}-{11:016x}-01", "tracestate": "a=1"}
        with use_span(span):
            assert self.trace_headers() == [theirs] * 2
            assert self.trace_headers(traceparent=self.PARENT) == [{"traceparent": self.PARENT}] * 2
            assert calls.with_current_trace({"route": "edge"}) == {"route": "edge"} | theirs
            with use_span(INVALID_SPAN):
                assert self.trace_headers() == [{}, {}]
        assert self.trace_headers() == [{}, {}]

    def test_many_requests_have_the_trace_of_their_call(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[object] = []

        def send(request: httpx.Request) -> httpx.Response:
            seen.append(request.headers.get("traceparent"))
            decoded = oip.decode_request("m", request.read(), http.header_length(request.headers))
            reply = oip.encode_response(decoded, InferResponse("m", "1", decoded.inputs, id=decoded.id))
            return httpx.Response(200, headers=http.headers_for(reply), stream=httpx.ByteStream(reply.body))

        monkeypatch.setattr(BlockingTransport, "handle_request", lambda _, request: send(request))
        with firstline.Client() as client:
            with use_span(NonRecordingSpan(SpanContext(10, 11, True, TraceFlags(0)))):
                outcomes = client.infer_many("m", [{"x": [1]}] * 3)
            assert len(list(outcomes)) == 3
        assert seen == [f"00-{10:032x}-{11:016x}-00"] * 3

    def test_opentelemetry_is_not_imported(self) -> None:
        code = (
            "import sys; from firstline.client import calls; calls.infer_file('m', b'x', {}); "
            "print(*(name for name in sys.modules if name.startswith('opentelemetry')))"
        )
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert ran.stdout.strip() == ""
