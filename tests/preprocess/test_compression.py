import bz2
import gzip
import lzma
import zlib

import pytest
import zstandard

from dataplane.errors import InputError
from preprocess.sources import Compression
from preprocess.sources.compression import decompressed

TEXT = b"".join(b"line %d of a text that repeats\n" % number for number in range(20_000))
SKIPPABLE = b"\x5a\x2a\x4d\x18" + (70_000).to_bytes(4, "little") + bytes(70_000)
PARTS = [TEXT[:100], b"", TEXT[100:50_000], TEXT[50_000:]]

STREAMS = {
    "gzip": (Compression.GZIP, [gzip.compress(part) for part in PARTS]),
    "zstd": (Compression.ZSTD, [zstandard.compress(part) for part in PARTS]),
    "zstd with skippable frames": (
        Compression.ZSTD,
        [piece for part in PARTS for piece in (zstandard.compress(part), SKIPPABLE)],
    ),
    "bzip2": (Compression.BZIP2, [bz2.compress(part) for part in PARTS]),
    "xz": (Compression.XZ, [lzma.compress(part) for part in PARTS]),
    "xz with padding": (Compression.XZ, [piece for part in PARTS for piece in (lzma.compress(part), bytes(8))]),
    "plain": (Compression.NONE, PARTS),
}


def plain(compression, data, *, chunk_bytes=1 << 16, window_log=27):
    chunks = [data[start : start + chunk_bytes] for start in range(0, len(data), chunk_bytes)]
    return b"".join(decompressed(chunks, compression, where="the-file", window_log=window_log))


@pytest.mark.parametrize("chunk_bytes", [1, 7, 4096, 1 << 24])
@pytest.mark.parametrize("name", STREAMS)
def test_every_member_is_read(name, chunk_bytes):
    compression, members = STREAMS[name]

    assert plain(compression, b"".join(members), chunk_bytes=chunk_bytes) == TEXT


@pytest.mark.parametrize("name", ["gzip", "zstd", "zstd with skippable frames", "bzip2", "xz"])
def test_a_cut_anywhere_but_between_members_is_refused(name):
    compression, members = STREAMS[name]
    whole = b"".join(members)
    ends = {sum(map(len, members[:number])) for number in range(len(members) + 1)}
    cuts = {*range(1, 60), *range(60, len(whole), 997), *(end + step for end in ends for step in (-5, -1, 1))}

    for cut in sorted(cuts - ends):
        if 0 < cut < len(whole):
            with pytest.raises(InputError, match=r"the-file: the \w+ stream ends too early"):
                plain(compression, whole[:cut])


def test_zeros_after_gzip_are_padding_and_other_bytes_are_not():
    data = gzip.compress(TEXT)

    assert plain(Compression.GZIP, data + bytes(512)) == TEXT
    for compress, kind in ((bz2.compress, Compression.BZIP2), (lzma.compress, Compression.XZ)):
        assert plain(kind, compress(TEXT) + bytes(512)) == TEXT
        with pytest.raises(InputError, match=f"the-file: the {kind} stream is damaged"):
            plain(kind, compress(TEXT) + b"rubbish" * 100)
    with pytest.raises(InputError, match="the-file: the gzip stream is damaged"):
        plain(Compression.GZIP, data + b"rubbish")


def test_bytes_after_the_last_zstd_frame_are_refused():
    with pytest.raises(InputError, match="found 72 75 62 62 where a zstd frame should begin"):
        plain(Compression.ZSTD, zstandard.compress(TEXT) + b"rubbish")


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.ZSTD])
def test_a_flipped_bit_is_found_by_the_checksum(compression):
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    data = bytearray(gzip.compress(TEXT) if compression is Compression.GZIP else compressor.compress(TEXT))
    data[-2] ^= 1

    with pytest.raises(InputError, match="is damaged"):
        plain(compression, bytes(data))


@pytest.mark.parametrize("window_log", [20, 27, 28, 31])
def test_a_window_is_read_or_refused_by_its_size(window_log):
    parameters = zstandard.ZstdCompressionParameters(window_log=window_log, hash_log=6, chain_log=6)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = compressor.compress(TEXT) + compressor.flush()

    assert plain(Compression.ZSTD, data, window_log=window_log) == TEXT
    if window_log > 27:
        with pytest.raises(InputError, match=f"{1 << window_log} bytes.*{1 << 27} .*--zstd-window-log {window_log}"):
            plain(Compression.ZSTD, data)


@pytest.mark.parametrize("window_log", [20, 27, 28])
def test_an_xz_dictionary_is_read_or_refused_by_its_size(window_log):
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << window_log, "mode": lzma.MODE_FAST, "mf": lzma.MF_HC3}]
    compressor = lzma.LZMACompressor(filters=[{"id": lzma.FILTER_DELTA, "dist": 1}, *filters])
    data = compressor.compress(TEXT[:1000]) + compressor.flush()

    assert plain(Compression.XZ, data, window_log=window_log) == TEXT[:1000]
    with pytest.raises(InputError, match=f"xz dictionary of {1 << window_log} bytes.*--zstd-window-log {window_log}"):
        plain(Compression.XZ, data, window_log=window_log - 1, chunk_bytes=3)


def test_a_later_xz_stream_cannot_take_more_memory_than_allowed():
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 25, "mode": lzma.MODE_FAST, "mf": lzma.MF_HC3}]
    data = lzma.compress(TEXT, preset=0) + lzma.compress(TEXT, filters=filters)

    with pytest.raises(InputError, match=r"more than the limit of 2\^22 bytes; allow it with a larger"):
        plain(Compression.XZ, data, window_log=22)


@pytest.mark.parametrize("kind", [Compression.GZIP, Compression.BZIP2, Compression.XZ])
def test_output_is_bounded_whatever_the_ratio(kind):
    compress = {
        Compression.GZIP: lambda data: zlib.compress(data, wbits=31),
        Compression.BZIP2: bz2.compress,
        Compression.XZ: lambda data: lzma.compress(data, preset=0),
    }
    bomb = compress[kind](bytes(64 << 20))

    pieces = decompressed([bomb], kind, where="bomb", window_log=27)

    assert max(len(piece) for piece in pieces) <= 4 << 20
