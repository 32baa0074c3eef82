"""A recipe as a YAML, TOML or JSON file has it: the same values as in Python, by the same names.

Sections are `reading`, `operations` (a list, each `name: settings`), `packing`, `output` (`block_bytes` and the
encoding), `split` and `shuffle`; `task_bytes` stands alone. A name that is not known is
refused with the nearest one that is.
"""

import dataclasses
import difflib
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from dataplane.catalog import Encoding
from dataplane.errors import InputError
from dataplane.storage import open_store
from preprocess.operations import OPERATIONS, Settings
from preprocess.recipe import BLOCK_BYTES, Packing, Recipe
from preprocess.shuffle import Shuffle
from preprocess.sources import Reading, split_url
from preprocess.split import Split

Value = TypeVar("Value")
Section = Mapping[str, Any]  # Any: whatever a file holds

_SECTIONS = ("reading", "operations", "packing", "columns", "output", "split", "shuffle", "task_bytes")


def load_recipe(
    url: str,
    overrides: Section | None = None,
    storage_options: Mapping[str, Any] | None = None,  # Any: as the stores' own options
) -> Recipe:
    """The recipe in a .yaml, .yml, .toml or .json file, with the settings of `overrides` put over it.

    Raises:
        InputError: there is no such file.
        ValueError: the file does not parse, or a name or a value in it is not allowed; says file and key.
    """
    root, name = split_url(url)
    try:
        data = open_store(root, storage_options).read(name)
    except FileNotFoundError:
        raise InputError(f"recipe {url}: there is no such file") from None
    return parse_recipe(_merged(_parsed(data, url), overrides or {}), where=url)


def parse_recipe(values: Section, where: str = "recipe") -> Recipe:
    """The recipe that nested mappings describe. Raises ValueError that begins with `where` and names the key."""
    try:
        return _recipe(values)
    except _RefusedError as refusal:
        raise ValueError(f"{where}: {refusal}") from None


class _RefusedError(Exception):
    """What is wrong with a recipe, with the key in front."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}" if key else message)


def _recipe(values: Section) -> Recipe:
    _check_names(values, _SECTIONS, "", "section")
    output = dict(_mapping(values.get("output") or {}, "output"))
    fields = [field.name for field in dataclasses.fields(Encoding)]
    _check_names(output, ["block_bytes", *fields], "output")
    block_bytes = _validated(TypeAdapter(int), output.pop("block_bytes", BLOCK_BYTES), "output.block_bytes")
    made: dict[str, Any] = {  # Any: each is what its name says
        "reading": _section(Reading, values, "reading"),
        "packing": _section(Packing, values, "packing"),
        "encoding": _dataclass(Encoding, output, "output"),
        "split": _section(Split, values, "split"),
        "shuffle": _section(Shuffle, values, "shuffle"),
        "columns": _validated(TypeAdapter(tuple[str, ...] | None), values.get("columns"), "columns"),
        "operations": tuple(_operation(*numbered) for numbered in enumerate(_list(values.get("operations")))),
        "block_bytes": block_bytes,
        "task_bytes": _validated(TypeAdapter(int | None), values.get("task_bytes"), "task_bytes"),
    }
    try:
        return Recipe(**{name: value for name, value in made.items() if value is not None})
    except ValueError as error:
        raise _RefusedError("", str(error)) from None


def _section(kind: type[Value], values: Section, name: str) -> Value | None:
    """The value of a section, None where there is no such section."""
    if values.get(name) is None:
        return None
    section = _mapping(values[name], name)
    if issubclass(kind, BaseModel):
        return _model(kind, section, name)
    return _dataclass(kind, section, name)


def _operation(number: int, value: Any) -> Settings:  # Any: whatever a file holds
    key = f"operations[{number}]"
    if isinstance(value, str):
        value = {value: None}
    if not isinstance(value, Mapping) or len(value) != 1:
        raise _RefusedError(key, f"must read `name: settings`, got {_shown(value)}")
    ((name, settings),) = value.items()
    _check_names([name], OPERATIONS, key, "operation")
    kind = OPERATIONS[name]
    if not isinstance(settings, Mapping) or (kind.shorthand and not _looks_like_settings(settings, kind)):
        if settings is not None and kind.shorthand is None:
            raise _RefusedError(f"{key}.{name}", f"must be a mapping of settings, got {_shown(settings)}")
        settings = {} if settings is None else {kind.shorthand: settings}
    return _model(kind, settings, f"{key}.{name}")


def _looks_like_settings(settings: Mapping[str, Any], kind: type[Settings]) -> bool:  # Any: whatever a file holds
    """Whether a mapping is the settings themselves, and not the value of the one that may stand alone."""
    return any(name in _names_of(kind) for name in settings) or not _takes_mapping(kind)


def _takes_mapping(kind: type[Settings]) -> bool:
    assert kind.shorthand is not None
    return "Mapping" in str(kind.model_fields[kind.shorthand].annotation)


def _model(kind: type[Value], section: Section, key: str) -> Value:
    assert issubclass(kind, BaseModel)
    _check_names(section, _names_of(kind), key)
    return _validated(TypeAdapter(kind), section, key)


def _dataclass(kind: type[Value], section: Section, key: str) -> Value:
    _check_names(section, [field.name for field in dataclasses.fields(kind)], key)  # type: ignore[arg-type]  # is one
    return _validated(TypeAdapter(kind), section, key)


def _names_of(kind: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in kind.model_fields.items()]


def _validated(adapter: TypeAdapter[Value], value: Any, key: str) -> Value:  # Any: whatever a file holds
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        mistake = error.errors()[0]
        place = ".".join([key, *(str(part) for part in mistake["loc"])])
        if mistake["type"] == "missing":
            raise _RefusedError(place, "is missing") from None
        message = mistake["msg"].removeprefix("Value error, ")
        message = message[:1].lower() + message[1:]
        seen = "" if mistake["type"] == "value_error" else f", got {_shown(mistake['input'])}"
        raise _RefusedError(place, f"{message}{seen}") from None


def _check_names(names: Iterable[Any], known: Iterable[str], key: str, what: str = "setting") -> None:  # Any: keys
    known = list(known)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known) or 'none'}"
            raise _RefusedError(key, f"there is no {what} {name!r}; {hint}")


def _mapping(value: Any, key: str) -> Section:  # Any: whatever a file holds
    if not isinstance(value, Mapping):
        raise _RefusedError(key, f"must be a mapping of settings, got {_shown(value)}")
    return value


def _list(value: Any) -> list[Any]:  # Any: whatever a file holds
    if value is not None and not isinstance(value, list | tuple):
        raise _RefusedError("operations", f"must be a list, got {_shown(value)}")
    return list(value or ())


def _merged(values: Section, overrides: Section) -> Section:
    merged = dict(values)
    for name, value in overrides.items():
        before = merged.get(name)
        merged[name] = {**before, **value} if isinstance(value, Mapping) and isinstance(before, Mapping) else value
    return merged


def _parsed(data: bytes, where: str) -> Section:
    parsers: dict[str, Callable[[str], Any]] = {
        "yaml": lambda text: yaml.load(text, _UniqueKeys),
        "toml": tomllib.loads,
        "json": lambda text: json.loads(text, object_pairs_hook=_unique),
    }
    suffix = where.rpartition(".")[2].lower().replace("yml", "yaml")
    if suffix not in parsers:
        raise ValueError(f"recipe {where}: a recipe's name ends with .yaml, .yml, .toml or .json")
    try:
        values = parsers[suffix](data.decode())
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"recipe {where}: does not parse as {suffix.upper()}: {reason}") from None
    if not isinstance(values, Mapping):
        raise ValueError(f"recipe {where}: must hold a mapping of sections, got {_shown(values)}")
    return values


class _UniqueKeys(yaml.SafeLoader):  # type: ignore[misc]  # the package has no types
    """Refuses a key that stands twice, of which YAML would keep the last."""


def _unique_mapping(loader: _UniqueKeys, node: yaml.MappingNode) -> dict[Any, Any]:  # Any: whatever YAML holds
    loader.flatten_mapping(node)
    return _unique(loader.construct_pairs(node, deep=True))


_UniqueKeys.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def _unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:  # Any: whatever a file holds
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"the key {name!r} stands twice")
    return dict(pairs)


def _shown(value: Any) -> str:  # Any: whatever a file holds
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:76]} ..."
