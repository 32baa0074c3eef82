from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preprocess.packing import open_packer, packed_schema, with_end_token
from tests.preprocess.datasets import read_documents

DOCUMENTS = st.lists(st.lists(st.integers(0, 65_535), min_size=1, max_size=40), max_size=60)


def packed(groups, *, sequence_length, block_bytes, first_id=0, mode="concatenate"):
    schema = packed_schema(sequence_length, np.dtype(np.uint16))
    packer = open_packer(mode, schema, block_bytes=block_bytes, first_id=first_id)
    blocks = []
    for group in groups:
        tokens = np.array([token for document in group for token in document], np.uint16)
        blocks += packer.add(tokens, np.array([len(document) for document in group], np.int64))
    return [*blocks, *packer.finish()], schema


@given(DOCUMENTS, st.integers(1, 17), st.integers(1, 500), st.integers(1, 9))
def test_rows_hold_the_documents_in_order_with_their_boundaries(documents, length, block_bytes, group):
    groups = [documents[start : start + group] for start in range(0, len(documents), group)]

    blocks, schema = packed(groups, sequence_length=length, block_bytes=block_bytes, first_id=7)

    table = pa.Table.from_batches(blocks, schema)
    table.validate(full=True)
    assert read_documents(table) == documents
    assert table.column("id").to_pylist() == list(range(7, 7 + table.num_rows))
    assert all(n == length for n in table.column("length").to_pylist()[:-1])
    for row in table.to_pylist():
        assert row["tokens"][row["length"] :] == [0] * (length - row["length"])


@pytest.mark.parametrize("mode", ["concatenate", "best-fit"])
@given(DOCUMENTS, st.integers(1, 9))
def test_blocks_do_not_depend_on_how_documents_come(mode, documents, group):
    groups = [documents[start : start + group] for start in range(0, len(documents), group)]

    one, _ = packed(groups, sequence_length=5, block_bytes=100, mode=mode)
    other, _ = packed([documents], sequence_length=5, block_bytes=100, mode=mode)

    assert one == other


@pytest.mark.parametrize("lengths", [[1], [3, 1, 2], []])
def test_an_end_token_follows_each_document(lengths):
    tokens = np.arange(1, sum(lengths) + 1)

    found, found_lengths = with_end_token(tokens, np.array(lengths, np.int64), 99)

    ends = np.cumsum(found_lengths)
    assert (found[ends - 1] == 99).all()
    assert np.delete(found, ends - 1).tolist() == tokens.tolist()


@given(DOCUMENTS, st.integers(1, 50), st.integers(1, 500))
def test_best_fit_cuts_only_what_is_longer_than_a_row(documents, length, block_bytes):
    blocks, schema = packed([documents], sequence_length=length, block_bytes=block_bytes, mode="best-fit", first_id=3)

    table = pa.Table.from_batches(blocks, schema)
    table.validate(full=True)
    found = []
    for row in table.to_pylist():
        real = row["tokens"][: row["length"]]
        assert not any(row["tokens"][row["length"] :])
        starts = row["document_starts"]
        found += [tuple(real[a:b]) for a, b in pairwise(sorted({0, *starts, len(real)}))]
    pieces = [tuple(d[start : start + length]) for d in documents for start in range(0, len(d), length)]
    assert sorted(found) == sorted(pieces)
    assert table.column("id").to_pylist() == list(range(3, 3 + table.num_rows))


@given(st.lists(st.integers(1, 64), min_size=1, max_size=200))
def test_no_two_rows_of_best_fit_would_fit_in_one(lengths):
    documents = [[1] * length for length in lengths]

    blocks, _ = packed([documents], sequence_length=64, block_bytes=1 << 20, mode="best-fit")

    filled = sorted(length for block in blocks for length in block.column("length").to_pylist())
    assert len(filled) < 2 or filled[0] + filled[1] > 64
