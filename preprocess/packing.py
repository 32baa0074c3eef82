"""Documents of tokens to rows of equal length, document boundaries kept."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def packed_schema(sequence_length: int, dtype: np.dtype[Any]) -> pa.Schema:
    """The columns of packed rows.

    id               int64: the row's number in the whole dataset
    tokens           fixed_size_list<uint16 or int32>[sequence_length], padded with 0
    length           int32: tokens that are not padding; only the last row written may have fewer than all
    document_starts  list<int32>: offsets in the row where a document begins; no 0 if one goes on
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


class Packer:
    """Cuts one endless run of documents into rows and blocks. Holds less than a block, and what was added last."""

    def __init__(self, schema: pa.Schema, *, block_bytes: int, first_id: int) -> None:
        """Blocks have as many rows as fit in `block_bytes`, at least one."""
        self._schema = schema
        tokens = schema.field("tokens").type
        self._length = tokens.list_size
        self._dtype = tokens.value_type.to_pandas_dtype()
        # Beside its tokens a row has an id, a length, and an offset and some values in its list of starts.
        row_bytes = self._length * np.dtype(self._dtype).itemsize + 20
        self._block_rows = max(1, block_bytes // row_bytes)
        self._next_id = first_id
        self._tokens: list[npt.NDArray[Any]] = []
        self._starts: list[npt.NDArray[np.int64]] = []
        self._num_tokens = 0

    def add(self, tokens: npt.NDArray[Any], lengths: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        """Takes documents, each of at least one token; gives the blocks that they fill."""
        self._starts.append(self._num_tokens + np.cumsum(lengths) - lengths)
        self._tokens.append(tokens)
        self._num_tokens += len(tokens)
        block_tokens = self._block_rows * self._length
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
        num_rows = -(-len(tokens) // self._length)
        padded = np.zeros(num_rows * self._length, self._dtype)
        padded[: len(tokens)] = tokens
        lengths = np.full(num_rows, self._length, np.int32)
        lengths[-1] = len(tokens) - (num_rows - 1) * self._length
        row_bounds = np.searchsorted(starts, np.arange(num_rows + 1) * self._length)
        ids = np.arange(self._next_id, self._next_id + num_rows)
        self._next_id += num_rows
        columns = [
            pa.array(ids),
            pa.FixedSizeListArray.from_arrays(pa.array(padded), type=self._schema.field("tokens").type),
            pa.array(lengths),
            pa.ListArray.from_arrays(
                pa.array(row_bounds.astype(np.int32)),
                pa.array((starts % self._length).astype(np.int32)),
                type=self._schema.field("document_starts").type,
            ),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


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
