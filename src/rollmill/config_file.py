"""One frozen config from a YAML file (or a dict), fragments laid over it and dotted overrides.

It remembers where each value was given.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple

import yaml

from rollmill.config import C, Config, KeyPath, Origin, Problem, dotted, first_of, shown, validate
from rollmill.errors import Refused

# ["train.steps=100"] of the command line, or {"train.steps": 100}; "@fast.yaml" among the first lays that file over
Overrides = Sequence[str] | Mapping[str, Any]
FRAGMENT = "@"


@dataclass(frozen=True)
class Loaded(Generic[C]):
    """A resolved config and where its values came from."""

    config: C
    origins: Mapping[str, str]  # of every leaf: "configs/ppo/cartpole.yaml:7", "override", "argument" or "default"
    path: Path | None  # None if the values were given in Python


class Row(NamedTuple):
    """One line of `rollmill show CONFIG`."""

    path: str
    value: Any
    origin: str


def load(path: Path, overrides: Overrides, schema: type[C]) -> Loaded[C]:
    """Read a config file; `overrides` win over it."""
    values, origins = _read_values(path)
    if values is None:
        raise Refused(f"{path}: the file is empty: start from a copy of one that `rollmill list configs` shows")
    return _resolve(values, {(): Origin(str(path)), **origins}, overrides, schema, path)


def build(values: Mapping[str, Any], overrides: Overrides, schema: type[C]) -> Loaded[C]:
    """The same from values given in Python."""
    plain = _plain(values, ())
    origins = {key: Origin("argument") for key in _given(plain, ())}
    return _resolve(plain, origins, overrides, schema, None)


def describe(loaded: Loaded[C]) -> list[Row]:
    """Every value of the config with its origin, in the order of the schema."""
    return [Row(key, value, loaded.origins[key]) for key, value in flattened(loaded.config).items()]


def flattened(config: Config) -> dict[str, Any]:
    """Every value of the config by its dotted key, as JSON has it."""
    return {dotted(key): value for key, value in _leaves(_tree(config), ())}


def dump(config: Config) -> str:
    """The whole config as YAML text that loads to an equal one."""
    return yaml.dump(_tree(config), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=float("inf"))


def json_schema(schema: type[Config]) -> dict[str, Any]:
    """What editors need to complete and check a config file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema.model_json_schema()}


def _resolve(
    values: dict[str, Any], origins: dict[KeyPath, Origin], overrides: Overrides, schema: type[C], path: Path | None
) -> Loaded[C]:
    fragments, overrides = _divided(overrides)
    for fragment in fragments:
        content, given = _read_values(fragment)
        _lay_over(content or {}, (), values, given, origins)
    for key, value in _parsed(overrides).items():
        _apply(key, value, values, origins)
    config = validate(schema, values, origins)
    leaves = {dotted(key): str(origins.get(key, "default")) for key, _ in _leaves(_tree(config), ())}
    return Loaded(config, leaves, path)


def _tree(config: Config) -> dict[str, Any]:
    return config.model_dump(mode="json", by_alias=True)


def _leaves(tree: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Paths and values; a list counts as one value, because it is overridden as a whole."""
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _leaves(value, (*path, key))
    else:
        yield path, tree


def _given(tree: Any, path: KeyPath) -> Iterator[KeyPath]:
    """The paths of the tree itself and of everything in it."""
    yield path
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _given(value, (*path, key))


# Fragments: files with some of the keys of a config


def with_fragments(fragments: Sequence[Path], overrides: Sequence[str]) -> list[str]:
    """The overrides, and before them the files to lay over the config."""
    return [*(f"{FRAGMENT}{fragment}" for fragment in fragments), *overrides]


def _divided(overrides: Overrides) -> tuple[list[Path], Overrides]:
    if isinstance(overrides, Mapping):
        return [], overrides
    fragments = [Path(text.removeprefix(FRAGMENT)) for text in overrides if text.startswith(FRAGMENT)]
    return fragments, [text for text in overrides if not text.startswith(FRAGMENT)]


def _lay_over(
    content: dict[str, Any],
    path: KeyPath,
    values: dict[str, Any],
    given: Mapping[KeyPath, Origin],
    origins: dict[KeyPath, Origin],
) -> None:
    """Put each value of a fragment in its place; unlike an override, a section keeps the keys that aren't named."""
    for name, value in content.items():
        key = (*path, name)
        if isinstance(value, dict) and isinstance(values.get(name), dict):
            _lay_over(value, key, values[name], given, origins)
            continue
        values[name] = value
        for old in [old for old in origins if old[: len(key)] == key]:
            del origins[old]
        origins.update({new: origin for new, origin in given.items() if new[: len(key)] == key})


# Overrides


def _parsed(overrides: Overrides) -> dict[KeyPath, Any]:
    """The overrides by path; on the command line a value is YAML, in Python it is itself."""
    if isinstance(overrides, Mapping):
        pairs = [(key, _plain(value, (key,))) for key, value in overrides.items()]
    else:
        pairs = [_key_and_value(text) for text in overrides]
    parsed: dict[KeyPath, Any] = {}
    for key, value in pairs:
        path = tuple(key.split("."))
        if not all(path):
            raise Refused(f"override {key!r}: a name is missing in the key: write key=value, such as train.steps=1000")
        if path in parsed:
            raise Refused(f"override '{key}' is given twice, {shown(parsed[path])} and {shown(value)}: keep one")
        parsed[path] = value
    return parsed


def _key_and_value(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise Refused(f"override {text!r}: no '=' in it: write key=value, such as train.steps=1000")
    values, _ = parse(value, lambda _: Origin(f"override {text!r}"))
    return key, values


def _apply(path: KeyPath, value: Any, values: dict[str, Any], origins: dict[KeyPath, Origin]) -> None:
    """Put the value in its place; a mapping replaces the section, so that keys of another algorithm don't linger."""
    section: Any = values
    for depth, step in enumerate(path[:-1], start=1):
        if section.get(step) is None:  # absent, or a section left empty in the file
            section[step] = {}
            origins[path[:depth]] = Origin("override")
        section = section[step]
        if not isinstance(section, dict):
            above = dotted(path[:depth])
            raise Refused(
                f"override '{dotted(path)}': {above} is {shown(section)}, not a section: override {above} whole"
            )
    section[path[-1]] = value
    for key in [key for key in origins if key[: len(path)] == path]:
        del origins[key]
    origins.update({key: Origin("override") for key in _given(value, path)})


def _plain(value: Any, path: KeyPath) -> Any:
    """A copy of a value given in Python, in the types that YAML has."""
    if isinstance(value, Config):
        return _tree(value)  # with its defaults: the tag that tells algorithms apart is one of them
    if isinstance(value, Mapping):
        return {str(key): _plain(item, (*path, str(key))) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, (*path, index)) for index, item in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise Refused(
        f"{dotted(path)}: a {type(value).__name__} can't stand in a config: give numbers, text, lists or dicts"
    )


# Files

_SUFFIXES = (".yaml", ".yml")


def config_files(folder: Path) -> list[Path]:
    """Every YAML file below the folder, sorted by path."""
    return sorted(file for file in folder.rglob("*") if file.suffix in _SUFFIXES and file.is_file())


def _read_values(path: Path) -> tuple[dict[str, Any] | None, dict[KeyPath, Origin]]:
    """The values of a file, None if it holds none, and where each stands."""
    values, lines = parse(_read_text(path), partial(Origin, str(path)))
    if values is not None and not isinstance(values, dict):
        raise Refused(f"{path}:1: the top level is {shown(values)}: write keys with values, such as 'seed: 1'")
    return values, {key: Origin(str(path), line) for key, line in lines.items()}


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        raise Refused(f"{path}: no such file: {_nearest_file(path)}") from None
    except IsADirectoryError:
        raise Refused(f"{path}: a folder, not a config file: name a file, `rollmill list configs` shows some") from None
    except UnicodeDecodeError as error:
        raise Refused(f"{path}: not UTF-8 text (byte {error.start}): save it as UTF-8, or name another file") from None
    except OSError as error:
        raise Refused(f"{path}: can't be read: {error.strerror}") from None


def _nearest_file(path: Path) -> str:
    siblings = [file for file in path.parent.glob("*") if file.suffix in _SUFFIXES]
    known = config_files(Path("configs"))
    # a misspelt name, a misspelt folder, a folder that was left out
    for word, names in (
        (path.name, {file.name: file for file in siblings}),
        (str(path), {str(file): file for file in known}),
        (path.name, {file.name: file for file in known}),
    ):
        if near := difflib.get_close_matches(word, names, n=1, cutoff=0.7):
            return f"did you mean '{names[near[0]]}'?"
    return "`rollmill list configs` shows what there is"


# YAML: the core of version 1.2, so that 1e-4 is a number, `on` and `no` are text and 010 is ten

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
        """The keys of a mapping, and behind them those that `<<` merges into it."""
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
