"""Which inputs a dataset was made of, so that appending leaves out those that it has already."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from dataplane.catalog import Dataset
from dataplane.errors import CorruptBlockError, InputError, VersionConflictError
from dataplane.storage import Store, digest_of
from preprocess.sources import InputFile, Inputs

_SCHEMA = pa.schema(
    [
        pa.field("url", pa.string(), nullable=False),
        pa.field("num_bytes", pa.int64(), nullable=False),
        pa.field("identity", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class InputRecord:
    """A file as it was when its rows were written."""

    url: str
    num_bytes: int
    identity: str

    @classmethod
    def of(cls, file: InputFile) -> "InputRecord":
        return cls(str(file), file.num_bytes, file.identity)


def write_records(store: Store, records: Sequence[InputRecord]) -> str:
    """Keeps them beside the dataset; the path, for the version to name."""
    columns = [[getattr(record, name) for record in records] for name in _SCHEMA.names]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, _SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(pa.table(columns, schema=_SCHEMA))
    data = memoryview(sink.getvalue()).cast("B")
    path = f"inputs/{digest_of(data).hex()[:32]}.arrow"
    store.write(path, data)
    return path


def read_records(dataset: Dataset) -> dict[str, InputRecord]:
    """The inputs of all rows of a version, by URL; none where its writer kept no records.

    Raises CorruptBlockError if a file of records is not as it was written.
    """
    origin = dataset.version.origin
    records: dict[str, InputRecord] = {}
    for path in origin.inputs if origin else ():
        where = f"{dataset.store.url}/{path}"
        try:
            data = dataset.store.read(path)
        except FileNotFoundError:
            raise CorruptBlockError(f"{where}: the version names this record of inputs and it is missing") from None
        if not path.startswith(f"inputs/{digest_of(data).hex()[:32]}"):
            raise CorruptBlockError(f"{where}: its bytes are not those that its name was made of; restore the file")
        for row in pa.ipc.open_file(pa.py_buffer(data)).read_all().to_pylist():
            records[row["url"]] = InputRecord(**row)
    return records


def new_inputs(inputs: Inputs, seen: dict[str, InputRecord], dataset: Dataset, *, others: bool = False) -> Inputs:
    """Those that the dataset does not have.

    Raises InputError for one that the dataset has with other content, and with `others`, when another writer was
    quicker, VersionConflictError for one that it has at all.
    """

    def is_new(file: InputFile) -> bool:
        record = seen.get(str(file))
        if record is not None and others:
            raise VersionConflictError(
                f"{dataset.store.url}: another writer appended {file} meanwhile; run again to append the rest"
            )
        if record is not None and record != InputRecord.of(file):
            raise InputError(
                f"{file}: changed since version {dataset.version.number} of {dataset.store.url} was made of it "
                f"({record.num_bytes} bytes then, {file.num_bytes} now); its old rows are in the dataset, so append "
                "the changed file under another name, or preprocess everything again"
            )
        return record is None

    return replace(inputs, files=tuple(filter(is_new, inputs.files)))
