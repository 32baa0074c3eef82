"""What users write, well and badly."""

import pyarrow as pa
import pyarrow.compute as pc


def with_length(batch, column="text"):
    return batch.append_column("length", pc.utf8_length(batch.column(column)))


def words(batch):
    """More rows than it gets; counts what it drops."""
    lists = pc.utf8_split_whitespace(batch.column("text"))
    filled = pc.greater(pc.list_value_length(pc.list_slice(lists, 0, 1)), 0)
    flat = pc.filter(lists.flatten(), pc.not_equal(lists.flatten(), ""))
    return pa.record_batch({"word": flat}), {"no words": filled.false_count}


def half(batch):
    return batch.slice(0, batch.num_rows // 2)


def changing(batch):
    return pa.record_batch({"a": pa.array(["x"] * batch.num_rows) if batch.num_rows else pa.array([], pa.int64())})


def none(batch):
    return None


def failing(batch):
    raise KeyError("lost")


def is_long(batch, least=3):
    return pc.greater_equal(pc.utf8_length(batch.column("text")), least)


def is_long_numpy(batch):
    return is_long(batch).to_numpy(zero_copy_only=False)


def reasons(batch):
    length = pc.utf8_length(batch.column("text"))
    long = pc.if_else(pc.greater(length, 4), "too long", pa.scalar(None, pa.string()))
    return pc.if_else(pc.equal(length, 0), "empty", long)


def no_reasons(batch):
    return pa.nulls(batch.num_rows)


def unsure(batch):
    return pa.array([None] * batch.num_rows, pa.bool_())


def numbers(batch):
    return pa.array(range(batch.num_rows))


CONSTANT = 1
