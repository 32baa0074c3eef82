import unicodedata

import fsspec
import pytest

from dataplane.errors import InputError
from preprocess.sources import find_inputs

AWKWARD = [
    "[a-z].jsonl",
    "{a,b}.jsonl",
    "with space#and?query*.jsonl",
    "quo'te\"s%20.jsonl",
    "back\\slash.jsonl",
    unicodedata.normalize("NFC", "é日本.jsonl"),
    unicodedata.normalize("NFD", "é日本.jsonl"),
    "n" * 200 + ".jsonl",
]


def names(*sources, **options):
    return [file.path for file in find_inputs(sources, **options).files]


def make(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("{}\n")
    return str(root)


def test_a_folder_is_read_recursively_in_order_without_hidden_files(tmp_path):
    make(tmp_path, "b.jsonl", "a/z.jsonl", "a/b.txt", ".hidden.jsonl", "a/.git/x.jsonl", "_temporary/y.jsonl")

    inputs = find_inputs([str(tmp_path)])

    assert [file.path for file in inputs.files] == ["a/b.txt", "a/z.jsonl", "b.jsonl"]
    assert inputs.num_hidden == 3


def test_sources_keep_the_order_in_which_they_are_given(tmp_path):
    make(tmp_path, "a.jsonl", "b/2.jsonl", "b/1.jsonl")

    assert names(str(tmp_path / "b"), str(tmp_path / "a.jsonl")) == ["1.jsonl", "2.jsonl", "a.jsonl"]


@pytest.mark.parametrize("name", AWKWARD)
def test_a_name_that_exists_is_literal(tmp_path, name):
    make(tmp_path, "a.jsonl", "b.jsonl", f"in {name}/{name}", name)

    assert names(str(tmp_path / name)) == [name]
    assert names(str(tmp_path / f"in {name}")) == [name]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.jsonl", ["a.jsonl", "b.jsonl"]),
        ("?.jsonl", ["a.jsonl", "b.jsonl"]),
        ("[!a]*.jsonl", ["b.jsonl"]),
        ("*/*.jsonl", ["sub/c.jsonl"]),
        ("**/*.jsonl", ["a.jsonl", "b.jsonl", "sub/c.jsonl", "sub/sub/d.jsonl"]),
        ("sub/*", ["c.jsonl"]),
    ],
)
@pytest.mark.parametrize("store", ["local", "memory"])
def test_a_pattern_finds_the_same_on_every_store(tmp_path, pattern, found, store):
    paths = ["a.jsonl", "b.jsonl", ".hidden.jsonl", "sub/c.jsonl", "sub/sub/d.jsonl"]
    root = make(tmp_path, *paths)
    if store == "memory":
        root = f"memory://find/{tmp_path.name}"
        for path in paths:
            fsspec.filesystem("memory").pipe_file(f"/find/{tmp_path.name}/{path}", b"{}\n")

    assert names(f"{root}/{pattern}") == found


@pytest.mark.parametrize("source", ["missing.jsonl", "empty", "*.nothing", "only-hidden"])
def test_a_source_without_files_is_refused_by_name(tmp_path, source):
    make(tmp_path, "only-hidden/.x.jsonl", "a.jsonl")
    (tmp_path / "empty").mkdir()

    with pytest.raises(InputError, match=source.replace("*", r"\*")):
        names(str(tmp_path / source))


@pytest.mark.parametrize(
    "name", ["data", "data.xyz", "data.gz", "data.zip", "data.jsonl.lz4", "data.pq.zst", "data.jpg.gz"]
)
def test_a_file_of_unknown_form_is_refused_by_name(tmp_path, name):
    make(tmp_path, name)

    with pytest.raises(InputError, match=f"/{name}: "):
        names(str(tmp_path))


def test_a_form_can_be_said(tmp_path):
    make(tmp_path, "data.csv", "data.gz", "data.jsonl.xz")

    files = find_inputs([str(tmp_path)], format="text").files

    assert [(file.form, file.compression) for file in files] == [("text", "none"), ("text", "gzip"), ("text", "xz")]


def test_a_file_named_twice_is_refused(tmp_path):
    make(tmp_path, "a.jsonl")

    with pytest.raises(InputError, match=r"a\.jsonl: named by two sources"):
        names(str(tmp_path), str(tmp_path / "a.jsonl"))


def test_every_known_name_tells_its_form(tmp_path):
    forms = {
        "a.jsonl.bz2": ("jsonl", "bzip2"),
        "b.CSV.zst": ("csv", "zstd"),
        "c.tsv": ("tsv", "none"),
        "d.feather.xz": ("arrow", "xz"),
        "e.TGZ": ("webdataset", "gzip"),
        "f.tar.zst": ("webdataset", "zstd"),
        "g.JPEG": ("image", "none"),
        "h.pq": ("parquet", "none"),
    }
    make(tmp_path, *forms)

    assert {file.path: (file.form, file.compression) for file in find_inputs([str(tmp_path)]).files} == forms
