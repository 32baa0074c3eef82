"""READ: files of a corpus to documents or to record batches, or a refusal that names file and place."""

from preprocess.sources.find import Inputs, find_inputs, split_url
from preprocess.sources.input_file import Compression, Form, InputFile, Piece
from preprocess.sources.reader import Reader, Reading, reader_for

__all__ = [
    "Compression",
    "Form",
    "InputFile",
    "Inputs",
    "Piece",
    "Reader",
    "Reading",
    "find_inputs",
    "reader_for",
    "split_url",
]
