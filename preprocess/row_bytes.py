"""Rows as bytes: equal rows have equal bytes and others have others, whatever batches they lie in.

What an exact duplicate is and which split a row belongs to are decided by the BLAKE3 digest of these bytes.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3

DIGEST_BYTES = 16

_NULL, _FILLED = pa.scalar(b"\x00", pa.large_binary()), pa.scalar(b"\x01", pa.large_binary())
_NO_SEPARATOR = pa.scalar(b"", pa.large_binary())
# A null is not the empty string, nor any other.
_NULL_DIGEST = blake3(derive_key_context="dataplane 2026 null value").digest(DIGEST_BYTES)


def check_type(kind: pa.DataType) -> None:
    """Raises ValueError for a type whose values `row_bytes` does not spell."""
    row_bytes(pa.nulls(0, kind))


def value_digests(values: pa.Array) -> npt.NDArray[np.uint8]:
    """The first 16 bytes of BLAKE3 of each value, shape (num_rows, 16).

    Of text the UTF-8 bytes are hashed, of binary the bytes, of integers the decimal digits, of all else `row_bytes`.
    """
    kind = values.type
    if pa.types.is_integer(kind):
        values = values.cast(pa.string())
    elif not (_is_text(kind) or _is_binary(kind)):
        values = row_bytes(values)
    return _digests(values.cast(pa.large_binary()))


def row_digests(batch: pa.RecordBatch, columns: Sequence[str] | None) -> npt.NDArray[np.uint8]:
    """The digests of rows, or of some of their columns, shape (num_rows, 16); one column's are `value_digests`."""
    columns = batch.schema.names if columns is None else columns
    if len(columns) == 1:
        return value_digests(batch.column(columns[0]))
    return _digests(_joined([row_bytes(batch.column(name)) for name in columns]))


def row_bytes(values: pa.Array) -> pa.Array:
    """Each value spelled as bytes that say where they end (large_binary without nulls); -0.0 and every NaN differ.

    Raises ValueError for unions and run-end encoded values.
    """
    kind, types = values.type, pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return row_bytes(values.storage)
    if types.is_dictionary(kind):
        return row_bytes(values.dictionary_decode())
    if types.is_null(kind):
        return pa.array([b"\x00"] * len(values), pa.large_binary())
    if types.is_fixed_size_list(kind):
        return row_bytes(values.cast(pa.large_list(kind.value_field)))
    if types.is_map(kind):
        entries = pa.StructArray.from_arrays([values.keys, values.items], names=["key", "value"])
        return _tagged(values, row_bytes(pa.ListArray.from_arrays(values.offsets, entries)))
    if types.is_struct(kind):
        if not kind.num_fields:
            return _tagged(values, pa.array([b""] * len(values), pa.large_binary()))
        return _tagged(values, _joined([row_bytes(child) for child in values.flatten()]))
    if types.is_list(kind) or types.is_large_list(kind):
        items = row_bytes(values.flatten())
        lengths = pc.fill_null(pc.list_value_length(values), 0)
        offsets = np.concatenate(([0], np.cumsum(lengths.to_numpy(zero_copy_only=False), dtype=np.int64)))
        lists = pa.LargeListArray.from_arrays(pa.array(offsets), items)
        return _tagged(values, _joined([_fixed_bytes(lengths.cast(pa.int64())), pc.binary_join(lists, _NO_SEPARATOR)]))
    if _is_text(kind) or _is_binary(kind):
        plain = pc.fill_null(values.cast(pa.large_binary()), b"")
        return _tagged(values, _joined([_fixed_bytes(pc.binary_length(plain)), plain]))
    if types.is_boolean(kind):
        return row_bytes(values.cast(pa.uint8()))
    if hasattr(kind, "byte_width"):
        return _tagged(values, _fixed_bytes(values))
    raise ValueError(f"values of type {kind} cannot be compared as bytes")


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)


def _tagged(values: pa.Array, spelled: pa.Array) -> pa.Array:
    """With a byte before each that says whether there is a value."""
    if not values.null_count:
        return _joined([_FILLED, spelled])
    return pc.if_else(values.is_valid(), _joined([_FILLED, spelled]), _NULL)


def _joined(parts: Sequence[pa.Array | pa.Scalar]) -> pa.Array:
    return pc.binary_join_element_wise(*parts, _NO_SEPARATOR)


def _fixed_bytes(values: pa.Array) -> pa.Array:
    """The bytes of values of one width; those of a null are whatever they are."""
    width, start = values.type.byte_width, values.offset
    if not width:
        return pa.array([b""] * len(values), pa.large_binary())
    data = values.buffers()[1].slice(start * width, len(values) * width)
    offsets = np.arange(len(values) + 1, dtype=np.int64) * width
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(values), [None, pa.py_buffer(offsets), data])


def _digests(values: pa.LargeBinaryArray) -> npt.NDArray[np.uint8]:
    _, offsets_buffer, data = values.buffers()
    offsets = np.frombuffer(offsets_buffer or b"", np.int64)[values.offset :][: len(values) + 1]
    view = memoryview(data or b"")
    digests = [blake3(view[start:stop]).digest(DIGEST_BYTES) for start, stop in pairwise(offsets.tolist())]
    found = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST_BYTES)
    if values.null_count:
        found = found.copy()
        found[values.is_null().to_numpy(zero_copy_only=False)] = np.frombuffer(_NULL_DIGEST, np.uint8)
    return found
