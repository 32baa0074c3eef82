"""Pieces of a file hold each of its records once, wherever it is cut; and say where a record is in the file."""

import io
import json
import pickle
import struct
import tempfile
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from dataplane.errors import InputError
from dataplane.metrics import Metrics
from preprocess.schema import Survey
from preprocess.sources import Reading, find_inputs, reader_for
from preprocess.sources.contents import Contents
from preprocess.sources.frames import frame_starts
from preprocess.sources.lines import line_runs

MARK = b"\xef\xbb\xbf"
# Few different bytes make many borders.
some_bytes = st.lists(st.sampled_from([b"\n", b"a", b"\r", b" ", MARK, b"\xff", b"bcdefgh"])).map(b"".join)


def found(data, folder, name="in.txt", **reading):
    """The file, its reader, and what the reader counts."""
    path = Path(folder) / name
    path.write_bytes(data)
    (file,) = find_inputs([str(path)]).files
    metrics = Metrics()
    return file, reader_for(file.form, Reading(**reading), metrics), metrics


def frames_of(data, sizes, *, seek_table=False):
    """zstd frames of so many plain bytes each, the last with all the rest; a skippable one after the second."""
    frames = []
    for size in sizes:
        frames.append((zstandard.compress(data[:size]), len(data[:size])))
        data = data[size:]
    frames.append((zstandard.compress(data), len(data)))
    if not seek_table:
        skippable = struct.pack("<II", 0x184D2A53, 5) + bytes(5)
        return b"".join([*(frame for frame, _ in frames[:2]), skippable, *(frame for frame, _ in frames[2:])])
    table = b"".join(struct.pack("<II", len(frame), size) for frame, size in frames)
    footer = struct.pack("<IBI", len(frames), 0, 0x8F92EAB1)
    header = struct.pack("<II", 0x184D2A5E, len(table) + len(footer))
    return b"".join([*(frame for frame, _ in frames), header, table, footer])


def lines_of(data):
    lines = data.split(b"\n")
    lines[0] = lines[0].removeprefix(MARK)
    return lines if data.split(b"\n")[-1] else lines[:-1]


@given(some_bytes.filter(bool), st.integers(1, 30))
@example(b"\n\n\n", 1)
@example(MARK + b"a\n" + MARK, 2)
def test_lines_are_the_same_wherever_a_file_is_cut(data, piece_bytes):
    with tempfile.TemporaryDirectory() as folder:
        file, reader, metrics = found(data, folder, records="line")
        contents = Contents(27, metrics)
        pieces = reader.cut(file, piece_bytes)
        lines = [(contents.place(p, number), line) for p in pieces for number, line in contents.lines(p)]

    assert [line for _, line in lines] == lines_of(data)
    assert [place for place, _ in lines] == [f"{file}:{number}" for number in range(1, len(lines) + 1)]
    assert sum(piece.num_bytes for piece in pieces) == len(data)
    assert max(piece.num_bytes for piece in pieces) <= piece_bytes


@given(some_bytes, st.lists(st.integers(0, 9), max_size=8), st.integers(1, 60), st.booleans())
def test_lines_are_the_same_wherever_zstd_frames_end(data, sizes, piece_bytes, seek_table):
    with tempfile.TemporaryDirectory() as folder:
        file, reader, metrics = found(
            frames_of(data, sizes, seek_table=seek_table), folder, "in.txt.zst", records="line"
        )
        contents = Contents(27, metrics)
        pieces = reader.cut(file, piece_bytes)
        lines = [(contents.place(p, number), line) for p in pieces for number, line in contents.lines(p)]

    assert [line for _, line in lines] == lines_of(data)
    assert [place for place, _ in lines] == [f"{file}:{number}" for number in range(1, len(lines) + 1)]
    assert metrics.snapshot()["input_bytes"] == sum(piece.num_bytes for piece in pieces) == file.num_bytes


@given(some_bytes.filter(bool), st.integers(1, 30))
def test_paragraphs_are_the_same_wherever_a_file_is_cut(data, piece_bytes):
    data = data.replace(b"\xff", b"\xc3\xbf")
    with tempfile.TemporaryDirectory() as folder:
        file, reader, _ = found(data, folder, records="paragraph")
        texts = [text for p in reader.cut(file, piece_bytes) for group in reader.texts(p) for text in group]

    paragraphs = [[]]
    for line in lines_of(data):
        if line.strip():
            paragraphs[-1].append(line.removesuffix(b"\r").decode())
        else:
            paragraphs.append([])
    assert texts == ["\n".join(paragraph) for paragraph in paragraphs if paragraph]


@given(st.binary(), st.integers(1, 9))
def test_lines_do_not_depend_on_the_chunks(data, size):
    chunks = [data[start : start + size] for start in range(0, len(data), size)]

    lines = [line for run in line_runs(chunks, (), str, at_start=True) for line in run]

    assert lines == lines_of(data)


@pytest.mark.parametrize("newlines", [0, 1])
@pytest.mark.parametrize("own", [1, 4])
def test_a_line_over_the_limit_is_refused_with_its_number_before_it_ends(newlines, own):
    chunks = [b"short\n" * newlines + b"x" * 10, b"x" * 50, b"x" * 50, b"never read" * 100]

    with pytest.raises(InputError, match=f"line {newlines + 1}: the line has more than 80 bytes"):
        list(line_runs(iter(chunks[:own]), iter(chunks[own:]), "line {}".format, at_start=True, max_bytes=80))


@pytest.mark.parametrize("seek_table", [True, False])
def test_frames_are_found_from_their_table_or_from_block_to_block(tmp_path, seek_table):
    data = bytes(range(256)) * 4000 + bytes(300_000)
    file, _, _ = found(frames_of(data, [0, 10, 500_000, 300_000], seek_table=seek_table), tmp_path, "in.txt.zst")

    starts = frame_starts(file)

    content = (tmp_path / "in.txt.zst").read_bytes()
    pieces = [content[start:stop] for start, stop in zip(starts, [*starts[1:], len(content)], strict=True)]
    read = [zstandard.ZstdDecompressor().stream_reader(piece, read_across_frames=True).read() for piece in pieces]
    sizes = [0, 10, *([] if seek_table else [0]), 500_000, 300_000, len(data) - 800_010]
    assert [len(part) for part in read] == sizes
    assert b"".join(read) == data


@pytest.mark.parametrize("parameters", [{}, {"write_checksum": 1}, {"write_content_size": 0}, {"window_log": 10}])
def test_every_shape_of_frame_header_is_walked(tmp_path, parameters):
    made = zstandard.ZstdCompressionParameters.from_level(3, **parameters)
    frame = zstandard.ZstdCompressor(compression_params=made).compress(b"some text " * 100_000)
    file, _, _ = found(frame * 3, tmp_path, "in.txt.zst")

    assert frame_starts(file) == [0, len(frame), 2 * len(frame)]


def test_frames_are_not_looked_for_block_by_block_on_a_remote_store():
    place = "/pieces/in.txt.zst"
    for seek_table, count in ((False, 1), (True, 3)):
        fsspec.filesystem("memory").pipe_file(place, frames_of(b"a\nb\nc\n" * 100, [100, 100], seek_table=seek_table))
        (file,) = find_inputs([f"memory:/{place}"]).files
        assert len(frame_starts(file)) == count


@pytest.mark.parametrize("damage", [b"\0" * 40, b"(\xb5/\xfd", b"(\xb5/\xfd" + b"\xff" * 30], ids=repr)
def test_what_follows_a_damaged_frame_is_one_piece_and_refused_when_it_is_read(tmp_path, damage):
    frame = zstandard.compress(b"line\n" * 10)
    file, reader, _ = found(frame + damage + frame, tmp_path, "in.txt.zst", records="line")
    pieces = reader.cut(file, 1)

    assert [piece.start for piece in pieces] == [0, len(frame)]
    with pytest.raises(InputError, match=r"in\.txt\.zst: "):
        [list(reader.texts(piece)) for piece in pieces]


ROWS = [{"id": number, "text": "x" * (number % 7) * 30} for number in range(200)]


@pytest.mark.parametrize("piece_bytes", [40, 3000, 1 << 20])
def test_json_rows_and_the_places_of_refusals_do_not_depend_on_the_cut(tmp_path, piece_bytes):
    lines = [json.dumps(row).encode() for row in ROWS]
    file, reader, _ = found(b"\n".join(lines), tmp_path, "in.jsonl")
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    pieces = reader.cut(file, piece_bytes)

    assert [row for p in pieces for batch in reader.batches(p, schema) for row in batch.to_pylist()] == ROWS
    assert [text for p in pieces for group in reader.texts(p) for text in group] == [row["text"] for row in ROWS]
    lines[150:152] = [b"", b"{]"]
    file, reader, _ = found(b"\n".join(lines), tmp_path, "in.jsonl")
    with pytest.raises(InputError, match=r"in\.jsonl:152:2: not JSON"):
        [list(reader.texts(piece)) for piece in reader.cut(file, piece_bytes)]


@pytest.mark.parametrize("piece_bytes", [1, 3000, 1 << 20])
def test_parquet_is_cut_between_row_groups(tmp_path, piece_bytes):
    target = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), target, row_group_size=30)
    file, reader, metrics = found(target.getvalue(), tmp_path, "in.parquet")
    pieces = reader.cut(file, piece_bytes)
    survey = Survey()
    for piece in pieces:
        reader.survey(piece, survey)

    batches = [batch for piece in pieces for batch in reader.batches(piece, survey.schema())]

    assert [row for batch in batches for row in batch.to_pylist()] == ROWS
    assert len(pieces) == {1: 7, 3000: 1 if file.num_bytes < 3000 else len(pieces), 1 << 20: 1}[piece_bytes]
    assert metrics.snapshot()["input_bytes"] == 2 * sum(piece.num_bytes for piece in pieces) == 2 * file.num_bytes


def test_readers_and_pieces_travel_to_other_processes(tmp_path):
    for form in ("jsonl", "txt"):
        file, reader, _ = found(b'{"text": "a"}\n' * 9, tmp_path, f"in.{form}", records="line")
        pieces = reader.cut(file, 20)

        sent, sent_pieces = pickle.loads(pickle.dumps((reader, pieces)))

        assert list(map(list, map(sent.texts, sent_pieces))) == list(map(list, map(reader.texts, pieces)))
