"""A dataset's later life: every version stays what it was, whatever is compacted, copied, merged or swept away."""

import os
import shutil
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane import (
    Encoding,
    collect_garbage,
    compact,
    copy_dataset,
    merge,
    open_dataset,
    rollback,
    versions,
)
from dataplane.catalog import DatasetWriter, compaction, list_versions
from dataplane.catalog.compaction import joined_blocks, small_runs
from dataplane.errors import (
    CorruptBlockError,
    DatasetError,
    DatasetExistsError,
    DatasetNotFoundError,
    VersionConflictError,
)
from dataplane.plan import BlockIndex
from dataplane.storage import open_store
from tests.catalog.places import opened, rows_of, write
from tests.contracts import SCHEMA, batch_of

SMALL = Encoding(shard_bytes=2000)


def write_appended(place, sizes, encoding=SMALL):
    """A version for each group of block sizes; rows are numbered through."""
    first, version = 0, None
    for blocks in sizes:
        batches = []
        for num_rows in blocks:
            batches.append(batch_of(num_rows, first))
            first += num_rows
        version = write(place, batches, parent=version, encoding=encoding)
    return version


def rows_to(count):
    return pa.Table.from_batches([batch_of(count)])


def contents(place):
    """The rows of every version, by number."""
    store = open_store(*place)
    return {number: rows_of(opened(place, version=number)) for number in list_versions(store)}


class TestHistory:
    def test_versions_say_what_made_them(self, place):
        write_appended(place, [[3], [2]])
        rollback(place[0], 1, storage_options=place[1])
        found = versions(place[0], storage_options=place[1])

        assert [version.number for version in found] == [1, 2, 3]
        assert [version.made_by for version in found] == ["write", "append", "rollback to version 1"]
        assert [version.parent for version in found] == [None, 1, 2]

    def test_a_rollback_gives_the_old_content_and_loses_nothing(self, place):
        write_appended(place, [[3], [2], [4]])
        before = contents(place)
        back = rollback(place[0], 1, storage_options=place[1])
        forth = rollback(place[0], 3, storage_options=place[1])

        assert contents(place) == {**before, 4: before[1], 5: before[3]}
        assert (back.fingerprint, forth.fingerprint) == tuple(
            opened(place, version=number).version.fingerprint for number in (1, 3)
        )

    def test_a_version_that_is_newest_or_not_there_is_refused(self, local):
        write_appended(local, [[3], [2]])

        with pytest.raises(ValueError, match="version 2 is the newest already"):
            rollback(local[0], 2)
        with pytest.raises(DatasetNotFoundError, match="version 7 does not exist"):
            rollback(local[0], 7)

    @pytest.mark.parametrize("harm", ["missing", "cut"])
    def test_a_version_whose_shard_is_gone_is_not_brought_back(self, local, harm):
        write_appended(local, [[300], [2]])
        path = Path(local[0], opened(local, version=1).index.shards[0])
        path.unlink() if harm == "missing" else os.truncate(path, 1000)

        with pytest.raises(DatasetError, match=rf"{path.name}: .*cannot be restored"):
            rollback(local[0], 1)
        assert list_versions(open_store(*local)) == [1, 2]


class TestCompaction:
    @pytest.mark.parametrize("sizes", [[[1], [2], [3]], [[1]] * 6, [[100], [1], [2], [200], [3]]], ids=str)
    @pytest.mark.parametrize("block_bytes", [1, 300, 1 << 20])
    def test_it_keeps_rows_and_order_and_needs_doing_once(self, place, sizes, block_bytes):
        old = write_appended(place, sizes)
        before = contents(place)
        options = {"encoding": SMALL, "block_bytes": block_bytes, "storage_options": place[1]}
        new = compact(place[0], **options)

        assert contents(place) == {**before, new.number: before[old.number]}
        assert new.num_shards < old.num_shards
        assert (new.num_rows, new.parent) == (old.num_rows, old.number)
        index = opened(place).index
        assert (new.num_blocks, new.num_bytes) == (len(index), int(index.num_bytes.sum()))
        assert new.num_shards == len(index.shards)
        assert compact(place[0], **options) is None

    def test_equal_datasets_become_equal_ones(self, tmp_path):
        made = []
        for name in "ab":
            write_appended((str(tmp_path / name), {}), [[1], [2], [50], [3]])
            made.append(compact(str(tmp_path / name), encoding=SMALL))

        assert made[0] == made[1]

    def test_full_shards_are_left_alone(self, local):
        write_appended(local, [[1000], [1], [1000]])

        assert compact(local[0], encoding=SMALL) is None

    def test_nan_and_nulls_come_through(self, local):
        schema = pa.schema([("x", pa.float32()), ("y", pa.list_(pa.string()))])
        batches = [
            pa.record_batch([pa.array([float("nan"), None, n], pa.float32()), [[None, "a"], None, []]], schema=schema)
            for n in range(3)
        ]
        parent = None
        for batch in batches:
            writer = DatasetWriter(open_store(*local), schema)
            writer.write(batch)
            parent = writer.commit(metadata={}, parent=parent)
        compact(local[0])

        found = rows_of(opened(local))
        assert np.isnan(found["x"].to_numpy()).tolist() == [True, True, False] * 3
        assert found["x"].null_count == 3
        assert found["y"].to_pylist() == [[None, "a"], None, []] * 3

    def test_a_damaged_block_is_named_and_nothing_is_committed(self, local):
        write_appended(local, [[3], [2]])
        block = opened(local).index[1]
        store = open_store(*local)
        data = bytearray(store.read(block.shard))
        data[block.offset + block.num_bytes // 2] ^= 1
        store.write(block.shard, bytes(data))

        with pytest.raises(CorruptBlockError, match=block.shard):
            compact(local[0])
        assert list_versions(store) == [1, 2]

    def test_what_is_appended_meanwhile_is_kept_and_other_changes_refuse_it(self, local, monkeypatch):
        old = write_appended(local, [[3], [2]])
        really, meanwhile = compaction.write_index, []

        def disturbed(store, index):
            meanwhile.pop()()
            return really(store, index)

        monkeypatch.setattr(compaction, "write_index", disturbed)
        meanwhile.append(lambda: write(local, [batch_of(4, 5)], parent=old))
        made = compact(local[0])
        assert (made.number, made.num_rows) == (4, 9)
        assert rows_of(opened(local)) == rows_to(9)

        meanwhile.append(lambda: rollback(local[0], 1))
        with pytest.raises(VersionConflictError, match="replaced version 4"):
            compact(local[0])
        assert list_versions(open_store(*local)) == [1, 2, 3, 4, 5]

    @given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 100)), max_size=30), st.integers(1, 300))
    def test_runs_cover_the_index_and_only_neighbouring_small_shards_are_merged(self, blocks, shard_bytes):
        codes = np.array([code for code, _ in blocks], np.int32)
        sizes = np.array([size for _, size in blocks], np.int64)
        digests = np.zeros((len(blocks), 32), np.uint8)
        index = BlockIndex([str(n) for n in range(6)], codes, sizes, sizes, sizes, sizes, digests)
        runs = small_runs(index, shard_bytes=shard_bytes)

        assert [number for run in runs for number in run.blocks] == list(range(len(blocks)))
        for run in runs:
            if run.is_small:
                assert len({codes[number] for number in run.blocks}) > 1
                assert max(sizes[number] for number in run.blocks) < shard_bytes / 2

    @given(st.lists(st.integers(0, 100), max_size=30), st.integers(1, 300))
    def test_joined_blocks_are_all_of_them_and_fit(self, sizes, block_bytes):
        joined = list(joined_blocks(range(len(sizes)), sizes, block_bytes=block_bytes))

        assert [number for part in joined for number in part] == list(range(len(sizes)))
        assert all(len(part) == 1 or sum(sizes[n] for n in part) <= block_bytes for part in joined)


def make_old(folder, *paths, days=2):
    then = time.time() - days * 86_400
    for path in paths:
        os.utime(Path(folder, path), (then, then))


class TestGarbage:
    def test_what_versions_name_stays_and_what_none_names_goes(self, place):
        write_appended(place, [[3], [2]])
        store = open_store(*place)
        before = contents(place)
        write((place[0] + "/other", place[1]), [batch_of(9)])
        stray = f"shards/{'0' * 32}.arrow"
        store.write(stray, b"nobody knows me")
        foreign = ["notes.txt", "shards/mine.arrow", "shards/README", "index/0.arrow", "versions/notes.json"]
        for path in foreign:
            store.write(path, b"not ours")
        options = {"older_than_seconds": 0, "storage_options": place[1]}
        everything = store.list("")

        shown = collect_garbage(place[0], **options)
        assert shown.objects == ((stray, 15),)
        assert store.list("") == everything
        assert collect_garbage(place[0], delete=True, **options) == shown
        assert store.list("") == [path for path in everything if path != stray]
        assert contents(place) == before
        assert collect_garbage(place[0], delete=True, **options).objects == ()

    @pytest.mark.parametrize("keep", [1, 2, 3, 9])
    def test_kept_versions_stay_whole(self, place, keep):
        write_appended(place, [[3], [2], [4]])
        compact(place[0], storage_options=place[1])
        before = contents(place)
        options = {"older_than_seconds": 0, "storage_options": place[1]}
        gone = collect_garbage(place[0], keep=keep, delete=True, **options)

        assert gone.versions == tuple(range(1, 5 - min(keep, 4)))
        assert contents(place) == {number: rows for number, rows in before.items() if number > 4 - keep}
        if keep == 1:  # compaction made one shard of three
            assert len(open_store(*place).list("shards")) == 1

    def test_nothing_young_is_touched(self, local):
        write_appended(local, [[3], [2]])
        store = open_store(*local)
        young, old = (f"shards/{digit * 32}.arrow" for digit in "01")
        store.write(young, b"a writer is about to commit this")
        store.write(old, b"x")
        make_old(local[0], old)
        found = collect_garbage(local[0], keep=1, delete=True)

        assert found.objects == ((old, 1),)
        assert found.num_young == 1
        assert list_versions(store) == [1, 2]

    @pytest.mark.parametrize("is_active", [True, False])
    def test_unfinished_work_lives_as_long_as_it_is_active(self, local, is_active):
        write_appended(local, [[3]])
        store = open_store(*local)
        shard = f"shards/{'0' * 32}.tar.zst"
        work = ["work/abc/write/00000000.json", "work/abc/write/00000001.json", "work/abc/split/00000000.arrow"]
        for path in [shard, *work]:
            store.write(path, f'{{"result": [{{"path": "{shard}"}}]}}'.encode())
        make_old(local[0], shard, *(work[1:] if is_active else work))
        found = collect_garbage(local[0], delete=True)

        assert [path for path, _ in found.objects] == ([] if is_active else sorted([shard, *work]))

    def test_a_damaged_index_stops_it_before_anything_is_deleted(self, local):
        (part,) = write_appended(local, [[3]]).index
        store = open_store(*local)
        store.write(f"shards/{'0' * 32}.arrow", b"stray")
        store.write(part.path, b"damaged")
        before = store.list("")

        with pytest.raises(CorruptBlockError, match=part.path):
            collect_garbage(local[0], older_than_seconds=0, delete=True)
        assert store.list("") == before

    @pytest.mark.parametrize("options", [{"keep": 0}, {"older_than_seconds": -1}], ids=str)
    def test_senseless_wishes_are_refused(self, local, options):
        write_appended(local, [[3]])

        with pytest.raises(ValueError, match=next(iter(options))):
            collect_garbage(local[0], **options)


@pytest.fixture(params=[("local", "s3"), ("s3", "local")], ids=" to ".join)
def places(request, tmp_path, s3, s3_url):
    kinds = {"local": (str(tmp_path / "there"), {}), "s3": (s3_url, s3.storage_options)}
    return tuple(kinds[kind] for kind in request.param)


def copied(source, target, **options):
    return copy_dataset(source[0], target[0], source_options=source[1], destination_options=target[1], **options)


class TestCopy:
    def test_a_copy_has_the_same_versions_and_is_done_once(self, places):
        source, target = places
        write_appended(source, [[300], [2], [4]])
        rollback(source[0], 2, storage_options=source[1])
        steps = []
        done = copied(source, target, progress=lambda *step: steps.append(step))

        assert contents(target) == contents(source)
        assert versions(target[0], storage_options=target[1]) == versions(source[0], storage_options=source[1])
        assert done.versions == (1, 2, 3, 4)
        assert steps[-1] == (done.num_bytes, done.num_bytes)
        assert copied(source, target).num_files == 0

    def test_one_version_takes_only_its_own_files(self, places):
        source, target = places
        write_appended(source, [[300], [2], [4]])
        copied(source, target, version=2)

        assert contents(target) == {2: rows_to(302)}
        assert len(open_store(*target).list("shards")) == opened(source, version=2).version.num_shards

    def test_an_interrupted_copy_goes_on(self, places):
        source, target = places
        write_appended(source, [[300], [2], [4]])
        copied(source, target)
        store = open_store(*target)
        for path in [*store.list("versions"), *store.list("shards")[1:]]:
            store.delete(path)

        assert copied(source, target).num_files == len(open_store(*source).list("shards")) - 1
        assert contents(target) == contents(source)

    def test_what_comes_later_is_copied_later(self, tmp_path):
        source, target = (str(tmp_path / "a"), {}), (str(tmp_path / "b"), {})
        first = write_appended(source, [[3]])
        copied(source, target)
        write(source, [batch_of(2, 3)], parent=first)

        assert copied(source, target).num_files == 2  # a shard and an index
        assert contents(target) == contents(source)

    @pytest.mark.parametrize("folder", ["shards", "index"])
    def test_a_damaged_source_is_named_and_the_copy_stays_invisible(self, tmp_path, folder):
        source, target = (str(tmp_path / "a"), {}), (str(tmp_path / "b"), {})
        write_appended(source, [[3], [2]])
        store = open_store(*source)
        path = store.list(folder)[0]
        store.write(path, store.read(path)[:-9] + b"different")

        with pytest.raises(CorruptBlockError, match=path):
            copied(source, target)
        assert list_versions(open_store(*target)) == []

    def test_a_missing_shard_is_named(self, tmp_path):
        source, target = (str(tmp_path / "a"), {}), (str(tmp_path / "b"), {})
        write_appended(source, [[3]])
        (path,) = open_store(*source).list("shards")
        open_store(*source).delete(path)

        with pytest.raises(CorruptBlockError, match=f"{path}.*missing"):
            copied(source, target)

    def test_another_dataset_is_never_overwritten(self, tmp_path):
        source, target = (str(tmp_path / "a"), {}), (str(tmp_path / "b"), {})
        write_appended(source, [[3]])
        write_appended(target, [[4]])

        with pytest.raises(DatasetExistsError, match="version 1 is another"):
            copied(source, target)
        assert contents(target) == {1: rows_to(4)}


class TestMerge:
    PARTS = ["subset1/worker1", "subset1/worker2", "subset2/worker1"]

    @pytest.fixture
    def tree(self, place):
        """Three datasets that hold equal shard names, and rows of their own."""
        for number, part in enumerate(self.PARTS):
            below = f"{place[0]}/{part}", place[1]
            write(below, [batch_of(3), batch_of(2, 100 * number)], encoding=Encoding(shard_bytes=1))
        return place

    EXPECTED = [f"row {n}" for number in range(3) for n in (0, 1, 2, 100 * number, 100 * number + 1)]

    def test_all_rows_are_read_once_and_after_a_move_too(self, tree, tmp_path):
        version = merge(tree[0], self.PARTS, storage_options=tree[1])
        shards = opened(tree).index.shards

        assert rows_of(opened(tree))["text"].to_pylist() == self.EXPECTED
        assert (version.num_rows, version.num_shards) == (15, 6)
        assert len({path.rpartition("/")[2] for path in shards}) < len(shards)
        assert version.metadata == {"source": "test"}
        if not tree[1]:
            shutil.move(tree[0], tmp_path / "moved")
            assert rows_of(open_dataset(str(tmp_path / "moved")))["text"].to_pylist() == self.EXPECTED

    def test_a_copy_of_a_merged_dataset_stands_alone(self, tree, tmp_path):
        merge(tree[0], self.PARTS, storage_options=tree[1])
        copied(tree, (str(tmp_path / "copy"), {}))

        assert rows_of(open_dataset(str(tmp_path / "copy")))["text"].to_pylist() == self.EXPECTED

    def test_parts_may_be_full_addresses_and_merged_again(self, tree):
        merge(tree[0], [f"{tree[0]}/{part}/" for part in self.PARTS], storage_options=tree[1])
        again = merge(tree[0], self.PARTS[:1], storage_options=tree[1])

        assert (again.number, again.num_rows) == (2, 5)
        assert rows_of(opened(tree, version=1))["text"].to_pylist() == self.EXPECTED

    @pytest.mark.parametrize("parts", [[], ["a", "a"], ["../b"], ["/etc"], ["s3://other/b"], ["."]], ids=str)
    def test_parts_that_cannot_be_merged_are_refused(self, local, parts):
        with pytest.raises(ValueError, match=r"below|once"):
            merge(local[0], parts)

    @pytest.mark.parametrize(
        ("schema", "named"),
        [
            (SCHEMA.append(pa.field("more", pa.int8())), "no column 'more'"),
            (SCHEMA.set(1, pa.field("tokens", pa.int8())), "column 'tokens' is .*list.* and .*int8"),
            (SCHEMA.set(0, SCHEMA.field(0).with_nullable(False)), "column 'text' is .* not null"),
            (pa.schema([SCHEMA.field(1), SCHEMA.field(0)]), "order"),
        ],
    )
    def test_a_column_that_differs_is_named(self, local, schema, named):
        write((f"{local[0]}/a", {}), [batch_of(3)])
        writer = DatasetWriter(open_store(f"{local[0]}/b"), schema)
        writer.commit(metadata={})

        with pytest.raises(ValueError, match=named):
            merge(local[0], ["a", "b"])
        assert list_versions(open_store(*local)) == []

    def test_counts_add_up_and_rows_of_another_tokenizer_are_refused(self, local):
        for name, digest in (("a", "1"), ("b", "1"), ("c", "2")):
            writer = DatasetWriter(open_store(f"{local[0]}/{name}"), SCHEMA)
            writer.commit(metadata={"tokenizer_digest": digest, "num_tokens": "5", "note": name})

        assert merge(local[0], ["a", "b"]).metadata == {"tokenizer_digest": "1", "num_tokens": "10"}
        with pytest.raises(ValueError, match="tokenizer_digest 1 and 2"):
            merge(local[0], ["a", "c"])

    def test_a_dataset_that_was_not_merged_is_not_replaced(self, local):
        write(local, [batch_of(3)])
        write((f"{local[0]}/a", {}), [batch_of(3)])

        with pytest.raises(DatasetExistsError, match="not made by merging"):
            merge(local[0], ["a"])
