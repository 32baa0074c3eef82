"""Files that can be streamed where they lie: an index beside them makes a folder of WebDataset tars a dataset."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from dataplane.catalog import DatasetVersion, commit_blocks, refuse_existing
from dataplane.errors import CorruptBlockError, InputError
from dataplane.formats import TarFormat
from dataplane.plan import Block
from dataplane.storage import open_store
from preprocess.progress import Show, silent


def index_in_place(
    url: str,
    *,
    storage_options: Mapping[str, Any] | None = None,  # Any: as the stores' own options
    show: Show = silent,
) -> DatasetVersion:
    """Reads the .tar files below a folder once, in the order of their names, and commits a version that names them.

    Nothing is copied or changed; a tar that is changed later no longer matches its digests.

    Raises:
        InputError: there is no tar, or one is not a WebDataset; nothing is committed then.
        DatasetExistsError: the folder is a dataset already.
    """
    store = open_store(url, storage_options)
    refuse_existing(store)
    form = TarFormat()
    paths = [path for path in store.list("") if path.endswith(form.suffix)]
    if not paths:
        raise InputError(f"{url}: no {form.suffix} files here; give the folder that holds them")
    blocks: list[Block] = []
    schemas: list[pa.Schema] = []
    with show("index", sum(store.size(path) for path in paths)) as display:
        done = 0
        for path in paths:
            data = store.read(path)
            try:
                schema, found = form.index(data, path)
            except CorruptBlockError as error:
                raise InputError(f"{url}/{error}") from error
            blocks += found
            schemas.append(schema)
            done += len(data)
            display.update(done, partial("{:,} blocks".format, len(blocks)))
    if not blocks:
        raise InputError(f"{url}: {len(paths)} tars without a sample in them")
    return commit_blocks(
        store,
        blocks,
        schema=pa.unify_schemas(schemas),
        block_format=form.name,
        num_shards=len(paths),
        metadata={},
    )
