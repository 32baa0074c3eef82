"""A dataset on S3 is ordinary files: pyarrow and polars open them in a process that does not have this package."""

import json
import os
import subprocess
import sys

import pyarrow as pa
import pytest

from dataplane.catalog import Encoding, open_dataset
from tests.catalog.places import rows_of, write
from tests.contracts import batch_of

# Runs with nothing of ours: paths of shards, endpoint and keys come on standard input, rows go to standard output.
READERS = {
    "pyarrow": """
import json, sys
import pyarrow as pa
from pyarrow.fs import S3FileSystem

given = json.load(sys.stdin)
store = S3FileSystem(
    endpoint_override=given["endpoint"].removeprefix("http://"), scheme="http", region="us-east-1",
    access_key=given["access_key_id"], secret_key=given["secret_access_key"],
)
rows = [row for path in given["shards"] for row in pa.ipc.open_file(store.open_input_file(path)).read_all().to_pylist()]
""",
    "polars": """
import json, sys
import polars

given = json.load(sys.stdin)
options = {
    "aws_endpoint_url": given["endpoint"], "aws_region": "us-east-1", "aws_allow_http": "true",
    "aws_access_key_id": given["access_key_id"], "aws_secret_access_key": given["secret_access_key"],
}
tables = [polars.scan_ipc(f"s3://{path}", storage_options=options).collect() for path in given["shards"]]
rows = polars.concat(tables).to_dicts()
""",
}
FINISH = """
assert not {"dataplane", "preprocess"} & sys.modules.keys()
json.dump(rows, sys.stdout)
"""


@pytest.mark.parametrize("reader", READERS)
def test_a_dataset_on_s3_opens_without_this_package(s3, s3_url, tmp_path, reader):
    place = s3_url, s3.storage_options
    write(place, [batch_of(50, 50 * number) for number in range(4)], encoding=Encoding(shard_bytes=2000))
    dataset = open_dataset(s3_url, storage_options=s3.storage_options)
    shards = [f"{s3_url.removeprefix('s3://')}/{path}" for path in dataset.index.shards]
    given = {"shards": shards, "endpoint": s3.endpoint, **s3.storage_options}
    result = subprocess.run(
        [sys.executable, "-c", READERS[reader] + FINISH],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )

    assert result.returncode == 0, result.stderr
    assert len(shards) > 1
    assert pa.Table.from_pylist(json.loads(result.stdout), dataset.schema) == rows_of(dataset)
