"""At each moment at least one complete checkpoint exists, whatever fails, and a damaged one is named."""

import errno
from contextlib import suppress

import pytest
import torch
from toy import CPU, on_ranks

from dataplane import Topology
from training import CheckpointError, Checkpoints, LocalFolder, OtherRankError
from training.group import Group

SINGLE = Group(Topology(), CPU)


class Killed(BaseException):
    """Ends the process, as far as the code under test can tell."""


class DyingFolder(LocalFolder):
    """A folder whose user is killed before its nth call to the file system."""

    def __init__(self, folder, *, calls):
        super().__init__(folder)
        self.calls = calls

    def __getattribute__(self, name):
        if name in ("create", "commit", "delete"):
            self.calls -= 1
            if self.calls < 0:
                raise Killed
        return super().__getattribute__(name)


class FullFolder(LocalFolder):
    """A folder on a disk that has no room left for model weights."""

    def create(self, step, name):
        if name.endswith(".pt"):
            raise OSError(errno.ENOSPC, "no space left on device", name)
        return super().create(step, name)


def save(store, step, *, keep=1, group=SINGLE):
    checkpoints = Checkpoints(store, keep=keep, group=group)
    checkpoints.save(step, shared={"weights": torch.full((3,), step)}, own={"rank": group.rank})


@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("calls", range(8))
def test_a_kill_anywhere_in_a_save_leaves_the_last_or_the_new_checkpoint(calls, keep, tmp_path):
    save(LocalFolder(tmp_path), 1, keep=keep)
    with suppress(Killed):
        save(DyingFolder(tmp_path, calls=calls), 2, keep=keep)
    checkpoints = Checkpoints(LocalFolder(tmp_path), keep=keep, group=SINGLE)
    newest = checkpoints.latest()

    assert newest in (1, 2)
    assert checkpoints.load(newest)[0]["weights"].tolist() == [newest] * 3
    checkpoints.clean()
    assert all(path.name.startswith("step-") for path in tmp_path.iterdir())


@pytest.mark.parametrize("keep", [1, 2])
def test_the_newest_ones_are_kept(keep, tmp_path):
    for step in range(1, 7):
        save(LocalFolder(tmp_path), step, keep=keep)

    assert LocalFolder(tmp_path).steps() == list(range(7 - keep, 7))


def test_a_full_disk_fails_the_save_and_spares_the_last_checkpoint(tmp_path):
    save(LocalFolder(tmp_path), 1)
    with pytest.raises(OSError, match="no space left") as caught:
        save(FullFolder(tmp_path), 2)

    assert caught.value.__notes__ == [f"rank 0 could not save the checkpoint of step 2 in {tmp_path}"]
    assert LocalFolder(tmp_path).steps() == [1]


@pytest.mark.parametrize("place", [0, -1, 700])
def test_a_damaged_file_is_named_instead_of_loaded(place, tmp_path):
    save(LocalFolder(tmp_path), 3)
    path = tmp_path / "step-00000003" / "shared.pt"
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)

    with pytest.raises(CheckpointError, match=r"shared.pt of the checkpoint of step 3 .* is damaged"):
        Checkpoints(LocalFolder(tmp_path), keep=1, group=SINGLE).load(3)


def test_a_checkpoint_of_another_format_is_refused(tmp_path):
    save(LocalFolder(tmp_path), 3)
    (tmp_path / "step-00000003" / "manifest.json").write_text('{"format": 99, "world_size": 1}')

    with pytest.raises(CheckpointError, match="has format 99, this version reads 1"):
        Checkpoints(LocalFolder(tmp_path), keep=1, group=SINGLE).load(3)


def test_when_one_rank_cannot_save_no_rank_goes_on(tmp_path):
    messages = on_ranks(2, save_with_a_full_disk_on_rank_1, tmp_path, tmp_path / "checkpoints")

    assert messages == [
        "rank 1 could not save the checkpoint of step 2; its own message says why",
        "[Errno 28] no space left on device: 'rank-1.pt'",
    ]
    assert LocalFolder(tmp_path / "checkpoints").steps() == [1]


def save_with_a_full_disk_on_rank_1(group, folder):
    save(LocalFolder(folder), 1, group=group)
    store = FullFolder(folder) if group.rank == 1 else LocalFolder(folder)
    with pytest.raises((OtherRankError, OSError)) as caught:
        save(store, 2, group=group)
    return str(caught.value)
