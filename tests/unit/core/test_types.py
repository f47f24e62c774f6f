import msgspec
import numpy as np
import pytest

from firstline_core.errors import InvalidTensorError
from firstline_core.types import InferResponse, Name, Tensor, TensorSpec


@pytest.mark.parametrize("name", ["a", "press-7", "0", "A.b_c-D", "x" * 64])
def test_names(name: str) -> None:
    assert msgspec.convert(name, Name) == name


@pytest.mark.parametrize("name", ["", "-a", ".a", "a/b", "a b", "a\n", "a\0", "é", "x" * 65, "+", "#"])
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(name, Name)


def test_only_the_declared_outputs_of_an_answer_are_taken() -> None:
    both = tuple(Tensor(name, np.zeros((1, 2), np.float32)) for name in ("added", "values"))
    response = InferResponse("m", "1", both)
    assert list(response.arrays_of([TensorSpec("values", "FP32", (-1, 2))])) == ["values"]
    with pytest.raises(InvalidTensorError, match="no output 'other'"):
        response.arrays_of([TensorSpec("other", "FP32", (-1, 2))])
