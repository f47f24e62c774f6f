"""Settings from a TOML file, the environment and flags; each overrides the one before.

A process declares its settings as a frozen `msgspec.Struct` whose fields are sections or values. Errors name the file,
the line, the key and, for an unknown key, a similar known one.
"""

from __future__ import annotations

import difflib
import logging
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta

from firstline_core.errors import NAME_CHARACTERS, NAME_RULE, ConfigError, did_you_mean, similar_name
from firstline_core.storage import files
from firstline_core.storage.setting_places import (
    ANY_NAME,
    FILE_LIMIT_BYTES,
    Sources,
    line_of,
    parts_of,
    spelled,
    value_at,
)

T = TypeVar("T", bound=msgspec.Struct)

_FIELD = re.compile(
    r"Object (?P<fault>contains unknown|missing required) field `(?P<key>[^`]*)`(?: - at `(?P<path>[^`]*)`)?"
)
_PLACE = re.compile(r" - at `([^`]*)`\Z")
_INVALID_NAME = re.compile(r" - at `key` in `(?P<path>[^`]*)`")
_TOML_KEY = re.compile(r"[\w.\"'-]+|\[[\w.\"'-]+\]")
_TOML_PLACE = re.compile(r" \(at line (\d+), column \d+\)| \(at end of document\)")
# Similarity from which a variable counts as a misspelt setting.
_ALIKE = 0.85
_SHOWN_CHARACTERS = 80
_ONE_OF = "one of "

# Paths: relative ones start at the folder of the configuration file. "path" lists values that are not paths; one that
# ends with a colon is a prefix of such values.
FilePath = Annotated[str, Meta(extra={"path": ()})]
AuthoritiesPath = Annotated[str, Meta(extra={"path": ("system",)})]

Warn = Callable[[str], None]
# Not below the packages' own loggers, which are silent until `logs.configure`: this one writes to stderr before a
# process has its log settings.
_log: Warn = logging.getLogger("settings").warning


def load(cls: type[T], sources: Sources, *, warn: Warn = _log) -> T:
    """Reads settings from all of their sources.

    Args:
        cls: a frozen struct with `forbid_unknown_fields`; nested structs are TOML tables.
        sources: the file, variables and flags.
        warn: called with a sentence about ignored variables.

    Raises:
        ConfigError: a source cannot be read or is invalid.
    """
    text = sources.text
    if text is None:
        text = read_configuration(sources.file) if sources.file is not None else ""
    values = parse(text, sources.file)
    _convert(cls, values, text=text, where=str(sources.file))

    known = {".".join(path) for path in _settings(cls)}
    ignored = []
    for each in sources.given:
        if each.name in sources.environ and len(each.key) == 1 and each.key[0] not in known:
            ignored.append(each.name)
            continue
        _set(values, each.key, each.parsed, each.name)
        _convert(cls, values, text="", where=each.place, of_text=isinstance(each.value, str))
    _warn_about_ignored(ignored, known, sources.prefix, warn)
    return _convert(cls, values, text=text, where=str(sources.file or "the defaults"))


def naming_sources(cls: type[msgspec.Struct], sources: Sources) -> AbstractContextManager[None]:
    """Adds the source of a setting to an error that names it; see `Sources.naming`."""
    return sources.naming(lambda path: bool(_types_at(cls, path)))


def changed_keys(before: T, after: T) -> tuple[str, ...]:
    """Returns the keys with different values, such as "api.port"; a list or table of its own counts as one."""
    return tuple(
        f"{name}.{key}" if key else name
        for name in before.__struct_fields__
        for key in _changed_in(getattr(before, name), getattr(after, name))
    )


def _changed_in(before: object, after: object) -> tuple[str, ...]:
    if before == after:
        return ()
    if isinstance(before, msgspec.Struct) and isinstance(after, msgspec.Struct):
        fields = before.__struct_fields__
        return tuple(field for field in fields if getattr(before, field) != getattr(after, field))
    return ("",)


def with_keys_of(settings: T, other: T, keys: Iterable[str]) -> T:
    """Returns the settings with the values that others have under some keys, which `changed_keys` returned."""
    for key in keys:
        name, _, field = key.partition(".")
        value = getattr(other, name)
        if field:
            value = msgspec.structs.replace(getattr(settings, name), **{field: getattr(value, field)})
        settings = msgspec.structs.replace(settings, **{name: value})
    return settings


def with_absolute_paths(section: T, folder: Path) -> T:
    """Returns a section, and the sections in it, with paths that start at a folder."""
    keywords = _path_keywords(type(section))
    return msgspec.structs.replace(
        section,
        **{
            field: _with_absolute_paths(getattr(section, field), folder, keywords.get(field))
            for field in section.__struct_fields__
        },
    )


def _with_absolute_paths(value: Any, folder: Path, keywords: tuple[str, ...] | None) -> Any:
    """Returns the value of a field; `keywords` has the values that are not paths, None if no value is a path."""
    if isinstance(value, msgspec.Struct):
        return with_absolute_paths(value, folder)
    if isinstance(value, tuple):
        return tuple(_with_absolute_paths(each, folder, keywords) for each in value)
    if isinstance(value, dict):
        return {key: _with_absolute_paths(each, folder, keywords) for key, each in value.items()}
    if not value or keywords is None:
        return value
    is_keyword = any(value == keyword or (keyword.endswith(":") and value.startswith(keyword)) for keyword in keywords)
    return value if is_keyword else str(folder / expanded(value))


@cache
def _path_keywords(section: type[msgspec.Struct]) -> dict[str, tuple[str, ...]]:
    """Returns the fields that are paths, with the values that are not paths."""
    keywords = {}
    for name, hint in get_type_hints(section, include_extras=True).items():
        for annotation in (*get_args(hint), *(inner for each in get_args(hint) for inner in get_args(each))):
            if isinstance(annotation, Meta) and "path" in (annotation.extra or {}):
                keywords[name] = (annotation.extra or {})["path"]
    return keywords


def expanded(path: str) -> Path:
    """Returns a path with its home directory in full.

    Raises:
        ConfigError: there is no such directory, or the path is invalid.
    """
    try:
        expanded = Path(path).expanduser()
    except RuntimeError as error:  # a service or a container may run as a user that has none
        raise ConfigError(
            f"'{path}' is below a home directory that does not exist; name the folder in full."
        ) from error
    if "\0" in path:
        raise ConfigError(f"{path!r} is not a path: it contains a zero byte.")
    return expanded


def read_configuration(file: Path) -> str:
    """Returns the content of a configuration file.

    Raises:
        ConfigError: it is missing, too large, not text, or cannot be read.
    """
    try:
        return files.read_text(file, FILE_LIMIT_BYTES)
    except FileNotFoundError as error:
        raise ConfigError(
            f"There is no configuration file {file}; create it with the command `init`, or name another with --config."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, UnicodeDecodeError) and b"\0" in error.object:
            raise ConfigError(
                f"{file} is binary, not a configuration in TOML; name another file with --config."
            ) from error
        raise ConfigError(f"The configuration file {file} {files.unreadable(error)}") from error


def parse(text: str, file: Path | None) -> dict[str, Any]:
    """Returns the tables of TOML.

    Raises:
        ConfigError: it is not TOML; names the line.
    """
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # numbers with thousands of digits, thousands of "["
        raise ConfigError(f"{file}{_toml_fault(str(error), text)}") from error


def _toml_fault(fault: str, text: str) -> str:
    """Returns the rest of a sentence about a file that is not TOML: the line, the fault, and what to write.

    Args:
        fault: message of tomllib.
        text: of the file; the value is never quoted, because it may be secret.
    """
    place = _TOML_PLACE.search(fault)
    number = int(place[1]) if place is not None and place[1] else 0
    key, _, value = text.split("\n")[number - 1].partition("=")
    named = f"'{key.strip()}'" if number and _TOML_KEY.fullmatch(key.strip()) else "a key"
    what = _TOML_PLACE.sub("", fault)
    if "overwrite" in what or "twice" in what:
        reason = f"{named} is there twice; delete one"
    elif what == "Invalid value" and not value.strip():
        reason = f"{named} has no value; write one after the ="
    elif what == "Invalid value":
        reason = f"{named} has a value that is not text in quotes, a number, true or false; put text in quotes"
    elif what == "Illegal character '\\n'":
        reason = "a quote is not closed; close it on the same line"
    elif "Expected ']'" in what:
        reason = "a ']' is missing; write a table as [NAME], and a list as [A, B]"
    elif "Expected '='" in what:
        reason = "a '=' is missing; write KEY = VALUE, and text in quotes"
    else:
        reason = f"{what[:1].lower()}{what[1:]}; write KEY = VALUE, and text in quotes"
    return f"{f':{number}' if number else ''} is not valid TOML: {reason}."


def _convert(cls: type[T], values: dict[str, Any], *, text: str, where: str, of_text: bool = False) -> T:
    """Converts `values` to the struct; numbers and booleans may be strings, as in the environment.

    Args:
        cls: the struct.
        values: values parsed from TOML.
        text: text of the file, for line numbers.
        where: named in errors.
        of_text: whether the last added value is the text of a variable.
    """
    try:
        return msgspec.convert(values, cls, strict=False)
    except msgspec.ValidationError as error:
        path, fault = _fault(cls, values, error, of_text=of_text)
        raise ConfigError(f"{where}{line_of(text, path)}{fault}") from error


def _fault(cls: type[T], values: dict[str, Any], error: Exception, *, of_text: bool) -> tuple[list[str], str]:
    """Returns the path of the key whose line a message about an error names, and what follows in that message."""
    if (field := _FIELD.match(str(error))) is not None:
        table, key = _path(cls, values, error, field["path"]), field["key"]
        path = [*table, key]
        if field["fault"] == "contains unknown":
            prefix = f"{spelled(table)}." if table else ""
            return path, f" has an unknown key '{prefix}{key}'{_suggest(key, _fields(_tables_at(cls, table)), prefix)}"
        wanted = described(_types_at(cls, path))
        value = '"..."' if wanted.startswith(("text", "name", "path", "URL")) else "..."
        return table, f" has no key '{spelled(path)}'; add `{key} = {value}` ({wanted})."
    if (named_table := _INVALID_NAME.search(str(error))) is not None:
        path = _path(cls, values, error, f"{named_table['path']}{ANY_NAME}")
        wanted = _article(described([info.key_type for info in _tables_at(cls, path[:-1])]))
        return path, f": {path[-1]!a} cannot be a name in '{spelled(path[:-1])}'; use {wanted}."
    place = _PLACE.search(str(error))
    path = _path(cls, values, error, place[1] if place is not None else None)
    wanted = described(_types_at(cls, path))
    if of_text and wanted.startswith(("list", "table")):
        inner = '{"KEY": "VALUE"}' if "table" in wanted else '"a", "b"'
        wanted += f", as JSON such as '{inner if wanted.startswith('table') else f'[{inner}]'}'"
    elif path and wanted in ("table", "list of tables"):
        wanted += f", as [{spelled(path)}]" if wanted == "table" else f", each as [[{spelled(path)}]]"
    choices = wanted.removeprefix(_ONE_OF).split(", ") if wanted.startswith(_ONE_OF) else ()
    shown, named = _shown(values, path), f", '{spelled(path)}'," if path else ""
    close = did_you_mean(shown.strip("'"), choices)
    return path, f"{named} is {shown}; use {_article(wanted)}{close}"


def _path(cls: type[T], values: dict[str, Any], error: Exception, path: str | None) -> list[str]:
    """Returns the parts of msgspec's path to a value; for a name in a free table, which msgspec leaves out, it tries.

    Args:
        cls: the struct.
        values: that are not valid.
        error: of msgspec.
        path: in the error.
    """
    parts = parts_of(path)
    for place in (number for number, part in enumerate(parts) if part == ANY_NAME):
        names = value_at(values, parts[:place])
        alone = (name for name in names if _fails_alone(cls, values, error, [*parts[:place], name]))
        parts[place] = next(alone, ANY_NAME)
    return parts


def _fails_alone(cls: type[T], values: dict[str, Any], error: Exception, path: list[str]) -> bool:
    """Returns whether the values are invalid in the same way without the neighbours of one in a table."""
    values = deepcopy(values)
    table = value_at(values, path[:-1])
    for other in table.keys() - {path[-1]}:
        del table[other]
    try:
        msgspec.convert(values, cls, strict=False)
    except msgspec.ValidationError as alone:
        return str(alone) == str(error)
    return False


def _shown(values: Any, path: list[str]) -> str:
    """Returns the value at a path as a person has written it; never what is around it, which may be secret."""
    value = value_at(values, path) if path else None
    if value is None:
        return "invalid"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        return "a list of tables"
    text = repr(value)
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    length = f" ({len(value)} characters)" if isinstance(value, str) else ""
    return f"{text[:_SHOWN_CHARACTERS]}...{length}"


def _article(wanted: str) -> str:
    """Returns the description of a type with its article."""
    if wanted.startswith((_ONE_OF, "text", "true")):
        return wanted
    return f"{'an' if wanted.startswith('integer') else 'a'} {wanted}"


def described(types: Sequence[Any]) -> str:
    """Returns the values of a setting in words, with their limits.

    Args:
        types: msgspec's descriptions of the types that it may have.
    """
    return " or ".join(dict.fromkeys(text for info in types if (text := _described_type(info))))


def _described_type(info: Any) -> str:
    match info:
        case msgspec.inspect.Metadata():
            inner = _described_type(info.type)
            return inner.replace("text", "path", 1) if "path" in (info.extra or {}) else inner
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.IntType():
            return f"integer{_limits(info)}"
        case msgspec.inspect.FloatType():
            return f"number{_limits(info)}"
        case msgspec.inspect.LiteralType() | msgspec.inspect.EnumType():
            return _choices(info)
        case msgspec.inspect.VarTupleType() | msgspec.inspect.ListType():
            return f"list of {_plural(_described_type(info.item_type))}"
        case msgspec.inspect.DictType():
            return f"table of {_plural(_described_type(info.value_type))}"
        case msgspec.inspect.StructType():
            return "table"
        case msgspec.inspect.UnionType():
            return described(info.types)
        case msgspec.inspect.StrType():
            return _described_text(info)
        case _:
            return "" if isinstance(info, msgspec.inspect.NoneType) else "text"


def _described_text(info: msgspec.inspect.StrType) -> str:
    if info.pattern is not None and NAME_CHARACTERS in info.pattern:
        return f"name of {NAME_RULE}"
    if info.pattern is not None and "https?://" in info.pattern:
        return "URL such as https://HOST:PORT"
    if info.pattern is not None:
        return f"text that matches `{info.pattern}`"
    return "text" if info.max_length is None else f"text of at most {info.max_length} characters"


def _limits(info: msgspec.inspect.IntType | msgspec.inspect.FloatType) -> str:
    ends = info.le is not None or info.lt is not None
    low = "" if info.ge is None else f" {'from' if ends else 'of at least'} {info.ge:g}"
    low = f" above {info.gt:g}" if info.gt is not None else low
    high = "" if info.le is None else f" to {info.le}" if isinstance(info.le, int) else f" to {info.le:g}"
    return low + (f" below {info.lt:g}" if info.lt is not None else high)


def _plural(described: str) -> str:
    return f"{described}s" if described.isalpha() else described.replace(_ONE_OF, "any of ", 1)


def _choices(info: msgspec.inspect.LiteralType | msgspec.inspect.EnumType) -> str:
    values = info.values if isinstance(info, msgspec.inspect.LiteralType) else [each.value for each in info.cls]
    return f"{_ONE_OF if len(values) > 1 else ''}{', '.join(map(str, values))}"


@cache
def _described(cls: type[msgspec.Struct]) -> msgspec.inspect.Type:
    """Returns msgspec's description of a type, which takes milliseconds."""
    return msgspec.inspect.type_info(cls)


def _tables_at(cls: type[msgspec.Struct], path: list[str]) -> list[Any]:
    """Returns msgspec's descriptions of the tables at `path`: several for a union, none for an unknown path."""
    return [info for each in _types_at(cls, path) for info in _alternatives(each)]


def _types_at(cls: type[msgspec.Struct], path: list[str]) -> list[Any]:
    """Returns msgspec's descriptions of the types at `path`, as they are declared."""
    found: list[Any] = [_described(cls)]
    for part in path:
        inner = []
        for info in (alternative for each in found for alternative in _alternatives(each)):
            if isinstance(info, msgspec.inspect.StructType):
                inner += [field.type for field in info.fields if field.encode_name == part]
            elif isinstance(info, msgspec.inspect.DictType):
                inner.append(info.value_type)
            elif (element := getattr(info, "item_type", None)) is not None:
                inner.append(element)
        found = inner
    return found


def _alternatives(info: Any) -> list[Any]:
    if isinstance(info, msgspec.inspect.Metadata):
        return _alternatives(info.type)
    if isinstance(info, msgspec.inspect.UnionType):
        return [alternative for each in info.types for alternative in _alternatives(each)]
    return [info]


def _fields(types: list[Any]) -> list[str]:
    """Returns the keys of a table."""
    return [
        f.encode_name
        for info in types
        if isinstance(info, msgspec.inspect.StructType)
        for f in info.fields
        if f.encode_name.isidentifier()
    ]


def _settings(cls: type[msgspec.Struct]) -> list[tuple[str, ...]]:
    """Returns the settings that a variable can set: the top-level fields, and those of the sections."""
    top = _fields(_tables_at(cls, []))
    return [(name,) for name in top] + [
        (section, name) for section in top for name in _fields(_tables_at(cls, [section]))
    ]


def _warn_about_ignored(ignored: list[str], known: set[str], prefix: str, warn: Warn) -> None:
    """Warns with one sentence for each variable that resembles a setting, and one for all others."""
    others = []
    spelled = {name.replace(".", "_"): prefix + name.replace(".", "__").upper() for name in known}
    for variable in ignored:
        close = difflib.get_close_matches(variable.removeprefix(prefix).lower(), spelled, n=1, cutoff=_ALIKE)
        if close:
            warn(f"The environment variable {variable} is ignored; did you mean {spelled[close[0]]}?")
        else:
            others.append(variable)
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        warn(
            f"Ignored in the environment: {', '.join(others[:3])}{more}; a setting is spelled "
            f"{prefix}SECTION__KEY, with two underscores."
        )


def _suggest(key: str, known: list[str], table: str) -> str:
    if close := similar_name(key, known):
        return f"; did you mean '{table}{close}'?"
    return f"; delete it, or use one of {', '.join(known)}." if known else "."


def _set(values: dict[str, Any], path: list[str], value: object, source: str) -> None:
    for part in path[:-1]:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{source} reaches into '{part}', which is not a section; set the whole list as JSON.")
    values[path[-1]] = value


def create_initial(file: Path, text: str) -> None:
    """Writes a first configuration file, and creates the folder `models` in its folder.

    Args:
        file: must not exist.
        text: the configuration.

    Raises:
        ConfigError: the file exists, its folder does not, or one of the two cannot be written.
    """
    try:
        if not file.parent.exists():
            raise ConfigError(
                f"--config: The folder {file.parent} does not exist; create it, or name a file in another folder."
            )
        if not file.exists():
            (file.parent / "models").mkdir(exist_ok=True)
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        if isinstance(error, FileExistsError) and error.filename == str(file):
            why = f"{file} exists and was not changed; edit it, or name another file with --config."
        else:
            if error.filename is None:  # the disk took a part of the text, or none
                file.unlink(missing_ok=True)
            reason = files.system_reason(error)
            why = f"{error.filename or file} cannot be written: {reason}; name a file in another folder with --config."
        raise ConfigError(why) from error
