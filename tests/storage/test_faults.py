"""What goes wrong between us and an object store is put right, or told: object, code and number of tries."""

import os
import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from dataplane import StreamingLoader
from dataplane.catalog import open_dataset
from dataplane.errors import (
    ChangedObjectError,
    DataplaneError,
    ExpiredCredentialsError,
    StoreError,
    StorePermissionError,
    StoreUnavailableError,
)
from dataplane.storage import digest_of, open_store
from dataplane.storage.object_store import part_bytes
from preprocess import Recipe, preprocess
from tests.datasets import write_samples
from tests.processes import in_child
from tests.resume import flat, ids_of
from tests.services.proxy import (
    EXPIRED,
    SLOW_DOWN,
    BlackHole,
    Delay,
    LoseAnswer,
    Reset,
    Short,
    Status,
    Throttle,
    faulty,
    heavy_tail,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")

BODY = bytes(range(256)) * 1000
VERBS = {
    "read": ["name"],
    "read_range": ["name", 0, 1],
    "write": ["name", b"x"],
    "create": ["new", b"x"],
    "list": [""],
    "stat": ["name"],
    "delete": ["name"],
}


def first_tries(count, *faults):
    """Each object's first so many requests meet a fault, each in turn."""
    return lambda request: faults[request.number % len(faults)] if request.number < count else None


def quick(options, *, first=2, most=20, **more):
    """Waits of milliseconds where not the waits are the question."""
    backoff = {"init_backoff": timedelta(milliseconds=first), "max_backoff": timedelta(milliseconds=most)}
    return {**options, "retry_config": {"backoff": backoff}, "client_options": {"timeout": "1s"}, **more}


def epoch_of(url, options):
    with StreamingLoader(url, batch_size=8, seed=1, cache_dir=None, storage_options=options) as loader:
        return sorted(flat(ids_of(loader)))


@pytest.fixture
def direct(s3, s3_url):
    """The store without faults, with an object in it."""
    store = open_store(s3_url, s3.storage_options)
    store.write("name", BODY)
    return store


class TestBursts:
    @pytest.mark.parametrize("verb", VERBS)
    @pytest.mark.parametrize("fault", [SLOW_DOWN, Status(500), Status(429, "TooManyRequests"), LoseAnswer()], ids=str)
    def test_every_verb_is_tried_again(self, s3, direct, verb, fault):
        with faulty(s3, first_tries(3, fault)) as (_, options):
            store = open_store(direct.url, quick(options))
            getattr(store, verb)(*VERBS[verb])

        counts = store.metrics.snapshot()
        # A create also looks whether what is there is its own, when no answer came.
        assert counts["store_attempts"] == (7 if (verb, fault) == ("create", LoseAnswer()) else 4)
        assert counts["store_retries"] == counts["store_attempts"] - 1
        assert counts["store_throttled"] == (3 if getattr(fault, "status", 0) in (429, 503) else 0)

    def test_packing_and_an_epoch_finish_exactly_with_growing_waits(self, s3, s3_url, tmp_path):
        (tmp_path / "in.jsonl").write_text("".join(f'{{"id": {n}}}\n' for n in range(200)))
        faults = first_tries(3, SLOW_DOWN, Status(500), Status(429, "SlowDown"))
        with faulty(s3, faults) as (proxy, options):
            options = quick(options, first=20, most=2000)
            preprocess([str(tmp_path / "in.jsonl")], s3_url, Recipe(block_bytes=400), storage_options=options)
            assert epoch_of(s3_url, options) == list(range(200))

        of_one_shard = next(r.path for r in proxy.requests("PUT") if "/shards/" in r.path)
        gaps = proxy.gaps("PUT", of_one_shard)
        assert len(gaps) == 3
        assert gaps == sorted(gaps)
        assert gaps[-1] > 2 * gaps[0]

    def test_what_never_succeeds_ends_in_time_and_is_named(self, s3, direct):
        with faulty(s3, lambda _: SLOW_DOWN) as (proxy, options):
            store = open_store(direct.url, {**options, "timeout_seconds": 1})
            start = time.monotonic()
            with pytest.raises(
                StoreUnavailableError, match=rf"{direct.url}/name: 503 SlowDown.*after \d+ tries"
            ) as raised:
                store.read("name")
            assert time.monotonic() - start < 5
            tries = int(re.search(r"after (\d+) tries", str(raised.value))[1])
            assert tries == len(proxy.seen) == store.metrics.snapshot()["store_attempts"] > 1

    def test_an_answer_that_another_try_cannot_change_is_told_at_once(self, s3, direct):
        with faulty(s3, lambda _: Status(400, "InvalidRequest", "no")) as (proxy, options):
            with pytest.raises(StoreError, match=f"{direct.url}/name: 400 InvalidRequest: no"):
                open_store(direct.url, options).read("name")
            assert len(proxy.seen) == 1

    def test_a_listing_goes_on_from_where_it_failed(self, s3, s3_url):
        store = open_store(s3_url, s3.storage_options)
        paths = [f"{number:04d}" for number in range(2500)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda path: store.write(path, b""), paths))

        with faulty(s3, lambda r: Status(500) if r.number == 0 and "continuation" in r.path else None) as (
            proxy,
            options,
        ):
            assert open_store(s3_url, quick(options)).list("") == paths
        assert len([r for r in proxy.requests() if "continuation" not in r.path and "start-after" not in r.path]) == 1

    def test_attempts_of_a_forked_child_are_counted_in_the_child(self, s3, direct):
        with faulty(s3, first_tries(2, SLOW_DOWN)) as (_, options):
            attempts = in_child("fork", attempts_of_a_read, direct.url, quick_options_as_strings(options))

        assert attempts == 3


def quick_options_as_strings(options):
    return {**options, "timeout_seconds": "20"}


def attempts_of_a_read(url, options):
    store = open_store(url, options)
    assert store.read("name") == BODY
    return store.metrics.snapshot()["store_attempts"]


class TestBrokenBodies:
    @pytest.mark.parametrize("fault", [Reset(len(BODY) * 3 // 10), Short(len(BODY) * 3 // 10)], ids=str)
    def test_a_body_that_ends_early_is_never_taken_for_whole(self, s3, direct, fault):
        with faulty(s3, first_tries(2, fault)) as (_, options):
            store = open_store(direct.url, quick(options))

            assert bytes(store.read_range("name", 0, len(BODY))) == BODY
            if isinstance(fault, Reset):
                assert open_store(direct.url, quick(options)).read("name") == BODY

    def test_an_epoch_over_broken_bodies_is_exact(self, s3, s3_url):
        write_samples(s3_url, [10] * 20, options=s3.storage_options)

        def decide(request):
            return (Reset(300), Short(300), None)[request.number % 3] if "/shards/" in request.path else None

        with faulty(s3, decide) as (_, options):
            assert epoch_of(s3_url, quick(options)) == list(range(200))

    def test_a_body_that_stays_short_stops_the_run_by_name(self, s3, direct):
        with faulty(s3, lambda _: Reset(10)) as (_, options):
            store = open_store(direct.url, quick(options, timeout_seconds=1))
            with pytest.raises(StoreUnavailableError, match=f"{direct.url}/name.*tries"):
                store.read_range("name", 0, 1000)

    def test_a_black_hole_is_left_in_time(self, s3, direct):
        with faulty(s3, first_tries(1, BlackHole())) as (_, options):
            assert open_store(direct.url, quick(options)).read("name") == BODY

    def test_a_store_that_never_answers_is_told_in_time(self, s3, direct):
        with faulty(s3, lambda _: BlackHole()) as (_, options):
            start = time.monotonic()
            with pytest.raises(StoreUnavailableError, match=f"{direct.url}/name"):
                open_store(direct.url, quick(options, timeout_seconds=2)).read("name")
            assert time.monotonic() - start < 10

    @pytest.mark.parametrize("fault", [Throttle(2_000_000), Delay(0.2)], ids=str)
    def test_slowness_is_no_fault(self, s3, direct, fault):
        with faulty(s3, lambda _: fault) as (proxy, options):
            assert open_store(direct.url, options).read("name") == BODY
            assert len(proxy.seen) == 1

    def test_an_epoch_through_a_heavy_tail_is_exact(self, s3, s3_url):
        write_samples(s3_url, [10] * 20, options=s3.storage_options)
        with faulty(s3, heavy_tail(median_seconds=0.005, most_seconds=1.0)) as (_, options):
            assert epoch_of(s3_url, options) == list(range(200))


class TestLostAnswers:
    @pytest.mark.parametrize("verb", VERBS)
    def test_every_verb_can_be_said_twice(self, s3, direct, verb):
        with faulty(s3, first_tries(1, LoseAnswer())) as (_, options):
            getattr(open_store(direct.url, quick(options)), verb)(*VERBS[verb])

    def test_a_create_is_no_conflict_with_itself(self, s3, direct):
        with faulty(s3, lambda r: LoseAnswer() if r.method == "PUT" and r.number == 0 else None) as (proxy, options):
            open_store(direct.url, quick(options)).create("new", b"mine")
            assert len(proxy.requests("PUT")) == 2
        assert direct.read("new") == b"mine"

    def test_a_create_after_another_writer_is_still_a_conflict(self, s3, direct):
        direct.create("new", b"theirs")
        decide = first_tries(1, Status(500))
        with faulty(s3, decide) as (_, options), pytest.raises(FileExistsError, match="new"):
            open_store(direct.url, quick(options)).create("new", b"mine")
        assert direct.read("new") == b"theirs"

    def test_a_commit_whose_answer_is_lost_is_committed_once(self, s3, s3_url):
        def decide(request):
            return (
                LoseAnswer()
                if request.method == "PUT" and "/versions/" in request.path and not request.number
                else None
            )

        with faulty(s3, decide) as (_, options):
            write_samples(s3_url, [5], options=quick(options))
        assert open_dataset(s3_url, storage_options=s3.storage_options).version.number == 1


class TestCredentials:
    """The proxy says when they have expired: SeaweedFS itself knows no time."""

    @pytest.fixture
    def environment(self, s3, monkeypatch):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.storage_options["access_key_id"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.storage_options["secret_access_key"])
        return monkeypatch

    @pytest.mark.parametrize("verb", VERBS)
    def test_a_refused_request_is_made_again_with_new_ones_from_their_source(self, s3, direct, environment, verb):
        def decide(request):
            if request.access_key == "old":
                environment.setenv("AWS_ACCESS_KEY_ID", s3.storage_options["access_key_id"])
                return EXPIRED
            return None

        environment.setenv("AWS_ACCESS_KEY_ID", "old")
        with faulty(s3, decide) as (_, options):
            store = open_store(direct.url, {"endpoint": options["endpoint"], "region": "us-east-1"})
            getattr(store, verb)(*VERBS[verb])
            assert store.metrics.snapshot()["store_credentials_refreshed"] == 1

    def test_new_keys_in_the_environment_are_taken_up_in_mid_epoch(self, s3, s3_url, environment):
        write_samples(s3_url, [10] * 20, options=s3.storage_options)
        old, new = (each["access_key_id"] for each in (s3.storage_options, s3.renewed_options))
        seen = Counter()

        def decide(request):
            seen[request.access_key] += 1
            if request.access_key == old and seen[old] > 8:
                environment.setenv("AWS_ACCESS_KEY_ID", new)
                environment.setenv("AWS_SECRET_ACCESS_KEY", s3.renewed_options["secret_access_key"])
                return EXPIRED
            return None

        with faulty(s3, decide) as (_, options):
            options = {"endpoint": options["endpoint"], "region": "us-east-1"}
            assert epoch_of(s3_url, options) == list(range(200))
        assert seen[old] > 8
        assert seen[new] > 0

    @pytest.mark.parametrize("verb", VERBS)
    def test_without_new_ones_they_are_called_expired_and_nothing_is_called_missing(self, s3, direct, verb):
        with faulty(s3, lambda _: EXPIRED) as (proxy, options):
            with pytest.raises(ExpiredCredentialsError, match=f"{direct.url}.*expired"):
                getattr(open_store(direct.url, options), verb)(*VERBS[verb])
            assert len(proxy.seen) <= 2

    def test_packing_that_stopped_can_be_taken_up_again(self, s3, s3_url, tmp_path):
        (tmp_path / "in.jsonl").write_text("".join(f'{{"id": {n}}}\n' for n in range(200)))
        recipe, uploads = Recipe(block_bytes=400), Counter()

        def decide(request):
            uploads[request.method] += 1
            return EXPIRED if uploads["PUT"] > 1 else None

        with faulty(s3, decide) as (_, options), pytest.raises(StorePermissionError, match="expired"):
            preprocess([str(tmp_path / "in.jsonl")], s3_url, recipe, storage_options=options)
        preprocess([str(tmp_path / "in.jsonl")], s3_url, recipe, storage_options=s3.storage_options)
        assert epoch_of(s3_url, s3.storage_options) == list(range(200))

    def test_a_missing_permission_is_told_without_waiting(self, s3, direct, environment):
        with faulty(s3, lambda _: Status(403, "AccessDenied", "Access Denied")) as (proxy, options):
            with pytest.raises(StorePermissionError, match="AccessDenied"):
                open_store(direct.url, {"endpoint": options["endpoint"]}).read("name")
            assert len(proxy.seen) == 2  # the second with what its source has now

    def test_a_profile_gives_them(self, s3, direct, tmp_path, monkeypatch):
        file = tmp_path / "credentials"
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
        monkeypatch.delenv("AWS_PROFILE", raising=False)
        profile = {"endpoint": s3.endpoint, "region": "us-east-1", "profile": "training"}
        secret = s3.storage_options["secret_access_key"]
        file.write_text(f"[training]\naws_access_key_id = dataplane\naws_secret_access_key = {secret}\n")

        assert open_store(direct.url, profile).read("name") == BODY
        with pytest.raises(StoreError, match="no-such-profile"):
            open_store(direct.url, {**profile, "profile": "no-such-profile"}).read("name")

    def test_a_profile_file_that_is_renewed_is_read_again(self, s3, direct, tmp_path, monkeypatch):
        file = tmp_path / "credentials"
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
        secret = s3.storage_options["secret_access_key"]
        file.write_text("[training]\naws_access_key_id = stale\naws_secret_access_key = stale-secret\n")
        store = open_store(direct.url, {"endpoint": s3.endpoint, "profile": "training"})
        with pytest.raises(StorePermissionError):
            store.read("name")

        file.write_text(f"[training]\naws_access_key_id = dataplane\naws_secret_access_key = {secret}\n")
        assert store.read("name") == BODY


class TestChangedObjects:
    @pytest.mark.parametrize("more", [0, 1000], ids=["equal size", "longer"])
    def test_one_replaced_in_mid_read_is_named_and_never_mixed(self, s3, direct, more):
        reader = open_store(direct.url, s3.storage_options)
        reader.read_range("name", 0, 1000)
        direct.write("name", bytes(len(BODY) + more))

        with pytest.raises(ChangedObjectError, match=f"{direct.url}/name: the object was replaced"):
            reader.read_range("name", 1000, 2000)

    def test_an_epoch_over_a_replaced_shard_stops_and_names_it(self, s3, s3_url):
        write_samples(s3_url, [10] * 60, options=s3.storage_options)
        store = open_store(s3_url, s3.storage_options)
        reads = []

        def decide(request):
            if request.method == "GET" and "/shards/" in request.path:
                reads.append(request.path)
                if len(reads) == 3:
                    for path in store.list("shards"):
                        store.write(path, bytes(store.size(path)))

        with faulty(s3, decide) as (_, options):
            ids = []
            with pytest.raises(DataplaneError, match=r"shards/\w+\.arrow.*replaced"):
                read_into(ids, s3_url, options)
        assert ids == list(range(len(ids)))


def read_into(ids, url, options):
    """An epoch in the order of writing."""
    with StreamingLoader(url, batch_size=2, shuffle=False, cache_dir=None, storage_options=options) as loader:
        for batch in loader:
            ids += flat(ids_of([batch]))


class TestLargeObjects:
    @pytest.mark.parametrize("num_bytes", [0, 1, 8 << 20, 40 * 5 << 20, 300 * 5 << 20, 5 << 40])
    def test_parts_are_large_enough_and_at_most_a_hundred(self, num_bytes):
        part = part_bytes(num_bytes)

        assert part >= 5 << 20  # the least of S3, except for the last
        assert -(-num_bytes // part) <= 100

    def test_an_upload_in_parts_arrives_whole(self, s3, s3_url):
        body = os.urandom(1 << 20) * 41
        with faulty(s3, lambda _: None) as (proxy, options):
            store = open_store(s3_url, options)
            store.write("big", body)
            assert digest_of(store.read("big")) == digest_of(body)
            sizes = [int(r.headers["content-length"]) for r in proxy.requests("PUT") if "partNumber" in r.path]
        assert sorted(sizes) == [1 << 20, *[8 << 20] * 5]

    @pytest.mark.parametrize(("verb", "good_parts"), [("create", 0), ("write", 0), ("write", 2)])
    def test_a_failed_write_leaves_no_object_and_no_unfinished_upload(self, s3, s3_url, verb, good_parts):
        puts = []

        def decide(request):
            puts.extend([request] * (request.method == "PUT"))
            return Status(500) if request.method == "PUT" and len(puts) > good_parts else None

        with faulty(s3, decide) as (proxy, options):
            with pytest.raises(StoreUnavailableError, match="500"):
                getattr(open_store(s3_url, quick(options, max_tries=2)), verb)("big", bytes(25 << 20))
            started = [r for r in proxy.requests("POST") if "uploads" in r.path]
            aborted = [r for r in proxy.requests("DELETE") if "upload" in r.path]

        assert len(started) == len(aborted) == (2 if verb == "write" else 0)
        assert open_store(s3_url, s3.storage_options).list("") == []


def test_a_shard_that_cannot_be_uploaded_is_named_and_nothing_is_committed(s3, s3_url, tmp_path):
    (tmp_path / "in.jsonl").write_text("".join(f'{{"id": {n}}}\n' for n in range(2000)))
    recipe = Recipe(block_bytes=400)

    def decide(request):
        return SLOW_DOWN if request.method == "PUT" and "/shards/" in request.path else None

    named = rf"{s3_url}/shards/\w+\.arrow: 503 SlowDown"
    with faulty(s3, decide) as (_, options), pytest.raises(StoreUnavailableError, match=named):
        preprocess([str(tmp_path / "in.jsonl")], s3_url, recipe, storage_options=quick(options, max_tries=3))
    assert not any(
        "/versions/" in path or "version" in path for path in open_store(s3_url, s3.storage_options).list("")
    )


SECRET = "correct-horse-battery-staple"


class TestSecrets:
    @pytest.mark.parametrize("fault", [SLOW_DOWN, Status(403, "SignatureDoesNotMatch", SECRET), None], ids=str)
    def test_no_output_of_a_failing_command_has_them(self, s3, s3_url, tmp_path, fault):
        (tmp_path / "in.jsonl").write_text('{"id": 1}\n')
        with faulty(s3, lambda _: fault) as (proxy, _):
            words = [
                "endpoint=" + proxy.endpoint,
                "access_key_id=dataplane",
                f"secret_access_key={SECRET}",
                "timeout_seconds=1",
            ]
            options = [word for each in words for word in ("--storage-option", each)]
            commands = [["preprocess", "in.jsonl", s3_url], ["inspect", s3_url]]
            with ThreadPoolExecutor() as pool:
                runs = list(pool.map(lambda command: run(tmp_path, "--debug", *command, *options), commands))

        for done in runs:
            assert done.returncode != 0
            assert SECRET not in done.stdout + done.stderr
        left = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        assert not any(SECRET.encode() in data for data in left)

    @pytest.mark.parametrize(
        "url",
        [
            f"s3://user:{SECRET}@bucket/x",
            f"hdfs://user:{SECRET}@host:9000/x",
            f"https://host/x?X-Amz-Signature={SECRET}",
            f"https://host/x?sv=1&sig={SECRET}",
        ],
    )
    def test_a_url_that_carries_them_is_refused_without_saying_them(self, tmp_path, url):
        with pytest.raises(StoreError, match="storage options") as raised:
            open_store(url)
        assert SECRET not in str(raised.value)

    def test_they_are_in_no_text_of_a_store(self, s3_url):
        store = open_store(s3_url, {"secret_access_key": SECRET, "session_token": SECRET})

        assert SECRET not in f"{store} {store!r} {store.url}"


def run(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "dataplane", *arguments], cwd=folder, capture_output=True, text=True, timeout=60
    )
