from __future__ import annotations

from firstline_core import errors


def test_codes_are_unique_and_documented() -> None:
    classes = [
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.FirstlineError)
    ]
    assert set(errors.BY_CODE.values()) == set(classes)
    assert errors.__doc__ is not None
    for cls in classes:
        assert cls.__name__ in errors.__doc__


def test_only_capacity_and_link_errors_are_retryable() -> None:
    assert errors.QueueFullError("x").retryable
    assert errors.LinkDownError("x").retryable
    assert not errors.InvalidTensorError("x").retryable
