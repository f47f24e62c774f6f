"""Runs the text steps: decoding and normalising UTF-8, and tokenising with a file of the library `tokenizers`."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from firstline_core.errors import InvalidTensorError, ModelLoadError, PayloadTooLargeError, absent_package
from firstline_core.processing.steps import DecodeText, Tokenize
from firstline_core.types import Array, Tensor

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

TEXT_LIMIT_BYTES = 1 << 20
"""Of one text."""

TOTAL_LIMIT_BYTES = 8 << 20
"""Of all texts of a request: a second or two of one core."""

MARKS_LIMIT = 30
"""Combining marks in a row, of a text that is normalised: Unicode's stream-safe text format (UAX #15, section 13)."""

_MARKS_END = 0x20000  # no character from here on is a combining mark

_PAD_TOKENS = ("[PAD]", "<pad>", "<PAD>", "<|pad|>")


class TextProcessing:
    """The text steps of a model, from BYTES (rows,) to texts (rows,), or INT64 (rows, tokens).

    Args:
        decode: how texts are decoded and normalised.
        tokenize: None if the model takes texts.
        content: of the file of `tokenize`.

    Raises:
        ModelLoadError: the library is not installed, or the file is not a tokenizer.
    """

    def __init__(self, decode: DecodeText, tokenize: Tokenize | None, content: bytes = b"") -> None:
        self._decode = decode
        self._tokenizer = None if tokenize is None else _Tokenizer(tokenize, content)

    def run(self, tensor: Tensor) -> Array:
        """Runs the steps.

        Raises:
            InvalidTensorError: a row that is not UTF-8, or has more tokens than the model takes.
            PayloadTooLargeError: a text over a limit.
        """
        texts = self._texts(tensor)
        if self._tokenizer is None:
            array = np.empty(len(texts), object)
            array[:] = texts
            return array
        return self._tokenizer.run(texts, tensor.name)

    def _texts(self, tensor: Tensor) -> list[str]:
        total, texts = 0, list[str]()
        for row, element in enumerate(tensor.array):
            where = f"Row {row} of input '{tensor.name}'"
            _check_bytes(element, where)
            total += len(element)
            if len(element) > TEXT_LIMIT_BYTES or total > TOTAL_LIMIT_BYTES:
                raise PayloadTooLargeError(
                    f"{where} has {len(element)} bytes of text, {total} with the rows before it; at most "
                    f"{TEXT_LIMIT_BYTES} are accepted, and {TOTAL_LIMIT_BYTES} in a request."
                )
            texts.append(decode(element, self._decode, where))
        return texts


def decode(encoded: bytes, step: DecodeText, where: str) -> str:
    """Decodes and normalises one text.

    Args:
        encoded: UTF-8; a byte order mark at the start is dropped.
        step: the normalisation.
        where: the row, for messages.

    Raises:
        InvalidTensorError: not UTF-8, or more combining marks in a row than are normalised.
    """
    text = _decoded(encoded, where)
    if step.form:
        # Marks are sorted in quadratic time.
        if not text.isascii() and _longest_marks(text) > MARKS_LIMIT:
            raise InvalidTensorError(f"{where} has more than {MARKS_LIMIT} combining marks in a row; remove some.")
        text = unicodedata.normalize(step.form, text)
    if step.lower:
        text = text.lower()
    return text.strip() if step.strip else text


def check_encoding(encoded: bytes, where: str) -> None:
    """Checks that a text is UTF-8.

    Raises:
        InvalidTensorError: it is not.
    """
    _check_bytes(encoded, where)
    _decoded(encoded, where)


def _check_bytes(element: object, where: str) -> None:
    if not isinstance(element, bytes):
        raise InvalidTensorError(f"{where} is of type {type(element).__name__}; text is bytes in UTF-8.")


def _decoded(encoded: bytes, where: str) -> str:
    try:
        return encoded.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidTensorError(
            f"{where} is not UTF-8 text: byte {error.start} is {encoded[error.start]:#04x}."
        ) from error


def _longest_marks(text: str) -> int:
    """Returns the most combining marks that follow each other; in linear time."""
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    others = np.flatnonzero(~_is_mark()[np.minimum(points, _MARKS_END)])
    return int(np.diff(others, prepend=-1, append=len(points)).max()) - 1


@lru_cache(maxsize=1)
def _is_mark() -> NDArray[np.bool_]:
    """Returns whether each code point is normalised to nothing but combining marks."""
    normalised = [unicodedata.normalize("NFKD", chr(point)) for point in range(_MARKS_END + 1)]
    return np.array([all(unicodedata.combining(part) for part in parts) for parts in normalised])


class _Tokenizer:
    """A tokenizer whose truncation and padding are those of the step, whatever the file says."""

    def __init__(self, step: Tokenize, content: bytes) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise absent_package(error, "Texts with tokens", "text") from error
        try:
            self._tokenizer: Tokenizer = Tokenizer.from_buffer(content)
        except Exception as error:  # the library raises no other type
            raise ModelLoadError(f"{step.artefact.file} is not a file of tokenizers: {error}.") from error
        self._step = step
        self._pad_id = _pad_id(self._tokenizer)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        if step.truncate:
            self._tokenizer.enable_truncation(step.length)

    def run(self, texts: Sequence[str], name: str) -> NDArray[np.int64]:
        step = self._step
        # One after the other: the library's batches would take all cores.
        encodings = [self._tokenizer.encode(text) for text in texts]
        for row, encoding in enumerate(encodings):
            if len(encoding.ids) > step.length:
                raise InvalidTensorError(
                    f"Row {row} of input '{name}' has {len(encoding.ids)} tokens; this model takes {step.length}. "
                    "Send a shorter text."
                )
        length = step.length if step.padding == "length" else max(1, *(len(encoding.ids) for encoding in encodings))
        filling = self._pad_id if step.part == "ids" else 0
        rows = np.full((len(texts), length), filling, np.int64)
        for row, encoding in enumerate(encodings):
            values = _part(encoding, step.part)
            rows[row, : len(values)] = values
            if not values and step.part == "mask":
                rows[row, 0] = 1  # models divide by the number of tokens
        return rows


def _part(encoding: Encoding, part: str) -> Sequence[int]:
    match part:
        case "ids":
            found: Any = encoding.ids
        case "mask":
            found = encoding.attention_mask
        case _:
            found = encoding.type_ids
    values: Sequence[int] = found
    return values


def _pad_id(tokenizer: Tokenizer) -> int:
    """Returns the id of the padding: of the file's padding, else of a usual token, else 0."""
    if tokenizer.padding is not None:
        return int(tokenizer.padding["pad_id"])
    found = (tokenizer.token_to_id(token) for token in _PAD_TOKENS)
    return next((number for number in found if number is not None), 0)
