"""One frozen config from a YAML file (or a dict), fragments merged into it and dotted overrides.

It remembers where each value was given.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic

from rollmill.config.base import C, Config, KeyPath, Origin, dotted, shown, validate
from rollmill.config.yaml_text import parse, written
from rollmill.errors import Refused

# ["train.steps=100"] of the command line, or {"train.steps": 100}; "@fast.yaml" in the first form merges that file
Overrides = Sequence[str] | Mapping[str, Any]
FRAGMENT = "@"  # also written by cli/config_arguments.py


@dataclass(frozen=True)
class Loaded(Generic[C]):
    """A resolved config and where its values came from."""

    config: C
    origins: Mapping[str, str]  # of every leaf: "configs/ppo/cartpole.yaml:7", "override", "argument" or "default"
    path: Path | None  # None if the values were given in Python


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


def flattened(config: Config | Mapping[str, Any]) -> dict[str, Any]:
    """Every value of the config by its dotted key, in the order of the schema, as JSON has it."""
    tree = _tree(config) if isinstance(config, Config) else config
    return {dotted(key): value for key, value in _leaves(tree, ())}


def dump(config: Config) -> str:
    """The whole config as YAML text that loads to an equal one."""
    return written(_tree(config))


def json_schema(schema: type[Config]) -> dict[str, Any]:
    """What editors need to complete and check a config file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema.model_json_schema()}


def _resolve(
    values: dict[str, Any], origins: dict[KeyPath, Origin], overrides: Overrides, schema: type[C], path: Path | None
) -> Loaded[C]:
    for text in () if isinstance(overrides, Mapping) else overrides:
        if text.startswith(FRAGMENT):
            content, given = _read_values(Path(text.removeprefix(FRAGMENT)))
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


def _lay_over(
    content: dict[str, Any],
    path: KeyPath,
    values: dict[str, Any],
    given: Mapping[KeyPath, Origin],
    origins: dict[KeyPath, Origin],
) -> None:
    """Merge a fragment, value by value; unlike an override, a section keeps the keys that aren't named."""
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
        pairs = [_key_and_value(text) for text in overrides if not text.startswith(FRAGMENT)]
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
    """Put the value in its place; a mapping replaces the section: no keys of another algorithm are left."""
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
        return _tree(value)  # with its defaults: the tag that names the algorithm is one of them
    if isinstance(value, Mapping):
        return {str(key): _plain(item, (*path, str(key))) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, (*path, index)) for index, item in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise Refused(f"{dotted(path)}: a {type(value).__name__} can't be in a config: give numbers, text, lists or dicts")


# Files

_SUFFIXES = (".yaml", ".yml")


def config_files(folder: Path) -> list[Path]:
    """Every YAML file below the folder, sorted by path."""
    return sorted(file for file in folder.rglob("*") if file.suffix in _SUFFIXES and file.is_file())


def _read_values(path: Path) -> tuple[dict[str, Any] | None, dict[KeyPath, Origin]]:
    """The values of a file, None if it holds none, and where each is."""
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
