from __future__ import annotations

from firstline_core import errors


def test_codes_are_unique_and_every_class_is_in_the_drawn_tree() -> None:
    classes = [
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.FirstlineError)
    ]
    assert set(errors.BY_CODE.values()) == set(classes)
    assert errors.__doc__ is not None
    for cls in classes:
        assert cls.__name__ in errors.__doc__


def test_capacity_and_link_errors_may_be_retried_and_a_request_error_may_not() -> None:
    assert errors.QueueFullError("x").retryable
    assert errors.LinkDownError("x").retryable
    assert not errors.InvalidTensorError("x").retryable
