"""The names of Arrow types as people write them, and as Arrow prints them: `list<float32>`, `timestamp[us, UTC]`."""

import re
from collections.abc import Callable, Iterable

import pyarrow as pa

_TOKEN = re.compile(r"\s*([<>\[\](),:]|[^<>\[\](),:\s][^<>\[\](),:]*)")
_NOT_NULL = re.compile(r"\s+not null$")
_KNOWN = (
    "bool, int8 to int64, uint8 to uint64, float16 to float64, string, large_string, binary, large_binary, "
    "fixed_size_binary[N], date32, date64, time32[UNIT], time64[UNIT], timestamp[UNIT], timestamp[UNIT, ZONE], "
    "duration[UNIT], decimal128(PRECISION, SCALE), list<TYPE>, large_list<TYPE>, fixed_size_list<TYPE>[N], "
    "struct<NAME: TYPE, ...>, map<TYPE, TYPE>; each may end in `not null`"
)


def parse_schema(types: Iterable[tuple[str, str]]) -> pa.Schema:
    """A schema from names and the text of types, nullable unless that ends in `not null`.

    Raises ValueError naming the column if a type is not known, or if two columns have one name.
    """
    fields: list[pa.Field] = []
    for name, text in types:
        try:
            fields.append(_Parser(text).whole_field(name))
        except (ValueError, pa.ArrowException) as error:
            raise ValueError(f"schema: column {name!r} is of type {text!r}: {error}; known are {_KNOWN}") from None
    names = [field.name for field in fields]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"schema must name at least one column and each once, got {', '.join(names) or 'none'}")
    return pa.schema(fields)


class _Parser:
    """Reads one type, from left to right."""

    def __init__(self, text: str) -> None:
        self._tokens = [match[1].strip() for match in _TOKEN.finditer(text)]

    def whole_field(self, name: str) -> pa.Field:
        field = self._field(name)
        if self._tokens:
            raise ValueError(f"found {self._tokens[0]!r} behind the type")
        return field

    def _field(self, name: str) -> pa.Field:
        kind = self._type()
        nullable = True
        if self._tokens and self._tokens[0] == "not null":
            self._next("not null")
            nullable = False
        return pa.field(name, kind, nullable)

    def _type(self) -> pa.DataType:
        word = self._word()
        if _NOT_NULL.search(word):
            word = _NOT_NULL.sub("", word)
            self._tokens.insert(0, "not null")
        make: dict[str, Callable[[], pa.DataType]] = {
            "list": lambda: pa.list_(self._item()),
            "large_list": lambda: pa.large_list(self._item()),
            "fixed_size_list": self._fixed_size_list,
            "struct": lambda: pa.struct(self._struct_fields()),
            "map": self._map,
            "fixed_size_binary": lambda: pa.binary(self._numbers("[", "]", 1)[0]),
            "decimal128": lambda: pa.decimal128(*self._numbers("(", ")", 2)),
            "decimal256": lambda: pa.decimal256(*self._numbers("(", ")", 2)),
        }
        if word in make:
            return make[word]()
        if self._tokens[:1] != ["["]:
            return _primitive(word)
        self._next("[")
        unit = self._word()
        zone = None
        if self._tokens[:1] == [","]:
            self._next(",")
            zone = self._zone()
        self._next("]")
        if zone is None:
            return _primitive(f"{word}[{unit}]")
        if word != "timestamp":
            raise ValueError(f"{word} has no zone")
        return pa.timestamp(unit, zone)

    def _zone(self) -> str:
        zone = self._word().removeprefix("tz=")
        while self._tokens[:1] == [":"]:  # +02:00
            zone += self._next(":") + self._word()
        return zone

    def _fixed_size_list(self) -> pa.DataType:
        item = self._item()
        return pa.list_(item, self._numbers("[", "]", 1)[0])

    def _item(self) -> pa.Field:
        """The items in brackets, with or without a name."""
        self._next("<")
        name = self._named()
        field = self._field("item" if name is None else name)
        self._next(">")
        return field.with_name("item")

    def _struct_fields(self) -> list[pa.Field]:
        fields: list[pa.Field] = []
        self._next("<")
        while self._tokens[:1] != [">"]:
            if fields:
                self._next(",")
            name = self._named()
            if name is None:
                raise ValueError("a field of a struct needs a name, as in struct<x: int64>")
            fields.append(self._field(name))
        self._next(">")
        return fields

    def _map(self) -> pa.DataType:
        self._next("<")
        key = self._type()
        self._next(",")
        item = self._field("value")
        self._next(">")
        return pa.map_(key, item)

    def _named(self) -> str | None:
        """The name before a colon, if there is one."""
        if self._tokens[1:2] != [":"]:
            return None
        name = self._word()
        self._next(":")
        return name

    def _numbers(self, opening: str, closing: str, count: int) -> list[int]:
        self._next(opening)
        numbers = [int(self._word())]
        for _ in range(count - 1):
            self._next(",")
            numbers.append(int(self._word()))
        self._next(closing)
        return numbers

    def _word(self) -> str:
        if not self._tokens or not re.match(r"[^<>\[\](),:]", self._tokens[0]):
            raise ValueError(f"found {self._tokens[0]!r}" if self._tokens else "it ends too early")
        return self._tokens.pop(0)

    def _next(self, expected: str) -> str:
        found = self._tokens[0] if self._tokens else "the end"
        if found != expected:
            raise ValueError(f"found {found!r} where {expected!r} should be")
        return self._tokens.pop(0)


def _primitive(name: str) -> pa.DataType:
    try:
        kind = pa.type_for_alias(name)
    except ValueError:
        raise ValueError(f"{name!r} is not known") from None
    if pa.types.is_null(kind) or pa.types.is_interval(kind):
        raise ValueError(f"{name!r} cannot be asked for")
    return kind
