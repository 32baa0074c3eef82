"""How a corpus is shared out: the same tasks for the same files, every byte in one of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.metrics import Metrics
from preprocess.sources import Form, Reading, find_inputs, reader_for
from preprocess.tasks import cut_tasks, suited_task_bytes

SIZES = st.lists(st.integers(1, 400), min_size=1, max_size=30)


def readers():
    return {form: reader_for(form, Reading(records="line"), Metrics()) for form in Form}


@given(SIZES, st.integers(1, 1000))
def test_every_byte_of_every_file_is_in_one_task(tmp_path_factory, sizes, num_bytes):
    folder = tmp_path_factory.mktemp("in")
    for number, size in enumerate(sizes):
        (folder / f"{number:03d}.txt").write_text("x" * size)
    inputs = find_inputs([str(folder)])

    tasks = cut_tasks(inputs, readers(), num_bytes)

    ranges = [(str(piece.file), piece.start, piece.stop) for task in tasks for piece in task.pieces]
    covered = [(name, byte) for name, start, stop in ranges for byte in range(start, stop)]
    assert covered == [(str(file), byte) for file in inputs.files for byte in range(file.num_bytes)]
    assert [task.number for task in tasks] == list(range(len(tasks)))


@pytest.mark.parametrize(("total", "expected"), [(0, 4 << 20), (1 << 30, 16 << 20), (1 << 40, 256 << 20)])
def test_tasks_are_neither_tiny_nor_huge(total, expected):
    assert suited_task_bytes(total) == expected


def test_a_million_tiny_files_are_not_one_task(tmp_path):
    for number in range(300):
        (tmp_path / f"{number}.txt").write_text("x")

    assert len(cut_tasks(find_inputs([str(tmp_path)]), readers(), 1 << 20)) > 3
