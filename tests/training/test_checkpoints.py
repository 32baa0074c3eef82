"""At each moment at least one complete checkpoint exists, whatever fails, and a damaged one is named."""

import errno
import json
import threading
from contextlib import closing, suppress

import pytest
import torch
from torch import nn
from toy import SINGLE, on_ranks

from dataplane.storage import open_store
from dataplane.storage.local import LocalStore
from training import CheckpointError, Checkpoints
from training.checkpoint_format import FILE_BYTES, PieceWriter
from training.state import allocate_optimizer, check_same_model, model_tensors, optimizer_tensors


class Killed(BaseException):
    """Ends the process, as far as the code under test can tell."""


class DyingStore(LocalStore):
    """A store whose user is killed before its nth change."""

    def __init__(self, folder, *, changes):
        super().__init__(folder)
        self.changes = changes

    def __getattribute__(self, name):
        if name in ("write", "create", "delete"):
            self.changes -= 1
            if self.changes < 0:
                raise Killed
        return super().__getattribute__(name)


class FullStore(LocalStore):
    """A store on a disk that has no room left for tensors."""

    def write(self, path, data):
        raise OSError(errno.ENOSPC, "no space left on device", path)


class SlowStore(LocalStore):
    """A store that writes nothing before it is allowed to."""

    def __init__(self, folder):
        super().__init__(folder)
        self.allowed = threading.Event()

    def write(self, path, data):
        assert self.allowed.wait(30)
        super().write(path, data)


def steps(store):
    return Checkpoints(store, keep=1, group=SINGLE)._steps()


def save(store, step, *, keep=1, group=SINGLE, metric=None, keep_best=0, value=None):
    with closing(Checkpoints(store, keep=keep, keep_best=keep_best, group=group)) as checkpoints:
        checkpoints.latest()
        checkpoints.clean()
        tensors = {"weights": torch.full((3,), step if value is None else value), f"own.{group.rank}": torch.ones(2)}
        checkpoints.save(step, tensors=tensors, values={"step": step}, metric=metric)
        checkpoints.wait()


def load(store, step):
    weights = torch.zeros(3, dtype=torch.int64)
    Checkpoints(store, keep=1, group=SINGLE).load(step, {"weights": weights})
    return weights.tolist()


@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("changes", range(7))
def test_a_kill_anywhere_in_a_save_leaves_the_last_or_the_new_checkpoint(changes, keep, tmp_path):
    store = LocalStore(tmp_path)
    save(store, 1, keep=keep)
    with suppress(Killed, CheckpointError):
        save(DyingStore(tmp_path, changes=changes), 2, keep=keep)
    checkpoints = Checkpoints(store, keep=keep, group=SINGLE)
    newest = checkpoints.latest()

    assert newest in (1, 2)
    assert load(store, newest) == [newest] * 3
    checkpoints.clean()
    assert {path.name for path in tmp_path.iterdir()} == {f"step-{step:08d}" for step in checkpoints._steps()}


@pytest.mark.parametrize(
    ("keep", "keep_best", "kept"), [(1, 0, [6]), (2, 0, [5, 6]), (1, 1, [2, 6]), (2, 2, [2, 4, 5, 6])]
)
@pytest.mark.parametrize("as_one_run", [True, False])
def test_exactly_the_promised_checkpoints_are_kept(keep, keep_best, kept, as_one_run, tmp_path):
    losses = {1: 9.0, 2: 1.0, 3: 8.0, 4: 3.0, 5: 6.0, 6: 7.0}
    with closing(Checkpoints(LocalStore(tmp_path), keep=keep, keep_best=keep_best, group=SINGLE)) as checkpoints:
        for step, loss in losses.items():
            if as_one_run:
                checkpoints.save(step, tensors={"weights": torch.full((3,), step)}, values={}, metric=loss)
                checkpoints.wait()
            else:
                save(LocalStore(tmp_path), step, keep=keep, keep_best=keep_best, metric=loss)
            assert step in steps(LocalStore(tmp_path))

    assert steps(LocalStore(tmp_path)) == kept


def test_a_full_disk_fails_the_save_and_spares_the_last_checkpoint(tmp_path):
    save(LocalStore(tmp_path), 1)
    with pytest.raises(CheckpointError, match=r"rank 0 could not save the checkpoint of step 2 in .* no space left"):
        save(FullStore(tmp_path), 2)

    assert steps(LocalStore(tmp_path)) == [1]


def test_training_goes_on_while_a_checkpoint_is_written_and_does_not_change_it(tmp_path):
    store, weights = SlowStore(tmp_path), torch.arange(3)
    with closing(Checkpoints(store, keep=2, group=SINGLE)) as checkpoints:
        checkpoints.save(1, tensors={"weights": weights}, values={})
        weights += 100  # the next update
        assert checkpoints.newest is None
        store.allowed.set()
        checkpoints.wait()

        assert checkpoints.newest == 1
    assert load(store, 1) == [0, 1, 2]


def test_a_save_that_failed_is_known_before_the_next_one(tmp_path):
    with closing(Checkpoints(FullStore(tmp_path), keep=2, group=SINGLE)) as checkpoints:
        checkpoints.save(1, tensors={"weights": torch.arange(3)}, values={})
        checkpoints._pending.exception(timeout=30)

        assert checkpoints.failed
        with pytest.raises(CheckpointError, match="step 1"):
            checkpoints.save(2, tensors={"weights": torch.arange(3)}, values={})


@pytest.mark.parametrize("place", [0, -1, 9])
def test_a_damaged_file_is_named_instead_of_loaded(place, tmp_path):
    save(LocalStore(tmp_path), 3)
    path = tmp_path / "step-00000003" / "rank-00000-000.bin"
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)

    with pytest.raises(
        CheckpointError, match=r"rank-00000-000.bin is damaged: bytes .* of (weights|own.0), have digest"
    ):
        Checkpoints(LocalStore(tmp_path), keep=1, group=SINGLE).load(
            3, {"weights": torch.zeros(3, dtype=torch.int64), "own.0": torch.zeros(2)}
        )


def test_a_checkpoint_of_another_format_is_refused(tmp_path):
    save(LocalStore(tmp_path), 3)
    (tmp_path / "step-00000003" / "manifest.json").write_text(json.dumps({"format": 99}))

    with pytest.raises(CheckpointError, match="has format 99, this version reads 2"):
        load(LocalStore(tmp_path), 3)
    with pytest.raises(CheckpointError, match="has format 99"):
        Checkpoints(LocalStore(tmp_path), keep=1, group=SINGLE).manifest(3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3, 4)])
def test_tensors_come_back_with_their_bits(dtype, shape, tmp_path):
    tensor = torch.randint(0, 2, shape).to(dtype)
    with closing(Checkpoints(LocalStore(tmp_path), keep=1, group=SINGLE)) as checkpoints:
        checkpoints.save(1, tensors={"a.b": tensor.mT if tensor.dim() > 1 else tensor}, values={})
        checkpoints.wait()
        loaded = torch.ones_like(tensor.mT if tensor.dim() > 1 else tensor)
        checkpoints.load(1, {"a.b": loaded})

    assert torch.equal(loaded, tensor.mT if tensor.dim() > 1 else tensor)


def test_large_checkpoints_are_several_files(tmp_path, monkeypatch):
    monkeypatch.setattr("training.checkpoint_format.FILE_BYTES", 100)
    tensors = {f"t{number}": torch.full((10,), number, dtype=torch.int64) for number in range(5)}
    with closing(Checkpoints(LocalStore(tmp_path), keep=1, group=SINGLE)) as checkpoints:
        checkpoints.save(1, tensors=tensors, values={})
        checkpoints.wait()
        room = {name: torch.zeros(10, dtype=torch.int64) for name in tensors}
        checkpoints.load(1, room)

    assert len(list(tmp_path.glob("step-00000001/*.bin"))) == 5
    assert all(torch.equal(room[name], tensors[name]) for name in tensors)
    assert FILE_BYTES > 1 << 20
    assert PieceWriter.validate_checkpoint_id("any")


def test_checkpoints_lie_on_s3(s3, s3_url):
    store = open_store(s3_url, s3.storage_options)
    for step in (1, 2, 3):
        save(store, step, keep=2)

    assert steps(store) == [2, 3]
    assert load(store, 3) == [3, 3, 3]
    assert not [path for path in store.list("") if path.startswith("step-00000001")]


@pytest.mark.parametrize("build", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_a_new_optimizer_goes_on_from_what_another_one_remembered(build, tmp_path):
    def step(model, optimizer):
        model(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    def made():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        return model, build(model.parameters(), lr=0.01, **({"momentum": 0.9} if build is torch.optim.SGD else {}))

    model, optimizer = made()
    step(model, optimizer)
    with closing(Checkpoints(LocalStore(tmp_path), keep=1, group=SINGLE)) as checkpoints:
        checkpoints.save(1, tensors={**model_tensors(model), **optimizer_tensors(model, optimizer)}, values={})
        again, other = made()
        checkpoints.wait()
        saved = checkpoints.manifest(1).tensors
        checkpoints.load(1, {**model_tensors(again), **allocate_optimizer(again, other, saved)})
    step(model, optimizer)
    step(again, other)

    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))
    with pytest.raises(CheckpointError, match=r"0.bias is absent in the model and 4 in the checkpoint"):
        check_same_model(nn.Sequential(nn.Linear(3, 4, bias=False)), saved)


def test_when_one_rank_cannot_save_no_rank_goes_on(tmp_path):
    messages = on_ranks(2, save_with_a_full_disk_on_rank_1, tmp_path, tmp_path / "checkpoints")

    assert messages[0] == messages[1]
    assert "rank 1 could not save the checkpoint of step 2" in messages[0]
    assert "no space left on device" in messages[0]
    assert steps(LocalStore(tmp_path / "checkpoints")) == [1]


def save_with_a_full_disk_on_rank_1(group, folder):
    save(LocalStore(folder), 1, group=group, value=7)
    store = FullStore(folder) if group.rank == 1 else LocalStore(folder)
    with pytest.raises(CheckpointError) as caught:
        save(store, 2, group=group, value=7)
    return str(caught.value)
