import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preprocess.packing import Packer, packed_schema, with_end_token
from tests.preprocess.datasets import read_documents

DOCUMENTS = st.lists(st.lists(st.integers(0, 65_535), min_size=1, max_size=40), max_size=60)


def packed(groups, *, sequence_length, block_bytes, first_id=0):
    schema = packed_schema(sequence_length, np.dtype(np.uint16))
    packer = Packer(schema, block_bytes=block_bytes, first_id=first_id)
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


@given(DOCUMENTS, st.integers(1, 9))
def test_blocks_do_not_depend_on_how_documents_come(documents, group):
    groups = [documents[start : start + group] for start in range(0, len(documents), group)]

    one, _ = packed(groups, sequence_length=5, block_bytes=100)
    other, _ = packed([documents], sequence_length=5, block_bytes=100)

    assert one == other


@pytest.mark.parametrize("lengths", [[1], [3, 1, 2], []])
def test_an_end_token_follows_each_document(lengths):
    tokens = np.arange(1, sum(lengths) + 1)

    found, found_lengths = with_end_token(tokens, np.array(lengths, np.int64), 99)

    ends = np.cumsum(found_lengths)
    assert (found[ends - 1] == 99).all()
    assert np.delete(found, ends - 1).tolist() == tokens.tolist()
