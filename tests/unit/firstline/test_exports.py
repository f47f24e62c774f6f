"""What applications import: all of it, and nothing by accident."""

import inspect
import types
import typing
from dataclasses import is_dataclass
from enum import Enum

import pytest
from msgspec import Struct

import firstline
import firstline.errors
import firstline.exports
import firstline_core.errors


def _named(hint: object) -> set[type]:
    """The classes of ours in an annotation."""
    inner = [found for part in typing.get_args(hint) for found in _named(part)]
    own = isinstance(hint, type) and hint.__module__.startswith("firstline")
    return {*inner, hint} if own else set(inner)


def test_all_is_what_is_there() -> None:
    public = {
        name
        for name, value in vars(firstline.exports).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType) and name != "annotations"
    }
    assert sorted(firstline.__all__) == sorted({*public, "errors"})
    assert set(firstline.__all__) <= set(dir(firstline))
    with pytest.raises(AttributeError, match="module 'firstline' has no attribute 'Cleint'"):
        firstline.Cleint  # noqa: B018


def test_what_the_clients_give_can_be_imported_from_where_they_are() -> None:
    needed: set[type] = set()
    for client in (firstline.Client, firstline.AsyncClient):
        for name, method in vars(client).items():
            if inspect.isfunction(method) and not name.startswith("_"):
                needed |= _named(typing.get_type_hints(method).get("return"))
    reached: set[type] = set()
    while needed - reached:
        found = (needed - reached).pop()
        reached.add(found)
        if is_dataclass(found) or issubclass(found, Struct):
            hints = typing.get_type_hints(found)
            for name in hints:
                needed |= _named(hints[name])
    for found in reached:
        assert getattr(firstline, found.__name__) is found
    assert any(issubclass(found, Enum) for found in reached)


def test_every_error_can_be_caught() -> None:
    tree = {
        name
        for name, value in vars(firstline_core.errors).items()
        if isinstance(value, type) and issubclass(value, firstline_core.errors.FirstlineError)
    }
    assert sorted(firstline.errors.__all__) == sorted(tree)
    assert all(getattr(firstline.errors, name) is getattr(firstline_core.errors, name) for name in tree)
    assert firstline.FirstlineError is firstline.errors.FirstlineError
