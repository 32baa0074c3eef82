"""Which rows are for training and which for validation, by a hash of each row's key."""

from collections.abc import Mapping
from fractions import Fraction
from itertools import accumulate
from typing import Annotated

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, field_validator

from preprocess.row_bytes import check_type, row_digests

_MAX_PARTS = 127  # int8
_SPACE = 1 << 64


class Split(BaseModel):
    """Parts of a dataset by name. A row's part depends on its key alone, so it survives appending and reordering.

    The first eight bytes of the key's BLAKE3 digest, as a little-endian number below 2^64, fall into one of the
    ranges that the fractions cut in their order.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    fractions: Mapping[str, Annotated[float, Field(gt=0, le=1)]]
    """Share of the keys by part; the shares add up to 1."""
    key: str | None = None
    """Column whose equal values stay together; None takes the whole row."""

    @field_validator("fractions")
    @classmethod
    def _add_up(cls, fractions: Mapping[str, float]) -> Mapping[str, float]:
        if not 1 <= len(fractions) <= _MAX_PARTS:
            raise ValueError(f"a split has 1 to {_MAX_PARTS} parts, got {len(fractions)}")
        if abs(sum(fractions.values()) - 1) > 1e-9:
            raise ValueError(f"the fractions of a split must add up to 1, got {sum(fractions.values()):g}")
        for name in fractions:
            if not name or not all(character.isalnum() or character in "-_" for character in name):
                raise ValueError(f"a part's name is made of letters, digits, - and _, got {name!r}")
        return dict(fractions)

    def __hash__(self) -> int:
        return hash((tuple(self.fractions.items()), self.key))

    @property
    def names(self) -> tuple[str, ...]:
        """The parts, in the order of their numbers."""
        return tuple(self.fractions)

    def check(self, schema: pa.Schema) -> None:
        """Raises ValueError if rows of the schema have no such key."""
        if self.key is not None and self.key not in schema.names:
            raise ValueError(f"split: there is no column {self.key!r}; the columns are {', '.join(schema.names)}")
        for field in schema if self.key is None else [schema.field(self.key)]:
            try:
                check_type(field.type)
            except ValueError as error:
                raise ValueError(f"split: column {field.name!r}: {error}") from None

    def assign(self, batch: pa.RecordBatch) -> npt.NDArray[np.int8]:
        """The number of each row's part, shape (num_rows,)."""
        digests = row_digests(batch, None if self.key is None else [self.key])
        words = np.ascontiguousarray(digests[:, :8]).view("<u8").ravel()
        return np.searchsorted(self._bounds(), words, side="right").astype(np.int8)

    def _bounds(self) -> npt.NDArray[np.uint64]:
        """Where each part but the last ends, of all 64-bit numbers."""
        ends = accumulate(Fraction(share) for share in self.fractions.values())
        return np.array([min(int(end * _SPACE), _SPACE - 1) for end in ends][:-1], np.uint64)
