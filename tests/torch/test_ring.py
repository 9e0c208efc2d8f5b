"""Shared blocks are used again, and never while they are looked at."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from demoreel.testing import make_dataset, read_stamp
from demoreel.torch import LeRobotDataset
from demoreel.torch.ring import Ring, is_possible

CAMERA = "observation.images.cam0"
pytestmark = pytest.mark.skipif(not is_possible(), reason="needs memfd and /proc")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_dataset(
        tmp_path_factory.mktemp("ring") / "made",
        episodes=[60, 60],
        cameras={CAMERA: (192, 256)},  # 8 images are 1.1 MB: worth a block
        gop=4,
    )


def check(batch):
    for place, image in enumerate(batch[CAMERA]):
        seen = read_stamp(image.numpy())
        assert seen.episode == batch["episode_index"][place].item()
        assert seen.frame == batch["frame_index"][place].item()


def mapped_blocks():
    with open("/proc/self/maps") as maps:
        return {line.split()[4] for line in maps if "demoreel-batch" in line}


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("as_uint8", [True, False])
@pytest.mark.soak
def test_blocks_are_used_again(root, method, as_uint8):
    ds = LeRobotDataset("me/made", root=root, return_uint8=as_uint8)
    loader = DataLoader(
        ds, batch_size=8, num_workers=2, multiprocessing_context=method, persistent_workers=True
    )
    for _ in range(3):
        seen = []
        for batch in loader:
            check(batch)
            assert type(batch[CAMERA]) is torch.Tensor
            seen += batch["index"].tolist()
        assert seen == list(range(120))
    assert 0 < len(mapped_blocks()) <= 12  # 45 batches came through a handful of blocks
    del loader, batch
    gc.collect()


def test_batches_that_are_kept_keep_their_images(root):
    ds = LeRobotDataset("me/made", root=root, return_uint8=True)
    kept = list(DataLoader(ds, batch_size=8, num_workers=1))  # more than a ring has blocks
    for batch in kept:
        check(batch)
    assert sum(len(batch["index"]) for batch in kept) == 120


def test_views_keep_a_block_too(root):
    ds = LeRobotDataset("me/made", root=root, return_uint8=True)
    loader = DataLoader(ds, batch_size=8, num_workers=1, persistent_workers=True)
    iterator = iter(loader)
    first = next(iterator)
    rows = first[CAMERA][3].numpy()[1]  # a numpy view of a slice of the tensor
    before = rows.copy()
    del first
    gc.collect()
    for batch in iterator:
        del batch
    for batch in loader:
        del batch
    np.testing.assert_array_equal(rows, before)


def test_a_forked_child_gives_nothing_back(root):
    ds = LeRobotDataset("me/made", root=root, return_uint8=True)
    iterator = iter(DataLoader(ds, batch_size=8, num_workers=1))
    batch = next(iterator)
    child = os.fork()
    if child == 0:
        del batch
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    for other in iterator:
        check(other)
        del other
    check(batch)


def test_pinned_and_custom_collate(root):
    def collate(items):
        return {"picture": torch.stack([item[CAMERA] for item in items]).float().mean((1, 2, 3))}

    ds = LeRobotDataset("me/made", root=root, return_uint8=True)
    expected = [ds[number][CAMERA].float().mean() for number in range(16)]
    loader = DataLoader(ds, batch_size=8, num_workers=2, collate_fn=collate)
    means = torch.cat([batch["picture"] for _, batch in zip(range(2), loader, strict=False)])
    torch.testing.assert_close(means, torch.stack(expected))


def test_a_ring_has_an_end(monkeypatch):
    ring = Ring()
    blocks = []
    while (block := ring.take(1 << 20)) is not None:
        block.sent[0] = 1
        blocks.append(block)
    assert len(blocks) == 12
    blocks[5].sent[0] = 0
    assert ring.take(1 << 20) is blocks[5]
    held = blocks[5].array()
    assert ring.take(1 << 20) is None
    del held
    assert ring.take(1 << 20) is blocks[5]


def test_no_memory_left_is_no_block(monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert Ring().take(1 << 20) is None


@pytest.mark.soak
def test_nothing_is_left_behind(root):
    before = len(os.listdir("/proc/self/fd"))
    ds = LeRobotDataset("me/made", root=root, return_uint8=True)
    for _ in range(4):
        for batch in DataLoader(ds, batch_size=8, num_workers=2):
            del batch
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before + 8
    # Blocks of workers that have ended are let go when the next worker's first one arrives.
    for batch in DataLoader(ds, batch_size=8, num_workers=1):
        del batch
    assert len(mapped_blocks()) <= 13
