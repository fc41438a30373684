"""The base of every configuration record, and one-line messages for invalid values."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from rollmill.errors import Refused, nearest


class Config(BaseModel):
    """A frozen, strict record: unknown keys and wrong types are errors; it is defined next to its owner."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)


C = TypeVar("C", bound=Config)
KeyPath = tuple[
    str | int, ...
]  # ("model", "hidden", 1); not dotted text, because keys of a free-form section may hold dots


class Origin(NamedTuple):
    """Where a value was given; line 0 means a source without lines."""

    source: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


Origins = Mapping[KeyPath, Origin]  # of every value and section that was given; () is where all of them came from


class Mistake(NamedTuple):
    """One thing that is wrong with the input."""

    origin: Origin
    text: str


def validate(schema: type[C], values: Mapping[str, Any], origins: Origins) -> C:
    """The record of the plain `values`, or a refusal that says where the first wrong one was given."""
    try:
        # as JSON, because only there a strict tuple field takes a list
        return schema.model_validate_json(json.dumps(values))
    except ValidationError as error:
        raise Refused(first_of(_mistakes(schema, error, origins))) from error


def first_of(mistakes: Sequence[Mistake]) -> str:
    """The first mistake in the file, and how many more there are."""
    # values without a line (overrides) come after those of the file, in the order they were found
    first = min(mistakes, key=lambda mistake: mistake.origin.line or float("inf"))
    more = f" (and {len(mistakes) - 1} more)" if len(mistakes) > 1 else ""
    return f"{first.origin}: {first.text}{more}"


def dotted(path: KeyPath) -> str:
    """The path as a user writes it, e.g. `model.hidden[1]`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def shown(value: Any) -> str:
    """The value as a message quotes it: on one line and not too long."""
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 60 else text[:59] + "…"


_EXPECTED = {  # pydantic's error types for a wrong type
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "path_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a section with keys",
    "model_type": "a section with keys",
}
_LIMITS = {  # pydantic's error types for a wrong range, and the name under which each gives the limit
    "greater_than": ("gt", ">"),
    "greater_than_equal": ("ge", "≥"),
    "less_than": ("lt", "<"),
    "less_than_equal": ("le", "≤"),
    "multiple_of": ("multiple_of", "a multiple of"),
}


class _Fault(NamedTuple):
    path: KeyPath
    kind: Any  # the type that the schema has at `path`; for an unknown or a missing key the type of its section
    error: ErrorDetails


def _mistakes(schema: type[BaseModel], error: ValidationError, origins: Origins) -> list[Mistake]:
    faults = [_locate(schema, details) for details in error.errors(include_url=False)]
    mistyped: dict[KeyPath, list[_Fault]] = {}
    mistakes = []
    for fault in faults:
        if fault.error["type"] == "missing" and any(_is_misspelling(other, fault) for other in faults):
            continue  # one mistake: the unknown key says what was meant
        if fault.error["type"] in _EXPECTED:
            mistyped.setdefault(fault.path, []).append(fault)
        elif fault.error["type"] in ("value_error", "assertion_error"):
            mistakes.append(_own_words(fault, origins))
        else:
            mistakes.append(Mistake(_origin(fault.path, origins), _sentence(fault)))
    # pydantic reports an error for each member of a union. That is one mistake, and none at all if one member fits
    # except for an error deeper inside it.
    for path, members in mistyped.items():
        if not any(fault.path[: len(path)] == path != fault.path for fault in faults):
            mistakes.append(Mistake(_origin(path, origins), _mistyped(members)))
    return mistakes


def _is_misspelling(unknown: _Fault, missing: _Fault) -> bool:
    """Whether an unknown key is in the place of the missing one, and looks like it."""
    is_sibling = unknown.error["type"] == "extra_forbidden" and unknown.path[:-1] == missing.path[:-1]
    return is_sibling and nearest(str(unknown.path[-1]), _keys(unknown.kind)) == f"did you mean '{missing.path[-1]}'?"


def _origin(path: KeyPath, origins: Origins) -> Origin:
    """The origin of the value, or of the innermost section around it that was given."""
    return next(origins[path[:n]] for n in range(len(path), -1, -1) if path[:n] in origins)


def _own_words(fault: _Fault, origins: Origins) -> Mistake:
    """The message of a validator; it names the key itself, in full or within its section."""
    text = " ".join(str(fault.error["ctx"]["error"]).split())
    for word in re.findall(r"[\w.]+", text):
        named = tuple(word.strip(".").split("."))
        for path in (named, fault.path + named):
            if path in origins:
                return Mistake(origins[path], text)
    return Mistake(_origin(fault.path, origins), text)


def _sentence(fault: _Fault) -> str:
    path, error = fault.path, fault.error
    key, value, context = dotted(path), shown(error["input"]), error.get("ctx", {})
    match error["type"]:
        case "extra_forbidden":
            return f"unknown key '{key}': {nearest(str(path[-1]), _keys(fault.kind))}"
        case "missing" if isinstance(path[-1], int):
            return f"{dotted(path[:-1])}: {value} has too few items"
        case "missing" | "union_tag_not_found":
            where = f"below '{dotted(path[:-1])}'" if len(path) > 1 else "at the top level"
            return f"missing key '{key}': add '{path[-1]}: …' {where}"
        case "union_tag_invalid":
            tag = error["input"][path[-1]]
            return f"{key}: {shown(tag)} is unknown: {_choices(tag, context['expected_tags'])}"
        case "literal_error" | "enum":
            return f"{key}: {value} is unknown: {_choices(error['input'], context['expected'])}"
        case "finite_number":
            return f"{key}: {value} is out of range: must be finite"
        case limit if limit in _LIMITS:
            name, sign = _LIMITS[limit]
            return f"{key}: {value} is out of range: must be {sign} {context[name]:g}"
        case _:  # lengths, patterns and whatever else a field may ask for
            return f"{key}: {value} is refused: {error['msg'][0].lower()}{error['msg'][1:]}"


def _mistyped(members: list[_Fault]) -> str:
    path, kind, error = members[0]
    expected = list(dict.fromkeys(_EXPECTED[member.error["type"]] for member in members))
    value = error["input"]
    remedy = ""
    if isinstance(value, float) and value.is_integer() and expected == ["a whole number"]:
        remedy = f"; write {int(value)}"
    elif isinstance(value, bool | int | float) and expected == ["text"]:
        remedy = f"; write '{json.dumps(value)}' in quotes"
    elif keys := _keys(kind):
        remedy = f"; its keys: {', '.join(keys)}"
    return f"{dotted(path)}: {shown(value)} is not {' or '.join(expected)}{remedy}"


def _choices(given: Any, expected: str) -> str:
    """What to write instead; pydantic lists the choices as text: 'a', 'b' or 'c'."""
    names = re.findall(r"'([^']*)'", expected)
    return nearest(str(given), names) if names else f"known: {expected}"


def _locate(schema: type[BaseModel], error: ErrorDetails) -> _Fault:
    """Where in the values the error is: pydantic puts the names of union members between the keys."""
    location = error["loc"]
    key: tuple[str | int, ...] = ()  # the last key; the type is that of its section, to name the other keys
    if error["type"] in ("missing", "extra_forbidden"):
        location, key = location[:-1], location[-1:]
    elif error["type"] in ("union_tag_invalid", "union_tag_not_found"):
        key = (error["ctx"]["discriminator"].strip("'"),)
    path: list[str | int] = []
    kind: Any = schema
    for step in location:
        kind, is_key = _descend(kind, step)
        if is_key:
            path.append(step)
    return _Fault((*path, *key), _bare(kind), error)


def _descend(kind: Any, step: str | int) -> tuple[Any, bool]:
    """The type one step further, and whether the step is a key or an index rather than the name of a union member."""
    kind = _bare(kind)
    arguments = get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        return next((member for member in arguments if step in _names(_bare(member))), Any), False
    if _is_record(kind):
        fields = {field.alias or name: field for name, field in kind.model_fields.items()}
        return (fields[str(step)].annotation if step in fields else Any), True
    if not arguments:
        return Any, True
    if isinstance(step, int) and Ellipsis not in arguments:
        return arguments[min(step, len(arguments) - 1)], True
    return arguments[0 if isinstance(step, int) else -1], True


def _bare(kind: Any) -> Any:
    """The type without annotations and without the None of an optional value."""
    if get_origin(kind) is Annotated:
        return _bare(get_args(kind)[0])
    if get_origin(kind) in (Union, types.UnionType):
        members = [member for member in get_args(kind) if member is not types.NoneType]
        return _bare(members[0]) if len(members) == 1 else Union[tuple(members)]  # noqa: UP007 (made at run time)
    return kind


def _names(member: Any) -> set[Any]:
    """What pydantic may call a member of a union: its tag or its class."""
    if not _is_record(member):
        return {getattr(member, "__name__", None)}
    literals = (f.annotation for f in member.model_fields.values() if get_origin(f.annotation) is Literal)
    return {member.__name__, *(tag for literal in literals for tag in get_args(literal))}


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _keys(kind: Any) -> list[str]:
    return [field.alias or name for name, field in kind.model_fields.items()] if _is_record(kind) else []
