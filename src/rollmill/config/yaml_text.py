"""YAML as configs have it: the core of version 1.2, so that 1e-4 is a number, `on` and `no` are text and 010 is ten."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import yaml

from rollmill.config.base import KeyPath, Origin, Problem, dotted, first_of, shown
from rollmill.errors import Refused

_TAG = "tag:yaml.org,2002:"
_SCALARS = (  # tag, pattern, characters it may begin with
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+(?:_[0-9]+)*|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),  # 1_000_000 as in Python
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
    ("merge", r"<<", "<"),
)
_MOST_VALUES = 100_000  # aliases of aliases grow exponentially; a config that is meant has a few hundred values


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """The scalars as PyYAML looks them up: by their first character, "" for the empty one."""
    table: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for name, pattern, beginnings in _SCALARS:
        for character in beginnings:
            entry = (_TAG + name, re.compile(rf"(?:{pattern})\Z"))
            table.setdefault(character.strip("\0"), []).append(entry)
    return table


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = _resolvers()


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers = _resolvers()  # quotes exactly the text that would be read as something else

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_scalar(self, tag: str, value: Any, style: str | None = None) -> yaml.ScalarNode:
        # PyYAML would fold text with exotic line breaks such as U+0085 and read back spaces
        return super().represent_scalar(tag, value, style if value.isprintable() else '"')

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        return super().represent_sequence(tag, sequence, flow_style=True)


def written(tree: Any) -> str:
    """Plain values as a text from which `parse` reads equal ones."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=float("inf"))


def parse(text: str, origin: Callable[[int], Origin]) -> tuple[Any, dict[KeyPath, int]]:
    """The plain values of a YAML text and the line of each; `origin` names a line in messages."""
    reading = _Reading(origin)
    try:
        root = yaml.compose(text, Loader=_Loader)
        values = None if root is None else reading.value(root, ())
    except yaml.MarkedYAMLError as error:
        raise Refused(_broken(error, origin)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise Refused(f"{origin(line)}: broken YAML: character {chr(error.character)!r} can't stand in text") from None
    except RecursionError:
        raise Refused(f"{origin(1)}: nested too deeply: a config has a few levels") from None
    if reading.problems:
        raise Refused(first_of(reading.problems))
    return values, reading.lines


def _broken(error: yaml.MarkedYAMLError, origin: Callable[[int], Origin]) -> str:
    mark, around = error.problem_mark, error.context_mark
    context = f"{error.context} of line {around.line + 1}, " if around else ""
    remedy = ": indent with spaces, not tabs" if "'\\t'" in str(error.problem) else ""
    place = origin(mark.line + 1 if mark else 1)
    column = f" at column {mark.column + 1}" if mark else ""
    return f"{place}: broken YAML{column}: {context}{error.problem}{remedy}"


class _Reading:
    """One walk over the nodes of a YAML text, which gathers lines and problems."""

    def __init__(self, origin: Callable[[int], Origin]) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[Problem] = []
        self._origin = origin
        self._open: list[yaml.Node] = []  # the nodes around the present one: an alias to one of them has no end
        self._count = 0

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self._count += 1
        if self._count > _MOST_VALUES or node in self._open:
            raise Refused(f"{self._origin(_line(node))}: aliases make '{dotted(path)}' endless: write the values out")
        self._open.append(node)
        try:
            if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
                return [self._item(item, (*path, index)) for index, item in enumerate(node.value)]
            if isinstance(node, yaml.ScalarNode):
                return self._scalar(node)
            return self._complain(node, f"tag '{node.tag}' isn't allowed: a config holds plain values only")
        finally:
            self._open.pop()

    def _item(self, node: yaml.Node, path: KeyPath) -> Any:
        self.lines[path] = _line(node)
        return self.value(node, path)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, (key, value) in self._pairs(node, path).items():
            self.lines[(*path, name)] = _line(key)
            values[name] = self.value(value, (*path, name))
        return values

    def _pairs(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, tuple[yaml.ScalarNode, yaml.Node]]:
        """The keys of a mapping, and after them those that `<<` merges into it."""
        pairs: dict[str, tuple[yaml.ScalarNode, yaml.Node]] = {}
        merged: list[yaml.Node] = []
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._complain(key, "a list or a mapping can't be a key: write 'key: value'")
            elif key.tag == _TAG + "merge":
                merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
            elif key.value in pairs:
                first = _line(pairs[key.value][0])
                self._complain(key, f"duplicate key '{dotted((*path, key.value))}' (first at line {first}): keep one")
            else:
                pairs[key.value] = (key, value)
        for source in merged:
            if isinstance(source, yaml.MappingNode):
                pairs = {**self._pairs(source, path), **pairs}
            else:
                self._complain(source, "'<<' merges mappings only: name the anchor of one")
        return pairs

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        text = node.value
        try:
            match node.tag.removeprefix(_TAG):
                case "str" | "merge":
                    return text
                case "null":
                    return None
                case "bool":
                    return text.lower() == "true"
                case "int":
                    return int(text, {"0x": 16, "0o": 8}.get(text[:2], 10))
                case "float":
                    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        except ValueError:
            return self._complain(node, f"{shown(text)} is not a number")
        return self._complain(node, f"tag '{node.tag}' isn't allowed: a config holds plain values only")

    def _complain(self, node: yaml.Node, text: str) -> None:
        problem = Problem(self._origin(_line(node)), text)
        if problem not in self.problems:  # an anchor is walked once for itself and once for each alias
            self.problems.append(problem)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
