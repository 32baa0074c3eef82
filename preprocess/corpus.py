"""The inputs of a run with the readers that read them, and the two things that can be made of them."""

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from dataplane.metrics import Metrics
from preprocess.sources import Form, Inputs, Piece, Reader, Reading, reader_for


class Corpus:
    """All files in order; what is read of them is counted in `metrics`."""

    def __init__(self, inputs: Inputs, reading: Reading, metrics: Metrics) -> None:
        self.inputs = inputs
        self.metrics = metrics
        self._readers: dict[Form, Reader] = {form: reader_for(form, reading, metrics) for form in Form}

    def pieces(self) -> Iterator[tuple[Piece, Reader]]:
        for file in self.inputs.files:
            reader = self._readers[file.form]
            for piece in reader.cut(file, file.num_bytes):
                yield piece, reader


class Job(Protocol):
    """What becomes of a corpus. Counts the `documents` and `tokens` that it puts into blocks."""

    num_passes: int
    """How often the inputs are read."""

    def schema(self) -> pa.Schema:
        """Of all blocks. May read the whole corpus to find out."""
        ...

    def blocks(self) -> Iterator[pa.RecordBatch]:
        """All rows, in blocks."""
        ...

    def metadata(self) -> dict[str, str]:
        """What the version should say, once all blocks were made."""
        ...
