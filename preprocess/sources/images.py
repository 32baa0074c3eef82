"""Images as they are: a row per file, with its bytes, the folder that holds it for a label, and its path.

Nothing is decoded here. Labels are strings; numbers for them are a matter of all inputs.
"""

import posixpath
from collections.abc import Iterator

import pyarrow as pa

from dataplane.errors import InputError
from dataplane.metrics import Metrics
from preprocess.schema import Survey, conform
from preprocess.sources.input_file import MAX_RECORD_BYTES, InputFile, Piece

IMAGE, LABEL, PATH = "image", "label", "path"
_SCHEMA = pa.schema(
    [
        pa.field(IMAGE, pa.binary(), nullable=False),
        pa.field(LABEL, pa.string(), nullable=False),
        pa.field(PATH, pa.string(), nullable=False),
    ]
)


class Images:
    """Reads image files, each as one row."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def cut(self, file: InputFile, num_bytes: int) -> list[Piece]:
        return [Piece.whole(file)]

    def texts(self, piece: Piece) -> Iterator[list[str]]:
        raise InputError(f"{piece.file}: is an image and has no text; leave it out, or preprocess without --tokenizer")

    def survey(self, piece: Piece, survey: Survey) -> None:
        fields = [field for field in _SCHEMA if survey.wants(field.name)]
        survey.add_schema(pa.schema(fields), str(piece.file), all_names=_SCHEMA.names)
        self._metrics.add(input_bytes=piece.num_bytes)

    def batches(self, piece: Piece, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        file = piece.file
        if file.num_bytes > MAX_RECORD_BYTES:
            raise InputError(f"{file}: has {file.num_bytes} bytes, more than the limit of a record, {MAX_RECORD_BYTES}")
        data = bytes(file.store.read_range(file.path, 0, file.num_bytes))
        label = posixpath.basename(posixpath.dirname(str(file)))
        self._metrics.add(input_bytes=piece.num_bytes)
        yield conform(pa.record_batch([[data], [label], [file.path]], schema=_SCHEMA), schema, str(file))
