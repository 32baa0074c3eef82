"""The names of Arrow types as people write them, and as Arrow prints them: `list<float32>`, `timestamp[us, UTC]`."""

import difflib
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

import pyarrow as pa

Parsed = TypeVar("Parsed")

_TOKEN = re.compile(r"[A-Za-z_][\w.]*|\d+|\S")
_BRACKETS = "<>[](),:"
_SHORT = {"text": "string", "bytes": "binary", "boolean": "bool", "int": "int64"}
_NAMES = (
    *(
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
    ),
    *("string", "large_string", "binary", "large_binary", "fixed_size_binary", "decimal128", "decimal256"),
    *("date32", "date64", "timestamp[us]", "timestamp[ns]", "time32[s]", "time64[us]", "duration[us]"),
    *("list", "large_list", "fixed_size_list", "struct", "map"),
)
_KNOWN = (
    "bool, int8 to int64, uint8 to uint64, float16 to float64, string, large_string, binary, large_binary, "
    "fixed_size_binary[N], date32, date64, time32[UNIT], time64[UNIT], timestamp[UNIT], timestamp[UNIT, ZONE], "
    "duration[UNIT], decimal128(PRECISION, SCALE), list<TYPE>, list<TYPE>[N], large_list<TYPE>, "
    "fixed_size_list<TYPE>[N], struct<NAME: TYPE, ...>, map<TYPE, TYPE>"
)


def parse_type(text: str) -> pa.DataType:
    """The type that a text names. Raises ValueError that says what is wrong with the text, with the nearest name."""
    return _parsed(text, _Parser.type, f"type {text!r}")


def parse_schema(types: Iterable[tuple[str, str]]) -> pa.Schema:
    """A schema from names and the text of types, nullable unless that ends in `not null`.

    Raises ValueError naming the column if a type is not known, or if two columns have one name.
    """
    fields: list[pa.Field] = []
    for name, text in types:
        where = f"schema: column {name!r} is of type {text!r}"
        field = _parsed(text, partial(_Parser.field, name=name), where)
        if _holds_nothing(field.type):
            raise ValueError(f"{where}: {field.type} cannot be asked for; known are {_KNOWN}")
        fields.append(field)
    names = [field.name for field in fields]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"schema must name at least one column and each once, got {', '.join(names) or 'none'}")
    return pa.schema(fields)


def _parsed(text: str, read: "Callable[[_Parser], Parsed]", where: str) -> Parsed:
    """What is read of the whole text. Raises ValueError that begins with `where`."""
    parser = _Parser(text)
    try:
        found = read(parser)
        parser.expect("")
    except (ValueError, pa.ArrowException) as error:
        raise ValueError(f"{where}: {error}; known are {_KNOWN}") from None
    return found


def _holds_nothing(kind: pa.DataType) -> bool:
    """Whether the type, or one that it is made of, is null or an interval, which no input has values of."""
    if pa.types.is_null(kind) or pa.types.is_interval(kind):
        return True
    return any(_holds_nothing(kind.field(number).type) for number in range(kind.num_fields))


class _Parser:
    """Reads one type, from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_TOKEN.finditer(text))
        self._place = 0

    def field(self, name: str) -> pa.Field:
        kind = self.type()
        nullable = self._peek() != "not"
        if not nullable:
            self.expect("not")
            self.expect("null")
        return pa.field(name, kind, nullable)

    def type(self) -> pa.DataType:
        name = self._next()
        made: dict[str, Callable[[], pa.DataType]] = {
            "list": self._list,
            "fixed_size_list": lambda: pa.list_(self._item(), self._size()),
            "large_list": lambda: pa.large_list(self._item()),
            "struct": self._struct,
            "map": self._map,
            "decimal128": lambda: pa.decimal128(*self._decimal()),
            "decimal256": lambda: pa.decimal256(*self._decimal()),
            "fixed_size_binary": lambda: pa.binary(self._size()),
            "timestamp": self._timestamp,
        }
        if name in made:
            return made[name]()
        if name in ("binary", "bytes") and self._peek() == "[":
            return pa.binary(self._size())
        return self._alias(name)

    def expect(self, wanted: str) -> None:
        found = self._next()
        if found != wanted:
            before = self._text[: self._start(self._place - 1)].strip()
            raise ValueError(f"expected {wanted or 'the end'!r}, found {found or 'the end'!r} after {before!r}")

    def _peek(self) -> str:
        return self._tokens[self._place][0] if self._place < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._place += 1
        return token

    def _start(self, place: int) -> int:
        """Where a token begins in the text."""
        return self._tokens[place].start() if place < len(self._tokens) else len(self._text)

    def _number(self) -> int:
        token = self._next()
        if not token.isdecimal():
            raise ValueError(f"expected a number, found {token or 'the end'!r}")
        return int(token)

    def _named(self) -> str | None:
        """The name before a colon, if there is one; it may have spaces."""
        start = place = self._place
        while place < len(self._tokens) and self._tokens[place][0] not in _BRACKETS:
            place += 1
        if place == start or place == len(self._tokens) or self._tokens[place][0] != ":":
            return None
        self._place = place + 1
        return self._text[self._start(start) : self._start(place)].strip()

    def _item(self) -> pa.Field:
        """What is in a list, in its brackets; Arrow prints it with a name."""
        self.expect("<")
        self._named()
        field = self.field("item")
        self.expect(">")
        return field

    def _list(self) -> pa.DataType:
        item = self._item()
        return pa.list_(item, self._size()) if self._peek() == "[" else pa.list_(item)

    def _size(self) -> int:
        self.expect("[")
        size = self._number()
        self.expect("]")
        return size

    def _struct(self) -> pa.DataType:
        self.expect("<")
        fields: list[pa.Field] = []
        while self._peek() != ">":
            if fields:
                self.expect(",")
            name = self._named()
            if name is None:
                raise ValueError("a field of a struct needs a name, as in struct<x: int64>")
            fields.append(self.field(name))
        self.expect(">")
        return pa.struct(fields)

    def _map(self) -> pa.DataType:
        self.expect("<")
        key = self.type()
        self.expect(",")
        item = self.field("value")
        self.expect(">")
        return pa.map_(key, item)

    def _decimal(self) -> tuple[int, int]:
        self.expect("(")
        precision = self._number()
        self.expect(",")
        scale = self._number()
        self.expect(")")
        return precision, scale

    def _timestamp(self) -> pa.DataType:
        self.expect("[")
        unit = self._next()
        zone = None
        if self._peek() == ",":
            self.expect(",")
            zone = self._zone()
        self.expect("]")
        if unit not in ("s", "ms", "us", "ns"):
            raise ValueError(f"a timestamp counts s, ms, us or ns, not {unit!r}")
        return pa.timestamp(unit, zone)

    def _zone(self) -> str:
        zone = ""
        while self._peek() not in ("]", ""):
            zone += self._next()
        if not (zone := zone.removeprefix("tz=")):
            raise ValueError("expected a zone of time after the comma")
        return zone

    def _alias(self, name: str) -> pa.DataType:
        alias = _SHORT.get(name, name)
        if self._peek() == "[":  # a unit, as in duration[us]
            self.expect("[")
            alias += f"[{self._next()}]"
            self.expect("]")
        try:
            return pa.type_for_alias(alias)
        except ValueError:
            near = difflib.get_close_matches(alias, _NAMES, n=1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"there is no type {alias!r}{hint}") from None
