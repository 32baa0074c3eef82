"""What the fields of a column of CSV can be read as: text that says a number or a truth value in every row, or text."""

from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from preprocess.seen import EXACT

# No leading zeros, which would be lost: they mean identifiers.
_INTEGER = r"^-?(?:0|[1-9][0-9]*)$"
_NUMBER = r"^-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$"
_NOT_FINITE = r"^(?:nan|NaN|-?(?:inf|Inf|Infinity))$"
_BOOLEAN = r"^(?:true|false|True|False|TRUE|FALSE)$"
_NEGATIVE_ZERO = "-0"
_HAS_DIGIT = r"^[^eE]*[1-9]"
# A double keeps so many; a longer number would come back as another one.
_MAX_DIGITS = 17
_TOO_MANY_DIGITS = rf"^-?[0.]*[1-9](?:\.?[0-9]){{{_MAX_DIGITS},}}"


@dataclass(slots=True)
class TextColumn:
    """What holds of all fields so far. Empty ones say nothing."""

    num_rows: int = 0
    num_empty: int = 0
    are_booleans: bool = True
    are_integers: bool = True
    are_numbers: bool = True
    are_exact: bool = True
    """Whether a double holds every integer."""
    any_finite: bool = False
    """Whether a number with digits is among them: `nan` alone may be a name."""

    def add(self, values: pa.StringArray) -> None:
        """Looks at more fields."""
        self.num_rows += len(values)
        filled = values.filter(pc.not_equal(values, ""))
        self.num_empty += len(values) - len(filled)
        if len(filled) == 0:
            return
        if self.are_booleans:
            self.are_booleans = _all_match(filled, _BOOLEAN)
        if self.are_numbers:
            self._add_numbers(filled)

    def merge(self, other: "TextColumn") -> None:
        """Adds what was found in other rows."""
        self.num_rows += other.num_rows
        self.num_empty += other.num_empty
        self.are_booleans &= other.are_booleans
        self.are_integers &= other.are_integers
        self.are_numbers &= other.are_numbers
        self.are_exact &= other.are_exact
        self.any_finite |= other.any_finite

    def arrow_field(self, name: str, num_rows: int, known: pa.DataType | None = None) -> pa.Field:
        """The narrowest field that loses nothing, in a table of so many rows; of the `known` type if it can be."""
        kind = self._arrow_type() if known is None or not self._can_be(known) else known
        has_nulls = self.num_rows < num_rows or (self.num_empty > 0 and not pa.types.is_string(kind))
        return pa.field(name, kind, has_nulls or pa.types.is_null(kind))

    def to_dict(self) -> dict[str, Any]:  # Any: as JSON
        return asdict(self)

    def _can_be(self, kind: pa.DataType) -> bool:
        types = pa.types
        if self.num_rows == self.num_empty:
            return True
        return types.is_string(kind) or (types.is_float64(kind) and self.are_numbers and self.are_exact)

    def _arrow_type(self) -> pa.DataType:
        if self.num_rows == self.num_empty:
            return pa.null()
        if self.are_booleans:
            return pa.bool_()
        if self.are_numbers and self.are_integers:
            return pa.int64()
        if self.are_numbers and self.are_exact and self.any_finite:
            return pa.float64()
        return pa.string()

    def _add_numbers(self, filled: pa.StringArray) -> None:
        integers = pc.match_substring_regex(filled, _INTEGER)
        whole = filled.filter(pc.and_(integers, pc.not_equal(filled, _NEGATIVE_ZERO)))
        if len(whole) < len(filled):
            self.are_integers = False
            others = filled.filter(pc.invert(integers))
            finite = pc.match_substring_regex(others, _NUMBER)
            digits = others.filter(finite)
            names = others.filter(pc.invert(finite))
            self.are_numbers = _all_match(names, _NOT_FINITE) and _are_doubles(digits)
            self.any_finite |= len(digits) > 0
        if len(whole) and self.are_numbers:
            self._add_integers(whole)

    def _add_integers(self, whole: pa.StringArray) -> None:
        self.any_finite = True
        try:
            values = whole.cast(pa.int64())
        except pa.ArrowInvalid:  # outside of int64
            self.are_numbers = self.are_integers = False
            return
        ends = pc.min_max(values).as_py()
        self.are_exact &= ends["min"] >= -EXACT and ends["max"] <= EXACT


def _are_doubles(numbers: pa.StringArray) -> bool:
    """Whether doubles come so near that their shortest spelling is the same number."""
    values = numbers.cast(pa.float64())
    lost = pc.and_(pc.equal(values, 0.0), pc.match_substring_regex(numbers, _HAS_DIGIT))
    return not (
        pc.any(pc.is_inf(values)).as_py()
        or pc.any(lost).as_py()
        or pc.any(pc.match_substring_regex(numbers, _TOO_MANY_DIGITS)).as_py()
    )


def _all_match(values: pa.StringArray, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(values, pattern), min_count=0).as_py())
