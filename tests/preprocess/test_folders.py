"""Folders with a meaning of their own: images by class, lists of files, and what Hugging Face `datasets` saves."""

import json

import pyarrow as pa
import pytest

from dataplane.errors import InputError
from preprocess import Reading, Recipe, preprocess
from preprocess.sources import find_inputs
from tests.preprocess.datasets import read_rows, read_table


def make(root, files):
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return str(root)


def rows_of(tmp_path, *sources, **recipe):
    preprocess(list(sources), str(tmp_path / "out"), Recipe(**recipe))
    return read_rows(tmp_path / "out")


IMAGES = {"cat/2.jpg": b"two", "cat/1.PNG": b"one", "dog [x]/a b/3.webp": b"\0\xff", "4.gif": b"four"}


def test_an_image_folder_gives_bytes_label_and_path(tmp_path):
    root = make(tmp_path / "in", IMAGES)

    rows = rows_of(tmp_path, root)

    assert rows == [
        {"image": b"four", "label": "in", "path": "4.gif"},
        {"image": b"one", "label": "cat", "path": "cat/1.PNG"},
        {"image": b"two", "label": "cat", "path": "cat/2.jpg"},
        {"image": b"\0\xff", "label": "a b", "path": "dog [x]/a b/3.webp"},
    ]
    assert not any(field.nullable for field in read_table(tmp_path / "out").schema)


@pytest.mark.parametrize("name", ["list.csv", "list.tsv", "below/list.csv.gz"])
def test_a_list_of_images_gives_bytes_path_and_its_other_columns(tmp_path, name):
    import gzip

    root = make(tmp_path / "in" / name.rpartition("/")[0], IMAGES)
    text = "label,file,size\nx,cat/1.PNG,1\ny,4.gif,2\nx,dog [x]/a b/3.webp,3\n"
    text = text.replace(",", "\t") if name.endswith("tsv") else text
    data = gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
    make(tmp_path / "in", {name: data})

    rows = rows_of(tmp_path, f"{root}/{name.rpartition('/')[2]}", reading=Reading(file_column="file"))

    assert rows == [
        {"image": b"one", "label": "x", "path": "cat/1.PNG", "size": 1},
        {"image": b"four", "label": "y", "path": "4.gif", "size": 2},
        {"image": b"\0\xff", "label": "x", "path": "dog [x]/a b/3.webp", "size": 3},
    ]
    chosen = Recipe(reading=Reading(file_column="file"), columns=("size", "image"))
    preprocess([f"{root}/{name.rpartition('/')[2]}"], str(tmp_path / "chosen"), chosen)
    assert read_table(tmp_path / "chosen").to_pydict() == {"size": [1, 2, 3], "image": [b"one", b"four", b"\0\xff"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file\nmissing.jpg\n", "lists 'missing.jpg', which does not exist"),
        ("file\n../secret\n", "lists '../secret'; names must be relative"),
        ("file\n/etc/passwd\n", "names must be relative"),
        ("name\n4.gif\n", "has no column 'file'; its columns are name"),
        ("file,image\n4.gif,x\n", "has a column 'image' or 'path'"),
    ],
)
def test_a_list_that_names_no_file_beside_it_is_refused(tmp_path, text, message):
    root = make(tmp_path / "in", {**IMAGES, "list.csv": text.encode()})

    with pytest.raises(InputError, match=message):
        rows_of(tmp_path, f"{root}/list.csv", reading=Reading(file_column="file"))


def test_large_listed_files_come_in_small_batches(tmp_path):
    root = make(tmp_path / "in", {f"{number}.jpg": bytes([number]) * (3 << 20) for number in range(7)})
    make(tmp_path / "in", {"list.csv": b"file\n" + b"".join(b"%d.jpg\n" % number for number in range(7))})

    rows = rows_of(tmp_path, f"{root}/list.csv", reading=Reading(file_column="file"))

    assert [row["image"] for row in rows] == [bytes([number]) * (3 << 20) for number in range(7)]


def saved(numbers):
    """A stream as `datasets` writes it."""
    target = pa.BufferOutputStream()
    table = pa.table({"n": numbers})
    with pa.ipc.new_stream(target, table.schema) as writer:
        writer.write_table(table)
    return target.getvalue().to_pybytes()


def state(*names, **more):
    return json.dumps({"_data_files": [{"filename": name} for name in names], "_split": None, **more}).encode()


SPLIT = {
    "data-00000-of-00002.arrow": saved([1, 2]),
    "data-00001-of-00002.arrow": saved([3]),
    "cache-1234.arrow": saved([99]),
    "dataset_info.json": b"{}",
}


def test_a_saved_dataset_is_read_as_its_state_says(tmp_path):
    names = ("data-00001-of-00002.arrow", "data-00000-of-00002.arrow")
    root = make(tmp_path / "in", {**SPLIT, "state.json": state(*names)})

    assert [row["n"] for row in rows_of(tmp_path, root)] == [3, 1, 2]
    assert [file.path for file in find_inputs([f"{root}/*"]).files] == list(names)


def test_the_splits_of_a_saved_dataset_come_in_their_order(tmp_path):
    files = {"dataset_dict.json": json.dumps({"splits": ["train", "a test"]}).encode(), "README.md": b"text"}
    for split, numbers in {"train": [5, 6], "a test": [7]}.items():
        files |= {f"{split}/data-0.arrow": saved(numbers), f"{split}/state.json": state("data-0.arrow")}
    root = make(tmp_path / "in", {f"saved/{name}": data for name, data in files.items()} | {"z.jsonl": b'{"n": 8}\n'})

    assert [row["n"] for row in rows_of(tmp_path, root)] == [5, 6, 7, 8]
    assert [file.path for file in find_inputs([f"{root}/saved/train"]).files] == ["data-0.arrow"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (state("data-0.arrow", "data-1.arrow"), r"in/data-1\.arrow: does not exist, and state\.json beside it"),
        (state("data-0.arrow", _indices_data_files=[{"filename": "i.arrow"}]), "flatten_indices"),
    ],
)
def test_a_saved_dataset_that_is_not_whole_is_refused(tmp_path, content, message):
    root = make(tmp_path / "in", {"data-0.arrow": saved([1]), "state.json": content})

    with pytest.raises(InputError, match=message):
        rows_of(tmp_path, root)


def test_a_state_file_of_something_else_is_an_input_like_others(tmp_path):
    root = make(tmp_path / "in", {"state.json": b'{"n": 1}\n', "b.jsonl": b'{"n": 2}\n'})

    assert [row["n"] for row in rows_of(tmp_path, root)] == [2, 1]
