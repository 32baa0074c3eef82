"""How a corpus is shared out: tasks of pieces, the same ones whoever runs them and however many do."""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from preprocess.sources import Form, InputFile, Inputs, Piece, Reader

_MEGA = 1 << 20
# Enough tasks that many workers stay busy to the end and little is lost with one; large enough that the shard which a
# task leaves unfilled is an exception.
_TASKS = 64
_LEAST_TASK_BYTES, _MOST_TASK_BYTES = 4 * _MEGA, 256 * _MEGA
# Opening a file costs about as much as reading so much of one.
_FILE_BYTES = 16 << 10
# Files whose footers or frames are looked at together; each is a round trip to an object store.
_FILES_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Task:
    """Pieces that follow each other, read by one worker in one go."""

    number: int
    pieces: tuple[Piece, ...]

    def __str__(self) -> str:
        names = list(dict.fromkeys(str(piece.file) for piece in self.pieces))
        more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        return f"input {names[0]}{more}"

    @property
    def num_bytes(self) -> int:
        return sum(piece.num_bytes for piece in self.pieces)


def cut_tasks(inputs: Inputs, reader_of: Mapping[Form, Reader], num_bytes: int | None = None) -> list[Task]:
    """All files, in order, in tasks of about `num_bytes`. The tasks depend on the files and their sizes alone.

    Raises InputError for a file that cannot be cut because it is damaged.
    """
    target = num_bytes or suited_task_bytes(inputs.num_bytes)

    def cut(file: InputFile) -> list[Piece]:
        return reader_of[file.form].cut(file, target)

    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        pieces = (piece for cut_file in pool.map(cut, inputs.files) for piece in cut_file)
        return [Task(number, group) for number, group in enumerate(_grouped(pieces, target))]


def suited_task_bytes(total_bytes: int) -> int:
    """Bytes of input for a task."""
    return min(max(total_bytes // _TASKS, _LEAST_TASK_BYTES), _MOST_TASK_BYTES)


def _grouped(pieces: Iterable[Piece], target: int) -> Iterator[tuple[Piece, ...]]:
    group: list[Piece] = []
    size = 0
    for piece in pieces:
        cost = piece.num_bytes + _FILE_BYTES
        if group and size + cost > target + _FILE_BYTES:
            yield tuple(group)
            group, size = [], 0
        group.append(piece)
        size += cost
    if group:
        yield tuple(group)
