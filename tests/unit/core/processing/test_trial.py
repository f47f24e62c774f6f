import pytest

from firstline_core.processing.steps import DecodeText, InputSpec, Tokenize
from firstline_core.processing.trial import made_up_row
from firstline_core.storage.artefact import Artefact

TEXT = InputSpec("text", "BYTES", (-1,), "text")


@pytest.mark.parametrize(("length", "most_bytes"), [(1, 1), (8, 1), (16, 8), (512, 512)])
def test_a_text_has_no_more_tokens_than_the_model_takes(length: int, most_bytes: int) -> None:
    steps = (DecodeText(), Tokenize(Artefact("tokenizer.json", "0" * 64, 1), length=length))
    row = made_up_row(TEXT, steps, (-1, length), typical=True)
    assert row is not None and 1 <= len(row[0]) <= most_bytes
    whole = made_up_row(TEXT, (DecodeText(),), (-1,), typical=True)
    assert whole is not None and whole[0].startswith(row[0]) and (length < 512 or len(row[0]) == len(whole[0]))
