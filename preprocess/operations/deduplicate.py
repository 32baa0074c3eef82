"""Rows that repeat others: exactly, or nearly.

Near duplicates are found by MinHash and locality-sensitive hashing (Broder, "On the resemblance and containment of
documents", 1997; Leskovec, Rajaraman, Ullman, "Mining of Massive Datasets", chapter 3). Two texts whose sets of
shingles have Jaccard similarity s meet in one of b bands of r of their b * r minima with probability 1 - (1 - s^r)^b;
datasketch chooses b and r so that the sum of wrong meetings below the threshold and missed ones above it is least.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from dataplane.errors import MissingExtraError
from preprocess.operations.base import BoundKeys, Settings
from preprocess.operations.refusals import require_columns
from preprocess.row_bytes import DIGEST_BYTES, check_type, row_digests

Parts = Sequence[Callable[[], pa.Table]]

# Digests held at a time: 16 bytes and as many of places and order, half a gigabyte in all.
_MAX_DIGESTS = 1 << 24
_SHINGLES = 4096  # hashed at a time; each takes num_perm numbers


class Deduplicate(Settings):
    """Keeps the first of rows with equal values in the columns, or of rows that are equal as a whole.

    Compared by 128 bits of BLAKE3: two different ones of 10^12 rows meet with a chance of 10^-15.
    """

    name: ClassVar[str] = "deduplicate"
    shorthand: ClassVar[str | None] = "columns"

    columns: tuple[str, ...] | None = None
    """None compares whole rows."""
    reason: str = "exact duplicate"

    def bind(self, schema: pa.Schema) -> BoundKeys:
        require_columns(self.columns or (), schema, self)
        for field in schema if self.columns is None else [schema.field(name) for name in self.columns]:
            try:
                check_type(field.type)
            except ValueError as error:
                raise ValueError(f"{self}: column {field.name!r}: {error}") from None
        return _Digests(self.columns)

    def keep(self, parts: Parts) -> Iterator[npt.NDArray[np.bool_]]:
        """Holds a bit for each row, and the digests of at most 16 million rows at a time."""
        sizes = [part().num_rows for part in parts]
        bounds = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        kept = np.zeros(-(-int(bounds[-1]) // 8), np.uint8)
        num_ranges = -(-int(bounds[-1]) // _MAX_DIGESTS)
        for number in range(num_ranges):
            firsts = _first_places(parts, bounds, number, num_ranges)
            np.bitwise_or.at(kept, firsts >> 3, np.left_shift(np.uint8(1), (firsts & 7).astype(np.uint8)))
        for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            bits = np.unpackbits(kept[start >> 3 : -(-stop // 8)], bitorder="little")
            yield bits[start & 7 :][: stop - start].astype(bool)


@dataclass(frozen=True)
class _Digests:
    _columns: Sequence[str] | None

    schema: ClassVar[pa.Schema] = pa.schema([pa.field("digest", pa.binary(DIGEST_BYTES), nullable=False)])

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        digests = row_digests(batch, self._columns)
        buffers = [None, pa.py_buffer(digests.tobytes())]
        column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(DIGEST_BYTES), len(digests), buffers)
        return pa.RecordBatch.from_arrays([column], schema=self.schema)


def _first_places(parts: Parts, bounds: npt.NDArray[np.int64], number: int, num_ranges: int) -> npt.NDArray[np.int64]:
    """Where each digest of a range first stands, among all rows."""
    words: list[npt.NDArray[np.uint64]] = []
    places: list[npt.NDArray[np.int64]] = []
    for part, start in zip(parts, bounds.tolist(), strict=False):
        digests = _fixed(part().column("digest"), DIGEST_BYTES).view("<u8").reshape(-1, 2)
        mine = np.flatnonzero(digests[:, 0] % np.uint64(num_ranges) == number)
        words.append(digests[mine])
        places.append(start + mine)
    found, where = np.concatenate(words), np.concatenate(places)
    # Sorted by digest, and those of one digest by place.
    order = np.lexsort((where, found[:, 0], found[:, 1]))
    found, where = found[order], where[order]
    is_first = np.ones(len(found), bool)
    is_first[1:] = (found[1:] != found[:-1]).any(axis=1)
    return where[is_first]


class DeduplicateNear(Settings):
    """Drops a row whose text is similar to that of an earlier row that stays; null is similar to nothing.

    The similarity is Jaccard's, of the sets of shingles, estimated from `num_perm` minima: its standard error is at
    most 0.5 / sqrt(num_perm), 0.044 by default. All signatures of kept rows are held: about 4 kB a row.
    """

    name: ClassVar[str] = "deduplicate_near"
    shorthand: ClassVar[str | None] = "column"

    column: str = "text"
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.8
    """Similarity from which on a row is dropped."""
    shingle: Annotated[int, Field(ge=1)] = 5
    """Words, or characters, of a shingle; a shorter text is one shingle."""
    unit: Literal["word", "character"] = "word"
    """Words are what white space separates; letter case counts."""
    num_perm: Annotated[int, Field(ge=16, le=1024)] = 128
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 1
    reason: str = "near duplicate"

    def depends_on(self) -> Mapping[str, str]:
        return {"datasketch": str(_datasketch().__version__)}

    def bind(self, schema: pa.Schema) -> BoundKeys:
        require_columns([self.column], schema, self)
        kind = schema.field(self.column).type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise ValueError(f"{self}: column {self.column!r} is of type {kind}, not string")
        return _Signatures(self, _datasketch())

    def keep(self, parts: Parts) -> Iterator[npt.NDArray[np.bool_]]:
        datasketch = _datasketch()
        index = datasketch.MinHashLSH(threshold=self.threshold, num_perm=self.num_perm)
        permutations = self.empty_sketch(datasketch).permutations
        kept: list[npt.NDArray[np.uint32]] = []
        for part in parts:
            table = part()
            signatures = _fixed(table.column("signature"), 4 * self.num_perm).view("<u4").reshape(-1, self.num_perm)
            mask = np.ones(len(signatures), bool)
            for row in np.flatnonzero(table.column("filled").to_numpy()).tolist():
                sketch = datasketch.MinHash(
                    hashvalues=signatures[row], permutations=permutations, seed=self.seed, scheme="affine32"
                )
                near = [kept[number] for number in index.query(sketch)]
                if near and (np.stack(near) == signatures[row]).mean(axis=1).max() >= self.threshold:
                    mask[row] = False
                else:
                    index.insert(len(kept), sketch)
                    kept.append(signatures[row].copy())
            yield mask

    def empty_sketch(self, datasketch: Any) -> Any:  # Any: the package is not always there
        """A MinHash of nothing."""
        # datasketch mixes what it is given; CRC-32 of a shingle takes a tenth of the time of its default, SHA-1.
        return datasketch.MinHash(num_perm=self.num_perm, seed=self.seed, scheme="affine32", hashfunc=zlib.crc32)

    def shingles(self, text: str) -> set[str]:
        """What the text is made of; at least one."""
        pieces: Sequence[str] = text.split() if self.unit == "word" else text
        joint = " " if self.unit == "word" else ""
        last = max(1, len(pieces) - self.shingle + 1)
        return {joint.join(pieces[start : start + self.shingle]) for start in range(last)}


@dataclass(frozen=True)
class _Signatures:
    _settings: DeduplicateNear
    _datasketch: Any  # Any: the package is not always there

    @property
    def schema(self) -> pa.Schema:
        width = 4 * self._settings.num_perm
        return pa.schema(
            [
                pa.field("signature", pa.binary(width), nullable=False),
                pa.field("filled", pa.bool_(), nullable=False),
            ]
        )

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        texts = batch.column(self._settings.column)
        empty = self._settings.empty_sketch(self._datasketch)
        signatures = [self._signature(text or "", empty) for text in texts.to_pylist()]
        columns = [pa.array(signatures, self.schema.field(0).type), texts.is_valid()]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _signature(self, text: str, empty: Any) -> bytes:  # Any: a MinHash
        sketch = empty.copy()
        shingles = iter(self._settings.shingles(text))
        while some := [shingle.encode() for shingle in islice(shingles, _SHINGLES)]:
            sketch.update_batch(some)
        return sketch.hashvalues.astype("<u4").tobytes()


def _fixed(column: pa.ChunkedArray, width: int) -> npt.NDArray[np.uint8]:
    """The bytes of values of one width, one after the other."""
    chunks = [
        np.frombuffer(chunk.buffers()[1], np.uint8)[chunk.offset * width : (chunk.offset + len(chunk)) * width]
        for chunk in column.chunks
        if len(chunk)
    ]
    return np.concatenate(chunks) if chunks else np.zeros(0, np.uint8)


def _datasketch() -> Any:  # Any: the package is not always there
    try:
        import datasketch
    except ImportError:
        raise MissingExtraError("deduplicate_near needs the extra: pip install 'dataplane[near-duplicates]'") from None
    return datasketch
