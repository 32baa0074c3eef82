"""Where the tests of this room write: a local folder, or a prefix on a real S3 server; and small datasets there."""

import pyarrow as pa
import pytest

from dataplane.catalog import DatasetWriter, Encoding, open_dataset
from dataplane.metrics import Metrics
from dataplane.storage import BlockSource, open_store
from tests.contracts import SCHEMA


@pytest.fixture(params=["local", "s3"])
def place(request, tmp_path):
    """URL and options of a folder where nothing is yet."""
    if request.param == "local":
        return str(tmp_path / "dataset"), {}
    server = request.getfixturevalue("s3")
    return request.getfixturevalue("s3_url"), server.storage_options


@pytest.fixture
def local(tmp_path):
    return str(tmp_path / "dataset"), {}


def write(place, batches, *, parent=None, encoding=Encoding()):  # noqa: B008
    writer = DatasetWriter(open_store(*place), SCHEMA, encoding)
    for batch in batches:
        writer.write(batch)
    return writer.commit(metadata={"source": "test"}, parent=parent)


def opened(place, **options):
    return open_dataset(place[0], storage_options=place[1], **options)


def rows_of(dataset):
    source = BlockSource(dataset.store, None, Metrics())
    blocks = (dataset.index[number] for number in range(len(dataset.index)))
    batches = [dataset.format.decode(source.read(block), dataset.schema) for block in blocks]
    return pa.Table.from_batches(batches, dataset.schema)
