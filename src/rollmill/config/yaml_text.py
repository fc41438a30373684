"""YAML 1.2 as configs have it: plain values, each with its line; 1e-4 is a number, `on` and `no` are text."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from typing import Any

from ruamel.yaml import YAML, MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.representer import SafeRepresenter

from rollmill.config.base import KeyPath, Mistake, Origin, dotted, first_of, shown
from rollmill.errors import Refused

_TAG = "tag:yaml.org,2002:"
_NUMBERS = (_TAG + "null", _TAG + "bool", _TAG + "int", _TAG + "float")
_TEXT = (_TAG + "str", _TAG + "merge", _TAG + "timestamp", _TAG + "value")
_MOST_VALUES = 100_000  # aliases of aliases grow exponentially; a config has a few hundred values


class _Representer(SafeRepresenter):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_scalar(self, tag: Any, value: Any, style: Any = None, anchor: Any = None) -> ScalarNode:
        if tag == _TAG + "float" and "." not in value:
            value = value.replace("e", ".0e")  # 1.0e-05 is a number for YAML 1.1, too; 1e-05 is text there
        # text with exotic line breaks such as U+0085 would be folded and read back as spaces
        return super().represent_scalar(tag, value, style if value.isprintable() else '"', anchor)

    def represent_sequence(self, tag: Any, sequence: Any, flow_style: Any = None) -> SequenceNode:
        return super().represent_sequence(tag, sequence, flow_style=True)


def written(tree: Any) -> str:
    """Plain values as a text from which `parse` reads equal ones."""
    yaml, text = YAML(typ="safe", pure=True), StringIO()
    yaml.Representer, yaml.width, yaml.default_flow_style = _Representer, 10**9, False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # ruamel declares it as None
    yaml.dump(tree, text)
    return text.getvalue()


def parse(text: str, origin: Callable[[int], Origin]) -> tuple[Any, dict[KeyPath, int]]:
    """The plain values of a YAML text and the line of each; `origin` names a line in messages."""
    yaml = YAML(typ="safe", pure=True)
    reading = _Reading(origin, yaml)
    try:
        root = yaml.compose(text)
        values = None if root is None else reading.value(root, ())
    except MarkedYAMLError as error:
        raise Refused(_broken(error, origin)) from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise Refused(f"{origin(line)}: broken YAML: character {chr(error.character)!r} isn't allowed") from None
    except RecursionError:
        raise Refused(f"{origin(1)}: nested too deeply: a config has a few levels") from None
    if reading.mistakes:
        raise Refused(first_of(reading.mistakes))
    return values, reading.lines


def _broken(error: MarkedYAMLError, origin: Callable[[int], Origin]) -> str:
    mark, around = error.problem_mark, error.context_mark
    context = f"{error.context} of line {around.line + 1}, " if around else ""
    remedy = ": indent with spaces, not tabs" if "'\\t'" in str(error.problem) else ""
    place = origin(mark.line + 1 if mark else 1)
    column = f" at column {mark.column + 1}" if mark else ""
    return f"{place}: broken YAML{column}: {context}{error.problem}{remedy}"


class _Reading:
    """One walk over the nodes of a YAML text, which gathers lines and mistakes."""

    def __init__(self, origin: Callable[[int], Origin], yaml: YAML) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.mistakes: list[Mistake] = []
        self._origin, self._yaml = origin, yaml
        self._open: list[Node] = []  # the nodes around the current one: an alias to one of them never ends
        self._count = 0

    def value(self, node: Node, path: KeyPath) -> Any:
        self._count += 1
        if self._count > _MOST_VALUES or node in self._open:
            raise Refused(f"{self._origin(_line(node))}: aliases make '{dotted(path)}' endless: write the values out")
        self._open.append(node)
        try:
            if isinstance(node, MappingNode) and node.tag == _TAG + "map":
                return self._mapping(node, path)
            if isinstance(node, SequenceNode) and node.tag == _TAG + "seq":
                return [self._item(item, (*path, index)) for index, item in enumerate(node.value)]
            if isinstance(node, ScalarNode) and node.tag in (*_TEXT, *_NUMBERS):
                return self._scalar(node)
            return self._complain(node, f"tag '{node.tag}' isn't allowed: a config holds plain values only")
        finally:
            self._open.pop()

    def _item(self, node: Node, path: KeyPath) -> Any:
        self.lines[path] = _line(node)
        return self.value(node, path)

    def _mapping(self, node: MappingNode, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, (key, value) in self._pairs(node, path).items():
            self.lines[(*path, name)] = _line(key)
            values[name] = self.value(value, (*path, name))
        return values

    def _pairs(self, node: MappingNode, path: KeyPath) -> dict[str, tuple[ScalarNode, Node]]:
        """The keys of a mapping, and after them those that `<<` merges into it."""
        pairs: dict[str, tuple[ScalarNode, Node]] = {}
        merged: list[Node] = []
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                self._complain(key, "a list or a mapping can't be a key: write 'key: value'")
            elif key.tag == _TAG + "merge":
                merged += value.value if isinstance(value, SequenceNode) else [value]
            elif key.value in pairs:
                first = _line(pairs[key.value][0])
                self._complain(key, f"duplicate key '{dotted((*path, key.value))}' (first at line {first}): keep one")
            else:
                pairs[key.value] = (key, value)
        for source in merged:
            if isinstance(source, MappingNode):
                pairs = {**self._pairs(source, path), **pairs}
            else:
                self._complain(source, "'<<' merges mappings only: name the anchor of one")
        return pairs

    def _scalar(self, node: ScalarNode) -> Any:
        if node.tag in _TEXT:
            return node.value
        try:
            return self._yaml.constructor.construct_object(node)
        except (ValueError, KeyError, IndexError):  # of numbers, booleans and empty text
            kind = "a boolean" if str(node.tag).endswith(":bool") else "a number"
            return self._complain(node, f"{shown(node.value)} is not {kind}")

    def _complain(self, node: Node, text: str) -> None:
        mistake = Mistake(self._origin(_line(node)), text)
        if mistake not in self.mistakes:  # an anchor is walked once for itself and once for each alias
            self.mistakes.append(mistake)


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1
