"""Operations run on rows cut anyhow: what comes out must not show it."""

from itertools import pairwise

import pyarrow as pa
from hypothesis import strategies as st

CUTS = st.lists(st.integers(0, 100), max_size=5)


def pieces(batch, cuts):
    """The batch in slices, some of them empty."""
    places = sorted({min(cut, batch.num_rows) for cut in cuts} | {0, batch.num_rows})
    found = [batch.slice(start, stop - start) for start, stop in pairwise(places)]
    return [batch.slice(0, 0), *found]


def run(operation, batch, cuts=()):
    """All rows that come out, and the drops."""
    bound = operation.bind(batch.schema)
    rows, drops = [], {}
    for piece in pieces(batch, cuts):
        made, dropped = bound(piece)
        assert made.schema == bound.schema
        rows.append(made)
        for reason, count in dropped.items():
            drops[reason] = drops.get(reason, 0) + count
    return pa.Table.from_batches(rows, bound.schema), drops


def assert_same_however_cut(operation, batch, cuts):
    whole, drops = run(operation, batch)
    cut, cut_drops = run(operation, batch, cuts)
    assert cut.combine_chunks().equals(whole.combine_chunks())
    assert cut_drops == drops
    return whole, drops
