"""Which files a source means: a file, a folder, or a pattern."""

import glob
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from fsspec.utils import glob_translate

from dataplane.errors import InputError
from dataplane.storage import Stat, Store, open_store
from dataplane.storage.filesystem import protocol_of
from preprocess.sources.huggingface import in_saved_order
from preprocess.sources.input_file import Compression, Form, InputFile

_COMPRESSIONS = {
    ".gz": Compression.GZIP,
    ".zst": Compression.ZSTD,
    ".zstd": Compression.ZSTD,
    ".bz2": Compression.BZIP2,
    ".xz": Compression.XZ,
}
# Suffixes that say two things at once.
_SHORT = {".tgz": ".tar.gz", ".tbz2": ".tar.bz2", ".txz": ".tar.xz"}
_FORMS = {
    ".jsonl": Form.JSONL,
    ".ndjson": Form.JSONL,
    ".json": Form.JSONL,
    ".csv": Form.CSV,
    ".tsv": Form.TSV,
    ".txt": Form.TEXT,
    ".text": Form.TEXT,
    ".parquet": Form.PARQUET,
    ".pq": Form.PARQUET,
    ".arrow": Form.ARROW,
    ".arrows": Form.ARROW,
    ".ipc": Form.ARROW,
    ".feather": Form.ARROW,
    ".tar": Form.TAR,
    **dict.fromkeys(
        (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".jp2", ".j2k", ".avif", ".heic"),
        Form.IMAGE,
    ),
}
_NEVER_COMPRESSED = {Form.PARQUET: "Parquet", Form.IMAGE: "an image"}
_HIDDEN = re.compile(r"(^|/)[._]")
_SIZE_REQUESTS = 16  # at once; each is a round trip to an object store
_PACKED = (".zip", ".7z", ".lz4", ".rar", ".br", ".sz")
_PATTERN = re.compile(r"[*?\[]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """All files to read, in order, and what was passed over."""

    files: tuple[InputFile, ...]
    """Without the empty ones."""
    num_empty: int
    """Files of no bytes."""
    num_hidden: int
    """Files in folders whose name, or a folder's on the way, begins with a dot or an underscore."""

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)


def find_inputs(
    sources: Iterable[str],
    *,
    format: str = "auto",
    storage_options: Mapping[str, Any] | None = None,  # Any: as the stores' own options
) -> Inputs:
    """The files of each source sorted by name, source after source.

    A name that exists means itself, whatever characters it has; another with *, ? or [ is a pattern,
    in which ** crosses folders. A file named directly is read even if it is hidden.

    Raises InputError for a source that does not exist, a file of a form that its name does not tell,
    and a file that two sources name.
    """
    opened = cache(lambda url: open_store(url, storage_options))
    found: dict[str, InputFile] = {}
    num_hidden = 0
    with ThreadPoolExecutor(_SIZE_REQUESTS) as pool:
        for source in sources:
            store, paths, hidden = _resolve(source, opened)
            num_hidden += hidden
            for file in pool.map(partial(_input_file, store, format=format), paths.items()):
                if str(file) in found:
                    raise InputError(f"{file}: named by two sources; name it once")
                found[str(file)] = file
    return Inputs(
        files=tuple(file for file in found.values() if file.num_bytes),
        num_empty=sum(not file.num_bytes for file in found.values()),
        num_hidden=num_hidden,
    )


def _resolve(source: str, opened: Callable[[str], Store]) -> tuple[Store, dict[str, Stat | None], int]:
    """The store of a source, what is known of the files in it, in order, and how many hidden ones were passed over."""
    url = source.rstrip("/") or source
    root, name = split_url(url)
    kind = _kind_of(url, opened(root), name)
    if kind == "file":
        return opened(root), {name: None}, 0
    found: dict[str, Stat | None]
    if kind == "directory":
        store = opened(url)
        found = dict(store.scan(""))
    elif match := _PATTERN.search(url, url.find("://") + 1):
        folder, slash, first = url[: match.start()].rpartition("/")
        store = opened(folder or slash or ".")
        found = _matching(store, first + url[match.start() :])
    else:
        raise InputError(f"{source}: there is no such file or folder")
    visible = sorted(path for path in found if not _HIDDEN.search(path))
    if not visible:
        hidden = f" but {len(found)} hidden ones (named .* or _*)" if found else ""
        raise InputError(f"{source}: there is no file{hidden}")
    return store, {path: found[path] for path in in_saved_order(store, visible)}, len(found) - len(visible)


def _matching(store: Store, pattern: str) -> dict[str, Stat | None]:
    if store.is_local:  # looks only into the folders that the pattern crosses
        root = Path(store.url)
        paths = glob.iglob(pattern, root_dir=root, recursive=True, include_hidden=True)
        return {path: None for path in paths if (root / path).is_file()}
    matches = re.compile(glob_translate(pattern)).match
    return {path: stat for path, stat in store.scan("").items() if matches(path)}


def split_url(url: str) -> tuple[str, str]:
    """The folder that holds what the URL names, and its name there; no name for a whole bucket."""
    if protocol_of(url) == "file":
        path = Path(url.removeprefix("file://")).absolute()
        return str(path.parent), path.name
    protocol, _, rest = url.partition("://")
    folder, slash, name = rest.rpartition("/")
    return f"{protocol}://{folder if slash else rest}", name if slash else ""


def _kind_of(url: str, store: Store, name: str) -> str | None:
    """ "file", "directory", or None where there is neither."""
    if protocol_of(url) == "file":
        path = Path(url.removeprefix("file://"))
        if path.exists() and not path.is_dir() and not path.is_file():
            raise InputError(f"{url}: is a pipe or a device; only files can be read, write it to one first")
        return "directory" if path.is_dir() else "file" if path.exists() else None
    try:
        if name and store.size(name) >= 0:
            return "file"
    except FileNotFoundError:
        pass
    return "directory" if store.list(name) else None


def _input_file(store: Store, found: tuple[str, Stat | None], *, format: str) -> InputFile:
    path, stat = found
    stem, compression = _without_compression(path.lower())
    suffix = re.search(r"\.[^./]*$", stem)
    form = _FORMS.get(suffix[0]) if suffix else None
    if format != "auto":
        form = Form(format)
    where = f"{store.url.rstrip('/')}/{path}"
    if stem.endswith(_PACKED):
        raise InputError(
            f"{where}: is packed in a way that is not read ({', '.join(_COMPRESSIONS)} are); unpack it first"
        )
    if form is None:
        raise InputError(
            f"{where}: its name does not tell its form (known are {', '.join(_FORMS)}, most of them also with "
            f"{', '.join(_COMPRESSIONS)}); say it with --format, or leave the file out"
        )
    if form in _NEVER_COMPRESSED and compression is not Compression.NONE:
        raise InputError(f"{where}: {_NEVER_COMPRESSED[form]} compressed as a whole is not read; decompress it first")
    stat = stat or store.stat(path)
    return InputFile(
        store=store,
        path=path,
        num_bytes=stat.num_bytes,
        identity=stat.identity,
        form=form,
        compression=compression,
    )


def _without_compression(name: str) -> tuple[str, Compression]:
    for short, long in _SHORT.items():
        if name.endswith(short):
            name = name.removesuffix(short) + long
    for suffix, compression in _COMPRESSIONS.items():
        if name.endswith(suffix):
            return name.removesuffix(suffix), compression
    return name, Compression.NONE
