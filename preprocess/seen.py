"""What the values of JSON fields were, as far as one type for all of them is concerned."""

from typing import Any

import pyarrow as pa

# Arrow's IPC format nests 64 levels at most.
MAX_DEPTH = 60
# Doubles hold every integer up to here.
EXACT = 2**53

KINDS = {bool: "boolean", int: "integer", float: "float", str: "string", list: "list", dict: "object"}
_KINDS_BY_NAME = {name: kind for kind, name in KINDS.items()}
_SCALARS = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}

Place = tuple[int, str, int]
"""Number of the row among all rows of the survey, file and line."""


class Seen:
    """What the values of one JSON field were so far.

    Values that no type holds together are not refused here: `refusal` says which came first.
    """

    __slots__ = ("_deep", "_depth", "_fields", "_first", "_huge", "_item", "_large", "_name", "_num_items", "count")

    def __init__(self, name: str = "", depth: int = 0) -> None:
        """`name` is the field's path, for people."""
        self.count = 0  # values that are not null
        self._name = name
        self._depth = depth
        self._first: dict[type, Place] = {}  # in the order of places
        self._large: Place | None = None  # the first integer that a double cannot hold
        self._huge: tuple[Place, str] | None = None  # the first outside of int64, and how it reads
        self._deep: Place | None = None  # the first that is nested too deeply
        self._fields: dict[str, Seen] = {}
        self._item: Seen | None = None
        self._num_items = 0

    def add(self, value: Any, place: Place, suspects: list["Seen"]) -> None:  # Any: whatever JSON holds
        """Appends to `suspects` each field that this value gives reason to ask for its refusal."""
        if value is None:
            return
        self.count += 1
        kind = type(value)
        if kind is int and not -EXACT <= value <= EXACT:
            self._add_large(value, place, suspects)
        if kind not in self._first:
            self._first[kind] = place
            if len(self._first) > 1:
                suspects.append(self)
        if kind is dict:
            if self._is_too_deep(place):
                suspects.append(self)
                return
            for name, child in value.items():
                if name not in self._fields:
                    self._fields[name] = self._child(name)
                self._fields[name].add(child, place, suspects)
        elif kind is list:
            if self._is_too_deep(place):
                suspects.append(self)
                return
            if self._item is None:
                self._item = self._child(None)
            self._num_items += len(value)
            for child in value:
                self._item.add(child, place, suspects)

    def merge(self, other: "Seen", shift: "Shift") -> None:
        """Adds what was seen of the same field in the rows that come next."""
        self.count += other.count
        for kind, place in other._first.items():
            self._first.setdefault(kind, shift.of(place))
        if self._large is None and other._large is not None:
            self._large = shift.of(other._large)
        if self._huge is None and other._huge is not None:
            self._huge = shift.of(other._huge[0]), other._huge[1]
        if self._deep is None and other._deep is not None:
            self._deep = shift.of(other._deep)
        for name, child in other._fields.items():
            if name not in self._fields:
                self._fields[name] = self._child(name)
            self._fields[name].merge(child, shift)
        if other._item is not None:
            if self._item is None:
                self._item = self._child(None)
            self._num_items += other._num_items
            self._item.merge(other._item, shift)

    def refusal(self) -> tuple[Place, str] | None:
        """The first place at which this field, or one in it, can be of no type any more, and why."""
        refusals = (self._own_refusal(), *(child.refusal() for child in self._children()))
        found = (refusal for refusal in refusals if refusal is not None)
        return min(found, key=lambda refusal: refusal[0][0], default=None)

    def arrow_fields(self, known: list[pa.Field]) -> list[pa.Field]:
        """The fields of the objects seen; nullable where not every object has a value."""
        fields = {field.name: field for field in known}
        return [seen._arrow_field(name, self.count, fields.get(name)) for name, seen in self._fields.items()]

    def to_dict(self) -> dict[str, Any]:  # Any: as JSON
        return {
            "count": self.count,
            "first": [[KINDS[kind], *place] for kind, place in self._first.items()],
            "large": self._large,
            "huge": self._huge,
            "deep": self._deep,
            "fields": {name: child.to_dict() for name, child in self._fields.items()},
            "item": None if self._item is None else self._item.to_dict(),
            "num_items": self._num_items,
        }

    @classmethod
    def from_dict(cls, saved: dict[str, Any], name: str = "", depth: int = 0) -> "Seen":  # Any: as JSON
        seen = cls(name, depth)
        seen.count = saved["count"]
        seen._first = {_KINDS_BY_NAME[kind]: _place(place) for kind, *place in saved["first"]}
        seen._large = None if saved["large"] is None else _place(saved["large"])
        seen._huge = None if saved["huge"] is None else (_place(saved["huge"][0]), saved["huge"][1])
        seen._deep = None if saved["deep"] is None else _place(saved["deep"])
        for child, fields in saved["fields"].items():
            seen._fields[child] = cls.from_dict(fields, seen._path(child), depth + 1)
        if saved["item"] is not None:
            seen._item = cls.from_dict(saved["item"], seen._path(None), depth + 1)
        seen._num_items = saved["num_items"]
        return seen

    def _children(self) -> list["Seen"]:
        return [*self._fields.values(), *([] if self._item is None else [self._item])]

    def _child(self, name: str | None) -> "Seen":
        return Seen(self._path(name), self._depth + 1)

    def _path(self, name: str | None) -> str:
        """Of a field of these objects, or of the items of these lists."""
        if name is None:
            return f"{self._name}[]"
        return f"{self._name}.{name}" if self._name else name

    def _is_too_deep(self, place: Place) -> bool:
        if self._depth < MAX_DEPTH:
            return False
        if self._deep is None:
            self._deep = place
        return True

    def _add_large(self, value: int, place: Place, suspects: list["Seen"]) -> None:
        if self._large is None:
            self._large = place
            suspects.append(self)
        if self._huge is None and not -(2**63) <= value < 2**63:
            shown = str(value) if abs(value) < 10**30 else f"an integer of {value.bit_length()} bits"
            self._huge = place, shown
            suspects.append(self)

    def _own_refusal(self) -> tuple[Place, str] | None:
        found: list[tuple[Place, str]] = []
        if self._deep is not None:
            column = self._name.split(".")[0].split("[]")[0][:40]
            found.append((self._deep, f"column {column!r} is nested more than {MAX_DEPTH} levels deep"))
        if self._huge is not None:
            place, shown = self._huge
            reason = f"column {self._name!r} holds {shown}, outside of int64; make it a string or a float in the input"
            found.append((place, reason))
        if mixed := self._mixed():
            found.append(mixed)
        if float in self._first and self._large is not None:
            reason = (
                f"column {self._name!r} has floats (first at {spoken(self._first[float])}) and an integer that no "
                f"float holds exactly (at {spoken(self._large)}); make them one type"
            )
            found.append((max(self._first[float], self._large), reason))
        return min(found, key=lambda refusal: refusal[0][0], default=None)

    def _mixed(self) -> tuple[Place, str] | None:
        """The first value of a kind that does not go with the first of all."""
        (first, at), *others = self._first.items() or [(type(None), (0, "", 0))]
        for position, (kind, place) in enumerate(others):
            if {first, *(other for other, _ in others[: position + 1])} != {int, float}:
                reason = (
                    f"column {self._name!r} is of type {KINDS[kind]}, and of type {KINDS[first]} at {spoken(at)}; "
                    "make them one type, or leave the column out with --columns"
                )
                return place, reason
        return None

    def _arrow_field(self, name: str, num_slots: int, known: pa.Field | None) -> pa.Field:
        if not num_slots and known is not None:
            return known
        nullable = self.count < num_slots or not num_slots
        return pa.field(name, self._arrow_type(known.type if known else None), nullable)

    def _arrow_type(self, known: pa.DataType | None) -> pa.DataType:
        if not self._first:
            return pa.null()
        if dict in self._first:
            return pa.struct(self.arrow_fields(fields_of(known)))
        if self._item is not None:
            item = known.value_field if known and pa.types.is_list(known) else None
            return pa.list_(self._item._arrow_field("item", self._num_items, item))
        return _SCALARS[float if float in self._first else next(iter(self._first))]


class Shift:
    """Where the places of a survey are when another survey comes before it."""

    def __init__(self, *, num_rows: int, file: str | None, num_lines: int) -> None:
        """The rows before, and the lines before in the file that may go on."""
        self._num_rows = num_rows
        self._file = file
        self._num_lines = num_lines

    def of(self, place: Place) -> Place:
        row, file, line = place
        return row + self._num_rows, file, line + (self._num_lines if file == self._file else 0)


def spoken(place: Place) -> str:
    """File and line, for people."""
    _, file, line = place
    return f"{file}:{line}"


def fields_of(kind: pa.DataType | None) -> list[pa.Field]:
    """The fields of a struct; none of another type."""
    return [kind.field(i) for i in range(kind.num_fields)] if kind and pa.types.is_struct(kind) else []


def _place(saved: list[Any]) -> Place:  # Any: as JSON
    row, file, line = saved
    return row, file, line
