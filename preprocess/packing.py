"""Documents of tokens to rows of equal length, document boundaries kept."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import chain
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Mode = Literal["concatenate", "best-fit"]

# Documents are fitted among those of so many rows: more leave less padding (at 256 rows of 2,048 tokens under half a
# percent of ordinary texts), and mix documents that were further apart.
_WINDOW_ROWS = 256


def packed_schema(sequence_length: int, dtype: np.dtype[Any]) -> pa.Schema:
    """The columns of packed rows.

    id               int64: the row's number in the whole dataset
    tokens           fixed_size_list<uint16 or int32>[sequence_length], padded with 0
    length           int32: tokens that are not padding; concatenated, only the last row written has fewer than all
    document_starts  list<int32>: offsets in the row where a document begins, or by best fit the rest of a long one;
                     no 0 if the row begins with a document that goes on
    """
    tokens = pa.list_(_filled("item", pa.from_numpy_dtype(dtype)), sequence_length)
    starts = pa.list_(_filled("item", pa.int32()))
    return pa.schema(
        [
            _filled("id", pa.int64()),
            _filled("tokens", tokens),
            _filled("length", pa.int32()),
            _filled("document_starts", starts),
        ]
    )


class _Blocks:
    """Makes the blocks of packed rows, and numbers the rows."""

    def __init__(self, schema: pa.Schema, block_bytes: int, first_id: int) -> None:
        self._schema = schema
        tokens = schema.field("tokens").type
        self.row_length = int(tokens.list_size)
        self.dtype = np.dtype(tokens.value_type.to_pandas_dtype())
        # Beside its tokens a row has an id, a length, and an offset and some values in its list of starts.
        self.rows_of_a_block = max(1, block_bytes // (self.row_length * self.dtype.itemsize + 20))
        self._next_id = first_id

    def make(
        self,
        tokens: npt.NDArray[Any],
        lengths: npt.NDArray[np.int32],
        starts: npt.NDArray[np.int32],
        bounds: npt.NDArray[np.int32],
    ) -> pa.RecordBatch:
        """A block of rows: their padded tokens, their lengths, and the starts in them, row `i` has `bounds[i:i+2]`."""
        ids = np.arange(self._next_id, self._next_id + len(lengths))
        self._next_id += len(lengths)
        columns = [
            pa.array(ids),
            pa.FixedSizeListArray.from_arrays(pa.array(tokens), type=self._schema.field("tokens").type),
            pa.array(lengths),
            pa.ListArray.from_arrays(
                pa.array(bounds), pa.array(starts), type=self._schema.field("document_starts").type
            ),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


class Packer:
    """Cuts one endless run of documents into rows and blocks. Holds less than a block, and what was added last."""

    def __init__(self, schema: pa.Schema, *, block_bytes: int, first_id: int) -> None:
        """Blocks have as many rows as fit in `block_bytes`, at least one."""
        self._blocks = _Blocks(schema, block_bytes, first_id)
        self._tokens: list[npt.NDArray[Any]] = []
        self._starts: list[npt.NDArray[np.int64]] = []
        self._num_tokens = 0

    def add(self, tokens: npt.NDArray[Any], lengths: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        """Takes documents, each of at least one token; gives the blocks that they fill."""
        self._starts.append(self._num_tokens + np.cumsum(lengths) - lengths)
        self._tokens.append(tokens)
        self._num_tokens += len(tokens)
        block_tokens = self._blocks.rows_of_a_block * self._blocks.row_length
        while self._num_tokens >= block_tokens:
            yield self._cut(block_tokens)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """The last block, if there are tokens left."""
        if self._num_tokens:
            yield self._cut(self._num_tokens)

    def _cut(self, num_tokens: int) -> pa.RecordBatch:
        """A block of the first tokens held."""
        tokens, starts = _joined(self._tokens), _joined(self._starts)
        num_starts = int(np.searchsorted(starts, num_tokens))
        self._tokens, self._starts = [tokens[num_tokens:]], [starts[num_starts:] - num_tokens]
        self._num_tokens -= num_tokens
        return self._block(tokens[:num_tokens], starts[:num_starts])

    def _block(self, tokens: npt.NDArray[Any], starts: npt.NDArray[np.int64]) -> pa.RecordBatch:
        length = self._blocks.row_length
        num_rows = -(-len(tokens) // length)
        padded = np.zeros(num_rows * length, self._blocks.dtype)
        padded[: len(tokens)] = tokens
        lengths = np.full(num_rows, length, np.int32)
        lengths[-1] = len(tokens) - (num_rows - 1) * length
        bounds = np.searchsorted(starts, np.arange(num_rows + 1) * length)
        return self._blocks.make(padded, lengths, (starts % length).astype(np.int32), bounds.astype(np.int32))


class BestFitPacker:
    """Puts whole documents into rows, each into the fullest row that has room for it, the longest first.

    That is done window by window of the documents, so that a row holds documents that were near each other. A document
    longer than a row is cut into full rows and a rest. Rows come in the order of the first documents in them.
    """

    def __init__(self, schema: pa.Schema, *, block_bytes: int, first_id: int) -> None:
        """Blocks have as many rows as fit in `block_bytes`, at least one."""
        self._blocks = _Blocks(schema, block_bytes, first_id)
        self._pieces: list[tuple[npt.NDArray[Any], bool]] = []
        self._num_tokens = 0
        self._rows: list[list[tuple[npt.NDArray[Any], bool]]] = []

    def add(self, tokens: npt.NDArray[Any], lengths: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        """Takes documents, each of at least one token; gives the blocks that they fill."""
        length = self._blocks.row_length
        for document in np.split(tokens, np.cumsum(lengths)[:-1]) if len(lengths) else []:
            for start in range(0, len(document), length):
                piece = document[start : start + length]
                self._pieces.append((piece, start == 0))
                self._num_tokens += len(piece)
                if self._num_tokens >= _WINDOW_ROWS * length:
                    self._fit()
            while len(self._rows) >= self._blocks.rows_of_a_block:
                yield self._cut()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """The last blocks, if there are documents left."""
        self._fit()
        while self._rows:
            yield self._cut()

    def _fit(self) -> None:
        length = self._blocks.row_length
        sizes = [len(piece) for piece, _ in self._pieces]
        rows: list[list[int]] = []
        room: list[tuple[int, int]] = []  # of rows, as (tokens left, row), in order
        for number in sorted(range(len(sizes)), key=lambda number: (-sizes[number], number)):
            place = bisect_left(room, (sizes[number], -1))
            left, row = room.pop(place) if place < len(room) else (length, len(rows))
            if row == len(rows):
                rows.append([])
            rows[row].append(number)
            if left > sizes[number]:
                insort(room, (left - sizes[number], row))
        for row_pieces in sorted(sorted(row) for row in rows):
            self._rows.append([self._pieces[number] for number in row_pieces])
        self._pieces, self._num_tokens = [], 0

    def _cut(self) -> pa.RecordBatch:
        rows, self._rows = self._rows[: self._blocks.rows_of_a_block], self._rows[self._blocks.rows_of_a_block :]
        length = self._blocks.row_length
        padded = np.zeros(len(rows) * length, self._blocks.dtype)
        lengths = np.zeros(len(rows), np.int32)
        starts: list[list[int]] = []
        for number, row in enumerate(rows):
            starts.append([])
            for piece, is_start in row:
                offset = int(lengths[number])
                padded[number * length + offset :][: len(piece)] = piece
                lengths[number] += len(piece)
                if is_start or offset:  # what follows another piece must not seem to belong to it
                    starts[-1].append(offset)
        bounds = np.cumsum([0, *map(len, starts)], dtype=np.int32)
        return self._blocks.make(padded, lengths, np.fromiter(chain.from_iterable(starts), np.int32), bounds)


AnyPacker = Packer | BestFitPacker

_PACKERS: dict[Mode, type[AnyPacker]] = {"concatenate": Packer, "best-fit": BestFitPacker}


def open_packer(mode: Mode, schema: pa.Schema, *, block_bytes: int, first_id: int) -> AnyPacker:
    """An empty packer. Blocks have as many rows as fit in `block_bytes`, at least one."""
    return _PACKERS[mode](schema, block_bytes=block_bytes, first_id=first_id)


def with_end_token(
    tokens: npt.NDArray[Any], lengths: npt.NDArray[np.int64], end: int
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """The same documents, each with one token more."""
    return np.insert(tokens, np.cumsum(lengths), end), lengths + 1


def _joined(pieces: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    # A long document is cut into many blocks; what is left of it must not be copied for each.
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _filled(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)
