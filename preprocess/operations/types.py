"""Arrow types as a recipe spells them: what `str(type)` gives, and shorter forms."""

import difflib
import re
from collections.abc import Callable

import pyarrow as pa

_TOKEN = re.compile(r"\s*([A-Za-z_][\w.]*|\d+|[<>\[\],:()=]|/|[+-]|\S)")
_SHORT = {"text": "string", "bytes": "binary", "boolean": "bool", "int": "int64"}
_NESTED = ("list", "large_list", "fixed_size_list", "struct", "map", "decimal128", "decimal256", "fixed_size_binary")
_KNOWN = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32"),
    *(
        "float64",
        "string",
        "large_string",
        "binary",
        "large_binary",
        "date32",
        "date64",
        "timestamp[us]",
        "timestamp[ns]",
    ),
    *("time32[s]", "time64[us]", "duration[us]", *_NESTED),
)


def parse_type(text: str) -> pa.DataType:
    """The type that a text names.

    Known are Arrow's own names (`int8`, `float32`, `string`, `timestamp[us]`, ...), `timestamp[us, UTC]`, `binary[16]`,
    `decimal128(12, 2)`, `list<T>`, `list<T>[3]`, `large_list<T>`, `map<K, V>` and `struct<name: T, ...>`.

    Raises ValueError with the nearest name.
    """
    parser = _Parser(text)
    kind = parser.type()
    parser.expect("")
    return kind


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _TOKEN.findall(text)
        self._place = 0

    def type(self) -> pa.DataType:
        name = self._next()
        nested: dict[str, Callable[[], pa.DataType]] = {
            "list": self._list,
            "fixed_size_list": self._list,
            "large_list": lambda: pa.large_list(self._item()),
            "struct": self._struct,
            "map": self._map,
            "decimal128": lambda: pa.decimal128(*self._decimal()),
            "decimal256": lambda: pa.decimal256(*self._decimal()),
            "timestamp": self._timestamp,
        }
        if name in nested:
            return nested[name]()
        if name in ("binary", "bytes", "fixed_size_binary") and self._peek() == "[":
            return pa.binary(self._size())
        return self._alias(name)

    def expect(self, wanted: str) -> None:
        found = self._next()
        if found != wanted:
            raise ValueError(
                f"type {self._text!r}: expected {wanted or 'the end'!r}, found {found or 'the end'!r} "
                f"after {' '.join(self._tokens[: self._place - 1])!r}"
            )

    def _peek(self) -> str:
        return self._tokens[self._place] if self._place < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._place += 1
        return str(token)

    def _number(self) -> int:
        token = self._next()
        if not token.isdecimal():
            raise ValueError(f"type {self._text!r}: expected a number, found {token or 'the end'!r}")
        return int(token)

    def _alias(self, name: str) -> pa.DataType:
        alias = _SHORT.get(name, name)
        if self._peek() == "[":  # a unit, as in duration[us]
            self.expect("[")
            alias += f"[{self._next()}]"
            self.expect("]")
        try:
            return pa.type_for_alias(alias)
        except ValueError:
            near = difflib.get_close_matches(alias, _KNOWN, n=1)
            hint = f", did you mean {near[0]!r}?" if near else f"; known are {', '.join(_KNOWN)}"
            raise ValueError(f"type {self._text!r}: there is no type {alias!r}{hint}") from None

    def _field(self, name: str) -> pa.Field:
        kind = self.type()
        nullable = self._peek() != "not"
        if not nullable:
            self.expect("not")
            self.expect("null")
        return pa.field(name, kind, nullable)

    def _item(self) -> pa.Field:
        self.expect("<")
        if self._tokens[self._place + 1 : self._place + 2] == [":"]:  # the item's name, as Arrow prints it
            self._place += 2
        field = self._field("item")
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
            name = self._next()
            self.expect(":")
            fields.append(self._field(name))
        self.expect(">")
        return pa.struct(fields)

    def _map(self) -> pa.DataType:
        self.expect("<")
        key = self.type()
        self.expect(",")
        item = self._field("value")
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
        zone = ""
        if self._peek() == ",":
            self.expect(",")
            if self._tokens[self._place : self._place + 2] == ["tz", "="]:
                self._place += 2
            while self._peek() not in ("]", ""):
                zone += self._next()
        self.expect("]")
        if unit not in ("s", "ms", "us", "ns"):
            raise ValueError(f"type {self._text!r}: a timestamp counts s, ms, us or ns, not {unit!r}")
        return pa.timestamp(unit, zone or None)
