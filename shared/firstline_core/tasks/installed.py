"""Finds the task of a manifest by its `kind`: of this package, or of another installed one.

A package provides a task with an entry point of the group `firstline.tasks`, whose name is the kind. It loads a frozen
subclass of `ConfiguredTask` that has this kind as its tag. Bundles hold no code: they name the kind, and the package
that provides it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from importlib import metadata
from inspect import isfunction
from typing import Any, cast, get_args

import msgspec

from firstline_core.errors import FirstlineError, InferenceError, TaskError, similar_name
from firstline_core.storage.structs import fault_of
from firstline_core.tasks import AnyTask
from firstline_core.tasks.base import ConfiguredTask, ModelOutputs, Postprocess, Task

GROUP = "firstline.tasks"

_CORE = "firstline_core."
_BASE = f"{ConfiguredTask.__module__}.{ConfiguredTask.__name__}"

BUILT_IN: dict[str, type[Task]] = {task.kind: task for task in get_args(AnyTask)}
"""The tasks of this package by kind. Other packages cannot replace them."""


def similar_task(kind: str) -> str:
    """Returns the task of Firstline that is probably meant by an unknown kind; "" for a known one, or none."""
    return "" if kind in BUILT_IN else similar_name(kind, BUILT_IN)


def task_type(kind: str, package: str = "") -> type[Task]:
    """Returns the type of a task.

    Args:
        kind: as in manifests.
        package: that provides the task, for the message; "" if it is unknown.

    Raises:
        TaskError: no installed package provides it, several do, or the package's task does not load.
    """
    if kind in BUILT_IN:
        return BUILT_IN[kind]
    found = list(metadata.entry_points(group=GROUP, name=kind))
    if not found and not package and (close := similar_task(kind)):
        raise TaskError(f"there is no task '{kind}' (did you mean '{close}'?)")
    if not found:
        what = f"the package '{package}', which is" if package else "a package that is"
        wanted = f"pip install {package}" if package else f"install the package with this entry point of {GROUP}"
        raise TaskError(f"the task '{kind}' belongs to {what} not installed here: {wanted}")
    if len(found) > 1:
        names = " and ".join(sorted(_package(entry) for entry in found))
        raise TaskError(f"the task '{kind}' is in several installed packages, {names}: uninstall all but one")
    [entry] = found
    try:
        loaded = entry.load()
    except Exception as error:
        raise TaskError(
            f"the task '{kind}' of the package '{_package(entry)}' does not load: {type(error).__name__}: {error}"
        ) from error
    if problem := _unfit(loaded, kind):
        raise TaskError(f"the task '{kind}' of the package '{_package(entry)}' {problem}")
    return _guarded(loaded, kind, _package(entry))


def package_of(kind: str) -> str:
    """Returns the package that provides a task; "" for the tasks of this package and for unknown ones."""
    found = [] if kind in BUILT_IN else list(metadata.entry_points(group=GROUP, name=kind))
    return _package(found[0]) if found else ""


def read_task(fields: object, package: str = "") -> Task:
    """Returns the task of a manifest or a recipe.

    Args:
        fields: with `kind`; the others are the fields of the task.
        package: see `task_type`.

    Raises:
        TaskError: see `task_type`.
        ValueError: a field is not valid; names it.
    """
    kind = fields.get("kind") if isinstance(fields, dict) else None
    if not isinstance(kind, str):
        raise ValueError(f"a task is an object with a kind, such as {', '.join(BUILT_IN)}")
    task: Any = task_type(kind, package)
    try:
        found: Task = msgspec.convert(fields, task)
        return found
    except msgspec.ValidationError as error:
        raise ValueError(f"task '{kind}': {fault_of(error, task.__struct_encode_fields__)}") from error


_AT_LOAD = {"declared", "needs_event", "unscored", "postprocess"}
"""Functions that no request calls; `postprocess` returns one that requests call."""
_GUARDED = [name for name, one in vars(Task).items() if isfunction(one) and name[0] != "_" and name not in _AT_LOAD]


@cache
def _guarded(task: type[Task], kind: str, package: str) -> type[Task]:
    """Returns a subclass whose functions raise an `InferenceError` that names the package, whatever they raise."""

    def guard(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except FirstlineError:
                raise
            except Exception as error:
                raise InferenceError(
                    f"The function '{name}' of the task '{kind}' failed, which the package '{package}' provides: "
                    f"{type(error).__name__}: {error}"[:500]
                ) from error

        return guarded

    def postprocess(self: Task, model: ModelOutputs) -> Postprocess:
        compiled = task.postprocess(self, model)
        return compiled._replace(run=guard("postprocess", compiled.run))

    own = {name: getattr(task, name) for name in _GUARDED}
    functions: dict[str, object] = {
        name: guard(name, one) for name, one in own.items() if not getattr(one, "__module__", "").startswith(_CORE)
    }
    functions |= {name: getattr(task, name) for name in ("__module__", "__qualname__", "__doc__")}
    functions["postprocess"] = postprocess
    made = cast("Any", type(task))(task.__name__, (task,), functions, frozen=True, tag=kind)
    return cast("type[Task]", made)


def _package(entry: metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.value


def _unfit(loaded: object, kind: str) -> str:
    """Returns why an object is not a task of this kind, as part of a sentence; "" if it is one."""
    if not (isinstance(loaded, type) and issubclass(loaded, ConfiguredTask)):
        return f"is not a subclass of {_BASE}"
    config = loaded.__struct_config__
    if not config.frozen or (config.tag_field, config.tag) != ("kind", kind):
        return f"needs frozen=True, tag_field='kind' and tag='{kind}'"
    missing = [name for name in dir(loaded) if getattr(getattr(loaded, name), "__isabstractmethod__", False)]
    if loaded.event_classes is not Task.event_classes and loaded.occurrences is Task.occurrences:
        missing.append("occurrences")
    return f"lacks {', '.join(missing)} of {_BASE}" if missing else ""
