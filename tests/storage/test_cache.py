"""The cache keeps its limit and its claims, and gives back what was put, whoever else uses the folder."""

import contextlib
import errno
import logging
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import time

import numpy as np
import pytest

from dataplane.storage import BlockCache, digest_of
from tests.processes import in_child

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")

BODY_BYTES = 10_000


def body_of(number):
    return random.Random(number).randbytes(BODY_BYTES)


BODIES = [body_of(number) for number in range(40)]
DIGESTS = [digest_of(body) for body in BODIES]


def as_rows(digests):
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)


def cached(cache):
    return {number for number, digest in enumerate(DIGESTS) if cache.get(digest) is not None}


def files_of(root):
    return {path.name for path in root.rglob("*") if path.is_file() and path.parent != root}


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cache"


def cache_of(root, num_bodies=1000):
    return BlockCache(root, num_bodies * BODY_BYTES)


def assert_exact(root):
    """What the processes have counted is what is there."""
    cache = cache_of(root)
    with cache._usage() as usage:  # not through a method, which would count anew
        assert usage.num_bytes == cache.used_bytes()


def test_what_was_put_is_given_back(root):
    cache = cache_of(root)

    assert cache.get(DIGESTS[0]) is None
    assert cache.put(DIGESTS[0], memoryview(BODIES[0]))
    assert cache.put(DIGESTS[0], BODIES[0])
    assert cache_of(root).get(DIGESTS[0]) == BODIES[0]
    assert cache.used_bytes() == BODY_BYTES


def test_a_dropped_block_is_gone_and_not_counted(root):
    cache = cache_of(root)
    cache.put(DIGESTS[0], BODIES[0])

    cache.drop(DIGESTS[0])
    cache.drop(DIGESTS[0])

    assert cache.get(DIGESTS[0]) is None
    assert_exact(root)


@pytest.mark.parametrize("num_bodies", [0, 1, 7])
def test_the_limit_is_kept(root, num_bodies):
    cache = cache_of(root, num_bodies)
    for digest, body in zip(DIGESTS, BODIES, strict=True):
        cache.put(digest, body)
        assert cache.used_bytes() <= num_bodies * BODY_BYTES

    assert len(cached(cache)) == num_bodies
    assert_exact(root)


def test_a_block_larger_than_the_limit_evicts_nothing(root):
    cache = cache_of(root, 3)
    cache.put(DIGESTS[0], BODIES[0])

    assert not cache.put(digest_of(b"large"), bytes(4 * BODY_BYTES))
    assert cached(cache) == {0}


def test_a_lower_limit_is_reached_by_the_next_put(root):
    for number in range(10):
        cache_of(root).put(DIGESTS[number], BODIES[number])

    smaller = cache_of(root, 4)
    assert smaller.put(DIGESTS[20], BODIES[20])
    assert smaller.used_bytes() == 4 * BODY_BYTES


def test_the_longest_unused_goes_first(root):
    cache = cache_of(root, 3)
    for age, number in ((300, 0), (100, 1), (200, 2)):
        cache.put(DIGESTS[number], BODIES[number])
        then = time.time() - age
        os.utime(cache._path(DIGESTS[number]), (then, then))

    cache.put(DIGESTS[3], BODIES[3])
    assert cached(cache) == {1, 2, 3}


def test_claimed_blocks_are_not_evicted(root):
    cache = cache_of(root, 4)
    for number in range(4):
        cache.put(DIGESTS[number], BODIES[number])

    with cache.claim(as_rows(DIGESTS[:3])):
        others = cache_of(root, 4)
        kept = [others.put(DIGESTS[number], BODIES[number]) for number in range(10, 20)]
        assert {0, 1, 2} <= cached(cache)
        assert kept[0]
    assert others.put(DIGESTS[20], BODIES[20])


def test_a_claim_protects_from_a_process_that_has_listed_before(root):
    cache, other = cache_of(root, 4), cache_of(root, 4)
    for number in range(5):
        other.put(DIGESTS[number], BODIES[number])  # the last put lists what could go
    kept = cached(cache)

    with cache.claim(as_rows([DIGESTS[number] for number in kept])):
        assert not other.put(DIGESTS[30], BODIES[30])
        assert cached(cache) == kept


def test_a_cache_of_half_the_dataset_serves_half_of_the_reads(root):
    cache = cache_of(root, len(BODIES) // 2)
    hits = []
    with cache.claim(as_rows(DIGESTS)):
        for seed in range(4):
            order = random.Random(seed).sample(range(len(BODIES)), len(BODIES))
            hits.append(0)
            for number in order:
                if cache.get(DIGESTS[number]) is not None:
                    hits[-1] += 1
                else:
                    cache.put(DIGESTS[number], BODIES[number])

    assert hits == [0, *[len(BODIES) // 2] * 3]


def test_another_dataset_is_displaced_by_one_that_is_read(root):
    cache = cache_of(root, 10)
    for number in range(10):
        cache.put(DIGESTS[number], BODIES[number])

    with cache.claim(as_rows(DIGESTS[20:30])):
        for number in range(20, 30):
            assert cache.put(DIGESTS[number], BODIES[number])
    assert cached(cache) == set(range(20, 30))


def _hold_claim(root, sender):
    with cache_of(root, 4).claim(as_rows(DIGESTS[:4])):
        sender.send("claimed")
        signal.pause()


def test_a_claim_dies_with_its_process(root):
    cache = cache_of(root, 4)
    for number in range(4):
        cache.put(DIGESTS[number], BODIES[number])
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    with receiver, sender:
        holder = context.Process(target=_hold_claim, args=(root, sender))
        holder.start()
        receiver.recv()
        assert not cache.put(DIGESTS[10], BODIES[10])
        holder.kill()
        holder.join()

    assert cache_of(root, 4).put(DIGESTS[10], BODIES[10])
    assert not list((root / "claims").iterdir())


def _read_and_write(root, num_bodies, seed, rounds):
    """Whether all that was read was right; over and over the same blocks as all the others."""
    cache = cache_of(root, num_bodies)
    cache._evictable.listed = -1e9
    numbers = random.Random(seed)
    for _ in range(rounds):
        number = numbers.randrange(len(BODIES))
        data = cache.get(DIGESTS[number])
        if data is None:
            cache.put(DIGESTS[number], BODIES[number])
        elif data != BODIES[number]:
            return False
        elif numbers.random() < 0.1:
            cache.drop(DIGESTS[number])
        if numbers.random() < 0.05:
            with cache.claim(as_rows(DIGESTS[number : number + 3])):
                cache.put(DIGESTS[number - 1], BODIES[number - 1])
    return True


@pytest.mark.parametrize("num_bodies", [10, 1000])
def test_many_processes_share_a_folder(root, num_bodies):
    with multiprocessing.get_context("fork").Pool(16) as pool:
        tasks = [(root, num_bodies, seed, 60) for seed in range(16)]
        assert all(pool.starmap(_read_and_write, tasks, chunksize=1))

    assert_exact(root)
    assert cache_of(root).used_bytes() <= num_bodies * BODY_BYTES
    assert all(cache_of(root).get(DIGESTS[n]) == BODIES[n] for n in cached(cache_of(root)))


def _put_share(root, rank):
    cache = cache_of(root)
    return all(cache.put(DIGESTS[n], BODIES[n]) for n in range(rank * 5, rank * 5 + 5))


def test_what_processes_put_at_once_is_all_served_without_the_store(root):
    with multiprocessing.get_context("fork").Pool(8) as pool:
        assert all(pool.starmap(_put_share, [(root, rank) for rank in range(8)], chunksize=1))

    assert cached(cache_of(root)) == set(range(40))


def test_killed_writers_leave_the_count_exact_and_no_partial_block(root):
    context = multiprocessing.get_context("fork")
    for attempt in range(12):
        writers = [
            context.Process(target=_read_and_write, args=(root, 10, seed + attempt, 10_000)) for seed in range(3)
        ]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join(random.Random(attempt).uniform(0, 0.05))
            writer.kill()
            writer.join()

        assert_exact(root)
        assert cache_of(root).used_bytes() <= 10 * BODY_BYTES
        assert all(cache_of(root).get(DIGESTS[n]) == BODIES[n] for n in cached(cache_of(root)))


def test_what_killed_writers_left_is_removed(root):
    cache = cache_of(root)
    cache.put(DIGESTS[0], BODIES[0])
    folder = cache._path(DIGESTS[0]).parent
    for name, age in (("." + 32 * "0", 1000), ("." + 32 * "1", 0), (".other", 1000), ("x", 1000)):
        (folder / name).write_bytes(b"part")
        os.utime(folder / name, (time.time() - age,) * 2)

    cache_of(root).put(DIGESTS[1], BODIES[1])

    # What is not the cache's own is left alone, and what is young may be somebody's.
    assert {path.name for path in folder.iterdir()} >= {"." + 32 * "1", ".other", "x"}
    assert not (folder / ("." + 32 * "0")).exists()


def test_an_open_folder_keeps_its_permissions(root):
    root.mkdir(mode=0o775)
    root.chmod(0o775)
    cache_of(root).put(DIGESTS[0], BODIES[0])

    assert root.stat().st_mode & 0o777 == 0o775
    assert (root / "blocks").stat().st_mode & 0o777 == 0o700


def test_a_fork_while_the_count_is_locked_does_not_keep_it_locked(root):
    cache = cache_of(root)
    cache.put(DIGESTS[0], BODIES[0])
    with cache._usage():
        child = multiprocessing.get_context("fork").Process(target=signal.pause)
        child.start()
    try:
        assert in_child("fork", cache.put, DIGESTS[1], BODIES[1])
    finally:
        child.kill()
        child.join()


class Warnings(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def _fill(root, limit_file_bytes=None):
    """Which puts succeeded, what is served, and the warnings."""
    if limit_file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_file_bytes, limit_file_bytes))
    warnings = Warnings()
    logging.getLogger("dataplane.storage.cache").addHandler(warnings)
    cache = cache_of(root)
    kept = [cache.put(d, b) for d, b in zip(DIGESTS, BODIES, strict=True)]
    with cache.claim(as_rows(DIGESTS)):
        cache.drop(DIGESTS[-1])
    served = [number for number in cached(cache) if cache.get(DIGESTS[number]) == BODIES[number]]
    return sum(kept), len(served), warnings.texts


def test_files_that_cannot_grow_cost_hits_and_one_warning(root):
    kept, served, warnings = in_child("fork", _fill, root, BODY_BYTES // 2)

    assert (kept, served, len(warnings)) == (0, 0, 1)
    assert os.strerror(errno.EFBIG) in warnings[0]
    assert files_of(root) == set()


@pytest.mark.parametrize("kind", ["below a file", "not writable"])
def test_a_folder_that_cannot_be_written_costs_hits_and_one_warning(tmp_path, kind):
    root = tmp_path / "cache"
    if kind == "below a file":
        root.write_bytes(b"")
        root = root / "below"
    else:
        root.mkdir()
        root.chmod(0o500)
        if os.access(root, os.W_OK):
            pytest.skip("this user may write everywhere")

    kept, served, warnings = in_child("fork", _fill, root)
    assert (kept, served, len(warnings)) == (0, 0, 1)


@contextlib.contextmanager
def mounted(folder, num_bytes, *, options=""):
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        done = False
    if not done:
        pytest.skip("this user may not mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_costs_hits_and_one_warning(tmp_path):
    with mounted(tmp_path / "small", 15 * BODY_BYTES) as disk:
        kept, served, warnings = in_child("fork", _fill, disk / "cache")

        assert 0 < kept == served < len(BODIES)
        assert len(warnings) == 1
        assert os.strerror(errno.ENOSPC) in warnings[0]
        assert_exact(disk / "cache")


def test_a_folder_that_became_read_only_still_serves(tmp_path):
    with mounted(tmp_path / "disk", 100 * BODY_BYTES) as disk:
        cache_of(disk / "cache").put(DIGESTS[0], BODIES[0])
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)

        kept, served, warnings = in_child("fork", _fill, disk / "cache")
        assert (kept, served, len(warnings)) == (0, 1, 1)


def test_a_negative_limit_is_refused(root):
    with pytest.raises(ValueError, match="-1"):
        BlockCache(root, -1)
