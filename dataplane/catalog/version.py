"""The version file: a small JSON document that names a schema and the parts of an index of blocks."""

import base64
import json
import re
from typing import Annotated, Literal

import pyarrow as pa
from blake3 import blake3
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from dataplane.errors import DatasetError

FOLDER = "versions"
_FILE_NAME = re.compile(rf"{FOLDER}/(\d{{8}})\.json")


def path_of(number: int) -> str:
    return f"{FOLDER}/{number:08d}.json"


def number_of(path: str) -> int | None:
    """The number of a version file; None for any other file."""
    match = _FILE_NAME.fullmatch(path)
    return int(match[1]) if match else None


def inside_root(path: str) -> str:
    """The path itself. Raises ValueError if it could lead out of the dataset's folder."""
    parts = path.split("/")
    if not path or path.startswith("/") or "\0" in path or any(p in ("", ".", "..") for p in parts):
        raise ValueError(f"path {path!r} leads out of the dataset's folder")
    return path


def readable_schema(text: str) -> str:
    """The text itself. Raises ValueError if it is not an encoded schema."""
    try:
        decode_schema(text)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise ValueError(f"not a readable Arrow schema: {error}") from None
    return text


def decode_schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))


RelativePath = Annotated[str, AfterValidator(inside_root)]
Count = Annotated[int, Field(ge=0)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class IndexPart(_Record):
    """One Arrow file that lists blocks."""

    path: RelativePath
    num_bytes: Count
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """BLAKE3 of the file."""
    num_blocks: Count
    num_rows: Count


class Origin(_Record):
    """How a version came about, so that a later writer can go on from it."""

    run: str
    """Of everything that decided the rows that this version added: equal for equal runs."""
    num_tasks: Count
    """Numbers that tasks have used, over all versions; rows of later tasks have larger ids."""
    inputs: tuple[RelativePath, ...]
    """Files that list the inputs of all rows."""
    counts: dict[str, Count]
    """What the run counted: documents, tokens, dropped rows by reason."""


class DatasetVersion(_Record):
    """What a dataset is at one moment. Never changes once it is committed."""

    kind: Literal["dataplane"] = "dataplane"
    layout: Literal[1] = 1
    number: Annotated[int, Field(ge=1)]
    parent: Annotated[int, Field(ge=1)] | None = None
    block_format: str
    arrow_schema: Annotated[str, AfterValidator(readable_schema)]
    """The Arrow schema's IPC message in base64."""
    columns: dict[str, str]
    """Name and type of each column, for people."""
    num_rows: Count
    num_bytes: Count
    """Compressed bytes of all blocks."""
    raw_bytes: Count
    num_shards: Count
    index: tuple[IndexPart, ...]
    metadata: dict[str, str] = {}
    """What the writer has to say: tokenizer, vocabulary, sources."""
    made_by: str = ""
    """What was done: write, append, a compaction, a rollback, a merge. Empty in versions from before this was noted."""
    origin: Origin | None = None
    """None where the writer keeps no record of its inputs."""

    @property
    def schema(self) -> pa.Schema:
        return decode_schema(self.arrow_schema)

    @property
    def num_blocks(self) -> int:
        return sum(part.num_blocks for part in self.index)

    @property
    def fingerprint(self) -> str:
        """Says what the rows are and in which order they were written: equal for equal data, 32 hex digits."""
        content = "\n".join([self.block_format, self.arrow_schema, *(part.digest for part in self.index)])
        return blake3(content.encode()).hexdigest()[:32]

    def to_json(self) -> bytes:
        return json.dumps(self.model_dump(), indent=1, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes, where: str) -> "DatasetVersion":
        """Raises DatasetError naming `where` if the document is not a version file of this layout."""
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            raise DatasetError(f"{where} is not a dataplane version file: {field}: {first['msg']}") from None


def encode_schema(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize()).decode()
