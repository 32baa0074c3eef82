"""Which files a source means: a file, a folder, or a pattern."""

import glob
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fsspec.utils import glob_translate

from dataplane.errors import InputError
from dataplane.storage import Store, open_store
from dataplane.storage.filesystem import protocol_of
from preprocess.sources.input_file import Compression, Form, InputFile

_COMPRESSIONS = {".gz": Compression.GZIP, ".zst": Compression.ZSTD, ".zstd": Compression.ZSTD}
_FORMS = {
    ".jsonl": Form.JSONL,
    ".ndjson": Form.JSONL,
    ".json": Form.JSONL,
    ".txt": Form.TEXT,
    ".text": Form.TEXT,
    ".parquet": Form.PARQUET,
    ".pq": Form.PARQUET,
}
_HIDDEN = re.compile(r"(^|/)[._]")
_SIZE_REQUESTS = 16  # at once; each is a round trip to an object store
_PACKED = (".bz2", ".xz", ".zip", ".tar", ".tgz", ".7z", ".lz4", ".tar.gz", ".tar.zst")
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
            for file in pool.map(lambda path, s=store: _input_file(s, path, format), paths):
                if str(file) in found:
                    raise InputError(f"{file}: named by two sources; name it once")
                found[str(file)] = file
    return Inputs(
        files=tuple(file for file in found.values() if file.num_bytes),
        num_empty=sum(not file.num_bytes for file in found.values()),
        num_hidden=num_hidden,
    )


def _resolve(source: str, opened: Callable[[str], Store]) -> tuple[Store, list[str], int]:
    """The store of a source, the paths in it, and how many hidden files were passed over."""
    url = source.rstrip("/") or source
    root, name = split_url(url)
    kind = _kind_of(url, opened(root), name)
    if kind == "file":
        return opened(root), [name], 0
    if kind == "directory":
        store, paths = opened(url), opened(url).list("")
    elif match := _PATTERN.search(url, url.find("://") + 1):
        folder, slash, first = url[: match.start()].rpartition("/")
        store = opened(folder or slash or ".")
        paths = _matching(store, first + url[match.start() :])
    else:
        raise InputError(f"{source}: there is no such file or folder")
    visible = [path for path in paths if not _HIDDEN.search(path)]
    if not visible:
        hidden = f" but {len(paths)} hidden ones (named .* or _*)" if paths else ""
        raise InputError(f"{source}: there is no file{hidden}")
    return store, visible, len(paths) - len(visible)


def _matching(store: Store, pattern: str) -> list[str]:
    if store.is_local:  # looks only into the folders that the pattern crosses
        root = Path(store.url)
        paths = glob.iglob(pattern, root_dir=root, recursive=True, include_hidden=True)
        return sorted({path for path in paths if (root / path).is_file()})
    matches = re.compile(glob_translate(pattern)).match
    return [path for path in store.list("") if matches(path)]


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


def _input_file(store: Store, path: str, format: str) -> InputFile:
    stem, compression = _without_compression(path)
    suffix = re.search(r"\.[^./]*$", stem.lower())
    form = _FORMS.get(suffix[0]) if suffix else None
    if format != "auto":
        form = Form(format)
    where = f"{store.url.rstrip('/')}/{path}"
    if path.lower().endswith(_PACKED):
        raise InputError(f"{where}: is packed in a way that is not read (.gz and .zst are); unpack it first")
    if form is None:
        raise InputError(
            f"{where}: its name does not tell its form (known are {', '.join(_FORMS)}, "
            "the text ones with .gz or .zst too); say it with --format, or leave the file out"
        )
    if form is Form.PARQUET and compression is not Compression.NONE:
        raise InputError(f"{where}: Parquet compressed as a whole cannot be read; decompress it first")
    stat = store.stat(path)
    return InputFile(
        store=store,
        path=path,
        num_bytes=stat.num_bytes,
        identity=stat.identity,
        form=form,
        compression=compression,
    )


def _without_compression(path: str) -> tuple[str, Compression]:
    for suffix, compression in _COMPRESSIONS.items():
        if path.lower().endswith(suffix):
            return path[: -len(suffix)], compression
    return path, Compression.NONE
