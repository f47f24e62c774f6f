import sys
import unicodedata
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from firstline_core.errors import InvalidTensorError, ModelLoadError, PayloadTooLargeError
from firstline_core.processing import text
from firstline_core.processing.compile import compile_preprocess
from firstline_core.processing.steps import DecodeText, InputSpec, Mono, PreStep, Scale, Tokenize
from firstline_core.storage.artefact import Artefact
from firstline_core.types import Tensor, object_array

tokenizers = pytest.importorskip("tokenizers", reason="the extra text is not installed")

TEXT = InputSpec("text", "BYTES", (-1,), "text")
FILE = Artefact("tokenizer.json", "0" * 64, 1)
VOCABULARY = {"[PAD]": 5, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "go": 6, "##ing": 7, "stop": 8}


def tokenizer_file(*, with_ends: bool) -> bytes:
    """A file of tokenizers; with ends it also has its own truncation and padding, which the step replaces."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(VOCABULARY, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.Lowercase()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    if with_ends:
        tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        tokenizer.enable_truncation(3)
        tokenizer.enable_padding(length=9, pad_id=5, pad_token="[PAD]")
    return tokenizer.to_str().encode()


BARE, WITH_ENDS = (tokenizer_file(with_ends=with_ends) for with_ends in (False, True))


def run(*steps: PreStep, of: tuple[bytes, ...], file: bytes = WITH_ENDS, spec: InputSpec = TEXT) -> Any:
    compiled = compile_preprocess(
        steps, spec, lambda _: lambda a: a, load_encoder=lambda step: text.read_encoder(step, file)
    )
    return compiled.run(Tensor("text", object_array(of))).rows


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (DecodeText(), " É  ﬁ "),
        (DecodeText("NFC"), " É  ﬁ "),
        (DecodeText("NFKC", lower=True), " é  fi "),
        (DecodeText(strip=True), "É  ﬁ"),
    ],
)
def test_text_is_decoded_and_normalised(step: DecodeText, expected: str) -> None:
    raw = " E\N{COMBINING ACUTE ACCENT}  ﬁ " if step.form else " É  ﬁ "
    assert run(step, of=(raw.encode(),)).tolist() == [expected]


def test_a_byte_order_mark_is_dropped() -> None:
    assert run(DecodeText(), of=("\N{ZERO WIDTH NO-BREAK SPACE}hi".encode(),)).tolist() == ["hi"]


def test_tokens_have_ids_mask_and_types() -> None:
    rows = (b"Going", b"stop going there")
    found = {part: run(DecodeText(), Tokenize(FILE, part), of=rows) for part in ("ids", "mask", "types")}
    assert found["ids"].dtype == np.int64
    assert found["ids"].tolist() == [[2, 6, 7, 3, 5, 5], [2, 8, 6, 7, 1, 3]]
    assert found["mask"].tolist() == [[1, 1, 1, 1, 0, 0], [1] * 6]
    assert found["types"].tolist() == [[0] * 6] * 2


def test_ids_and_mask_of_a_request_come_from_one_tokenisation() -> None:
    read, encoded = text.read_encoder(Tokenize(FILE), WITH_ENDS), list[str]()

    def encode(row: str) -> Any:
        encoded.append(row)
        return read.encode(row)

    encoder, parts = text.TextEncoder(encode, read.pad_id), (Tokenize(FILE, "ids"), Tokenize(FILE, "mask"))
    ids, mask = (
        compile_preprocess((DecodeText(), part), TEXT, lambda _: lambda a: a, load_encoder=lambda _: encoder)
        for part in parts
    )
    rows, shared = Tensor("text", object_array([b"going", b"go"])), text.Shared()
    assert ids.run(rows, shared=shared).rows.tolist() == [[2, 6, 7, 3], [2, 6, 3, 5]]
    assert mask.run(rows, shared=shared).rows.tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert encoded == ["going", "go"]
    mask.run(rows, shared={})
    assert len(encoded) == 4


def test_tokens_need_a_tokenizer() -> None:
    with pytest.raises(ModelLoadError, match="is absent"):
        compile_preprocess((DecodeText(), Tokenize(FILE)), TEXT, lambda _: lambda a: a)


def test_rows_are_padded_to_the_declared_length() -> None:
    found = run(DecodeText(), Tokenize(FILE, length=7, padding="length"), of=(b"go",))
    assert found.tolist() == [[2, 6, 3, 5, 5, 5, 5]]


def test_long_texts_are_cut_only_where_the_recipe_says_so() -> None:
    assert run(DecodeText(), Tokenize(FILE, length=4, truncate=True), of=(b"go stop go",)).tolist() == [[2, 6, 8, 3]]
    with pytest.raises(InvalidTensorError, match="Row 1 of input 'text' has 5 tokens; this model takes 4"):
        run(DecodeText(), Tokenize(FILE, length=4), of=(b"go", b"go stop go"))


def test_an_empty_text_has_a_token() -> None:
    step = DecodeText()
    assert run(step, Tokenize(FILE, "mask"), of=(b"",)).tolist() == [[1, 1]]
    for part, expected in (("ids", [[5], [6]]), ("mask", [[1], [1]])):
        assert run(step, Tokenize(FILE, part), of=(b" ", b"go"), file=BARE).tolist() == expected


def test_a_text_that_is_not_utf_8_is_refused_by_its_row() -> None:
    with pytest.raises(InvalidTensorError, match="Row 1 of input 'text' is not UTF-8 text: byte 2 is 0xff"):
        run(DecodeText(), of=(b"a", b"ab\xff"))


def test_long_texts_are_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "TEXT_LIMIT_BYTES", 3)
    monkeypatch.setattr(text, "TOTAL_LIMIT_BYTES", 5)
    with pytest.raises(PayloadTooLargeError, match="has 4 bytes"):
        run(DecodeText(), of=(b"abcd",))
    with pytest.raises(PayloadTooLargeError, match="6 with the rows before it"):
        run(DecodeText(), of=(b"abc", b"abc"))


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ((Tokenize(FILE),), "decode_text comes first"),
        ((DecodeText(), Tokenize(FILE), Scale()), "decode_text comes first, then at most tokenize"),
        ((Mono(), DecodeText()), "audio steps"),
    ],
)
def test_text_steps_have_an_order(steps: tuple[PreStep, ...], reason: str) -> None:
    with pytest.raises(ModelLoadError, match=reason):
        run(*steps, of=(b"a",))


def test_text_steps_need_bytes() -> None:
    with pytest.raises(ModelLoadError, match="decode_text needs BYTES"):
        run(DecodeText(), of=(b"a",), spec=InputSpec("x", "FP32", (-1, 2)))


def test_another_file_than_a_tokenizer_is_refused() -> None:
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json is not a file of tokenizers"):
        run(DecodeText(), Tokenize(FILE), of=(b"a",), file=b"{}")


def test_a_tier_without_the_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(ModelLoadError, match=r"needs the package 'tokenizers'.*pip install 'firstline\[text\]'"):
        run(DecodeText(), Tokenize(FILE), of=(b"a",))
    assert run(DecodeText(), of=(b"a",)).tolist() == ["a"]


@pytest.mark.parametrize("marks", ["\u0315\u0316", "\u0f73", "\U0001d165"])
def test_too_many_marks_in_a_row_are_not_normalised(marks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = "a" + (marks * 30)[:30] + "e\u0301"
    assert run(DecodeText("NFD"), of=(allowed.encode(),)).tolist() == [unicodedata.normalize("NFD", allowed)]
    refused = "a" + (marks * 31)[:31]
    assert run(DecodeText(), of=(refused.encode(),)).tolist() == [refused]
    monkeypatch.setattr(text, "unicodedata", SimpleNamespace(combining=unicodedata.combining))  # nothing is normalised
    for around in ("{}", "{}b", "\u4e00{}\U0002f800"):
        with pytest.raises(InvalidTensorError, match="Row 0 of input 'text' has more than 30 combining marks in a row"):
            run(DecodeText("NFC"), of=(around.format(refused).encode(),))


def test_all_marks_are_known() -> None:
    found = [chr(point) for point in range(sys.maxunicode + 1) if not 0xD800 <= point < 0xE000]
    marks = [c for c in found if all(map(unicodedata.combining, unicodedata.normalize("NFKD", c)))]
    for mark in marks:
        with pytest.raises(InvalidTensorError, match="combining marks"):
            text.decode((mark * 31).encode(), DecodeText("NFC"), "Row 0")
