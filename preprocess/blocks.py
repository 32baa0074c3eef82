"""Record batches of any size to blocks of about the size asked for."""

from bisect import bisect_right
from collections.abc import Iterator

import pyarrow as pa

from dataplane.errors import InputError
from preprocess.sources.input_file import MAX_RECORD_BYTES


class BlockCutter:
    """The same rows in blocks of as many as fit in `block_bytes` in memory, at least one. Holds less than a block."""

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._pending: list[pa.RecordBatch] = []
        self._room = block_bytes

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The blocks that these rows fill. Raises InputError for a row larger than a record may be."""
        while batch.num_rows:
            fitting = _rows_that_fit(batch, self._room) or (0 if self._pending else 1)
            if fitting:
                piece = batch.slice(0, fitting)
                _check_size(piece)
                self._pending.append(piece)
                self._room -= piece.nbytes
                batch = batch.slice(fitting)
            if batch.num_rows:
                yield from self.finish()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """The last block, if there are rows left."""
        if self._pending:
            yield _joined(self._pending)
            self._pending, self._room = [], self._block_bytes


def _rows_that_fit(batch: pa.RecordBatch, num_bytes: int) -> int:
    if batch.nbytes <= num_bytes:
        return batch.num_rows
    sizes = range(1, batch.num_rows + 1)
    return bisect_right(sizes, num_bytes, key=lambda rows: batch.slice(0, rows).nbytes)


def _check_size(piece: pa.RecordBatch) -> None:
    if piece.num_rows == 1 and piece.nbytes > MAX_RECORD_BYTES:
        raise InputError(
            f"a row takes {piece.nbytes} bytes, more than {MAX_RECORD_BYTES}, the limit of "
            "one record; split it, or leave columns out with --columns"
        )


def _joined(pieces: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(pieces) == 1:
        return pieces[0]
    (batch,) = pa.Table.from_batches(pieces).combine_chunks().to_batches()
    return batch
