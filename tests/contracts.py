"""What every store and every format must satisfy. A new one is a subclass with fixtures, not new tests."""

import pickle
import re
import threading
import time
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from dataplane.errors import CorruptBlockError, StoreError, TruncatedObjectError
from dataplane.storage import open_store

AWKWARD_NAMES = [
    "square [brackets]",
    "curly {braces}",
    "hash # in the middle",
    "'single' and \"double\" quotes",
    "100% sure",
    "%20 is not a space, %2F no slash",
    "a+b",
    "what?",
    "star * and ** stars",
    "semi;colon, comma & equals = at @",
    "colon :",
    "tilde ~ caret ^ pipe | angles <>",
    unicodedata.normalize("NFC", "café Ärger"),
    unicodedata.normalize("NFD", "café Ärger"),
    "漢字 и кириллица",
    "n" * 200,
]

VERBS = {
    "read": ["name"],
    "read_range": ["name", 0, 1],
    "write": ["name", b"x"],
    "create": ["name", b"x"],
    "list": [""],
    "size": ["name"],
    "delete": ["name"],
}
"""What every store does, with arguments for it."""


class StoreContract:
    """Subclasses give `root`, a fixture of (url, options) where nothing is yet."""

    refused_characters = ""
    """Those that no name in the store may have."""
    files_beyond_a_page = 1001

    @pytest.fixture
    def store(self, root):
        return open_store(*root)

    def refuses(self, name):
        return any(character in name for character in self.refused_characters)

    @pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 4096 * 12], ids=len)
    def test_what_was_written_is_read(self, store, data):
        store.write("folder/name", data)

        assert store.read("folder/name") == data
        assert store.size("folder/name") == len(data)

    @pytest.mark.parametrize(("start", "stop"), [(0, 10), (0, 3), (3, 7), (9, 10), (7, 10), (0, 0), (4, 4), (10, 10)])
    def test_ranges_are_exact(self, store, start, stop):
        store.write("digits", b"0123456789")

        assert bytes(store.read_range("digits", start, stop)) == b"0123456789"[start:stop]

    @pytest.mark.parametrize(("start", "stop"), [(0, 11), (9, 11), (10, 11), (50, 60)])
    def test_a_range_past_the_end_is_an_error_and_never_less_data(self, store, start, stop):
        store.write("digits", b"0123456789")

        with pytest.raises(TruncatedObjectError, match="digits"):
            store.read_range("digits", start, stop)

    def test_create_refuses_an_existing_object_and_changes_nothing(self, store):
        store.create("name", b"first")

        with pytest.raises(FileExistsError, match="name"):
            store.create("name", b"second")
        assert store.read("name") == b"first"

    def test_create_refuses_what_was_written(self, store):
        store.write("name", b"first")

        with pytest.raises(FileExistsError):
            store.create("name", b"second")

    def test_of_concurrent_creates_exactly_one_wins(self, store):
        start = threading.Barrier(8)

        def create(number):
            start.wait()
            try:
                store.create("prize", b"%d" % number)
            except FileExistsError:
                return None
            return b"%d" % number

        with ThreadPoolExecutor(8) as pool:
            winners = [won for won in pool.map(create, range(8)) if won is not None]
        assert winners == [store.read("prize")]

    def test_readers_see_the_old_bytes_or_the_new_ones(self, store):
        bodies = [bytes([number]) * (50_000 + number) for number in range(8)]
        store.write("name", bodies[0])
        done = threading.Event()

        def write():
            for _ in range(5):
                for body in bodies:
                    store.write("name", body)
            done.set()

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            while not writing.done():
                assert store.read("name") in bodies
            writing.result()

    def test_a_write_replaces_a_longer_object(self, store):
        store.write("name", b"long" * 100)
        store.write("name", b"short")

        assert store.read("name") == b"short"

    def test_a_list_is_sorted_recursive_and_ends_at_its_folder(self, store):
        paths = ["a/1", "a/b/c/2", "a/b/3", "ab/4", "a.b/5", "0"]
        for path in paths:
            store.write(path, b"")

        assert store.list("") == sorted(paths)
        assert store.list("a") == ["a/1", "a/b/3", "a/b/c/2"]

    @pytest.mark.parametrize("folder", ["", "nothing", "nothing/here"])
    def test_a_folder_that_does_not_exist_lists_nothing(self, store, folder):
        assert store.list(folder) == []

    def test_a_list_is_complete_beyond_a_page(self, store):
        paths = [f"many/{number:04d}" for number in range(self.files_beyond_a_page)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda path: store.write(path, b"x"), paths))

        assert store.list("many") == paths

    def test_a_list_never_shows_what_is_being_written(self, store):
        body = bytes(200_000)
        store.write("folder/name", body)

        def write():
            for _ in range(30):
                store.write("folder/name", body)

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            while not writing.done():
                assert store.list("") == ["folder/name"]
            writing.result()

    def test_deleting_twice_is_no_error(self, store):
        store.write("name", b"x")

        store.delete("name")
        store.delete("name")

        assert store.list("") == []

    def test_stat_tells_size_age_and_each_change(self, store):
        before = time.time()
        store.write("folder/name", b"first")
        first = store.stat("folder/name")
        store.write("folder/name", b"other")
        second = store.stat("folder/name")

        assert first.num_bytes == second.num_bytes == 5
        assert first.identity != second.identity
        assert abs(first.modified - before) < 60  # some stores count whole seconds, by a clock of their own
        assert store.stat("folder/name") == second

    def test_a_scan_says_what_list_and_stat_say(self, store):
        paths = ["a/1", "a/b/c/2", "a.b/5", "0"]
        for path in paths:
            store.write(path, path.encode())

        assert store.scan("") == {path: store.stat(path) for path in sorted(paths)}
        assert list(store.scan("a")) == ["a/1", "a/b/c/2"]
        assert store.scan("nothing") == {}

    @pytest.mark.parametrize("verb", ["read", "size", "stat"])
    @pytest.mark.parametrize("path", ["missing", "missing/too", "present/below", "folder"])
    def test_a_missing_object_is_not_found(self, store, verb, path):
        store.write("present", b"x")
        store.write("folder/name", b"x")

        with pytest.raises(FileNotFoundError, match=path):
            getattr(store, verb)(path)

    @pytest.mark.parametrize(("start", "stop"), [(0, 1), (0, 0)])
    def test_a_range_of_a_missing_object_is_not_found(self, store, start, stop):
        with pytest.raises(FileNotFoundError, match="missing"):
            store.read_range("missing", start, stop)

    @pytest.mark.parametrize("name", AWKWARD_NAMES)
    def test_every_character_of_a_path_is_literal_or_refused(self, store, name):
        if self.refuses(name):
            with pytest.raises(StoreError, match=re.escape(name)):
                store.write(name, b"content")
            return
        for path in (f"{name}/{name}", f"{name}.created"):
            store.write(path, b"content")
        store.create(f"{name}.created 2", b"created")

        assert store.read(f"{name}/{name}") == b"content"
        assert store.list(name) == [f"{name}/{name}"]
        assert sorted(store.list("")) == sorted([f"{name}/{name}", f"{name}.created", f"{name}.created 2"])
        store.delete(f"{name}/{name}")
        assert store.list(name) == []

    @pytest.mark.parametrize("name", AWKWARD_NAMES)
    def test_every_character_of_a_url_is_literal(self, root, store, name):
        if self.refuses(name):
            return
        url, options = root
        below = open_store(f"{url}/{name}", options)

        below.write("object", b"content")
        below.create("created", b"")

        assert store.list("") == sorted([f"{name}/created", f"{name}/object"])
        assert below.list("") == ["created", "object"]
        assert below.read("object") == b"content"

    def test_what_others_write_later_is_seen(self, root, store):
        other = open_store(*root)
        assert store.list("") == []
        with pytest.raises(FileNotFoundError):
            store.read("name")

        other.write("name", b"first")
        assert store.list("") == ["name"]
        assert store.read("name") == b"first"

        other.write("name", b"the second")
        assert store.size("name") == 10
        other.delete("name")
        assert store.list("") == []

    def test_it_can_be_sent_to_another_process(self, store):
        store.write("name", b"content")

        assert pickle.loads(pickle.dumps(store)).read("name") == b"content"

    def test_its_url_says_where_it_is_and_no_secret(self, root, store):
        url, options = root

        assert store.url == url
        assert not any(str(value) in store.url for value in options.values())


SCHEMA = pa.schema([("text", pa.string()), ("tokens", pa.list_(pa.int32(), 4))])


def batch_of(num_rows, first=0):
    """Rows that say their number."""
    numbers = range(first, first + num_rows)
    return pa.record_batch([[f"row {n}" for n in numbers], [[n, n + 1, n + 2, n + 3] for n in numbers]], schema=SCHEMA)


class FormatContract:
    """Subclasses give `form` and `shard`: the bytes of a file that holds `batches`."""

    batches = [batch_of(3), batch_of(1, 3), batch_of(1000, 4)]

    def test_blocks_hold_the_rows_in_order(self, form, shard):
        schema, blocks = form.index(shard, "name")
        found = [form.decode(_bytes_of(block, shard), schema) for block in blocks]

        assert pa.Table.from_batches(found) == pa.Table.from_batches(self.batches)
        assert [block.num_rows for block in blocks] == [batch.num_rows for batch in found]
        assert {block.shard for block in blocks} == {"name"}

    def test_blocks_do_not_overlap(self, form, shard):
        _, blocks = form.index(shard, "name")
        stops = [block.offset + block.num_bytes for block in blocks]

        assert all(stop <= block.offset for stop, block in zip(stops[:-1], blocks[1:], strict=True))
        assert stops[-1] <= len(shard)

    def test_a_cut_file_is_never_read_as_a_shorter_one(self, form, shard):
        for length in [*range(0, 500, 7), *range(500, len(shard), 97), *range(len(shard) - 50, len(shard))]:
            with pytest.raises(CorruptBlockError, match="name"):
                form.index(shard[:length], "name")

    def test_a_cut_block_is_never_read_as_a_shorter_one(self, form, shard):
        schema, blocks = form.index(shard, "name")
        data = _bytes_of(blocks[0], shard)
        for length in range(len(data)):
            try:
                found = form.decode(data[:length], schema)
            except CorruptBlockError:
                continue
            assert found == form.decode(data, schema)  # nothing but padding was cut


def _bytes_of(block, shard):
    return memoryview(shard)[block.offset : block.offset + block.num_bytes]
