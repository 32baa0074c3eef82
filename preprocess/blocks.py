"""Record batches of any size to blocks of about the size asked for."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator

import pyarrow as pa

from dataplane.errors import InputError
from preprocess.sources.input_file import MAX_RECORD_BYTES


def cut_blocks(batches: Iterable[pa.RecordBatch], block_bytes: int) -> Iterator[pa.RecordBatch]:
    """The same rows in blocks of as many as fit in `block_bytes` in memory, at least one.

    Raises InputError for a row larger than a record may be.
    """
    pending: list[pa.RecordBatch] = []
    room = block_bytes
    first_row = 0
    for batch in batches:
        while batch.num_rows:
            fitting = _rows_that_fit(batch, room) or (0 if pending else 1)
            if fitting:
                piece = batch.slice(0, fitting)
                _check_size(piece, first_row)
                pending.append(piece)
                room -= piece.nbytes
                first_row += fitting
                batch = batch.slice(fitting)
            if batch.num_rows:
                yield _joined(pending)
                pending, room = [], block_bytes
    if pending:
        yield _joined(pending)


def _rows_that_fit(batch: pa.RecordBatch, num_bytes: int) -> int:
    if batch.nbytes <= num_bytes:
        return batch.num_rows
    sizes = range(1, batch.num_rows + 1)
    return bisect_right(sizes, num_bytes, key=lambda rows: batch.slice(0, rows).nbytes)


def _check_size(piece: pa.RecordBatch, row: int) -> None:
    if piece.num_rows == 1 and piece.nbytes > MAX_RECORD_BYTES:
        raise InputError(
            f"row {row} of the inputs (from 0) takes {piece.nbytes} bytes, more than {MAX_RECORD_BYTES}, the limit of "
            "one record; split it, or leave columns out with --columns"
        )


def _joined(pieces: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(pieces) == 1:
        return pieces[0]
    (batch,) = pa.Table.from_batches(pieces).combine_chunks().to_batches()
    return batch
