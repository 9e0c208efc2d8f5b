"""Batches that say which ones come next: the same batches, and the right ones ahead."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, RandomSampler

from demoreel.errors import ArgumentError
from demoreel.testing import make_dataset
from demoreel.torch import (
    EpisodeAwareSampler,
    LeRobotDataset,
    PrefetchBatchSampler,
    WeightedSampler,
    compute_sampler_state,
)


class Noting(Dataset):
    """Gives, with each index, the worker that was asked, and the batches that it was told of."""

    def __len__(self):
        return 22

    def __getitems__(self, indices):
        info = torch.utils.data.get_worker_info()
        worker = 0 if info is None else info.id
        return [(indices, worker, getattr(indices, "upcoming", None))]


def seen(sampler, **options):
    options.setdefault("multiprocessing_context", "fork" if options.get("num_workers") else None)
    return DataLoader(Noting(), batch_sampler=sampler, collate_fn=lambda items: items[0], **options)


def assert_told(loader, *, ahead, batches):
    noted = list(loader)
    assert [list(indices) for indices, _, _ in noted] == batches
    for number, (_, worker, upcoming) in enumerate(noted):
        later = [list(indices) for indices, other, _ in noted[number + 1 :] if other == worker]
        assert [list(batch) for batch in upcoming] == later[:ahead]


PLAIN = [list(range(at, min(at + 4, 22))) for at in range(0, 22, 4)]


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("ahead", [1, 3])
def test_each_worker_is_told_what_it_will_get(workers, ahead):
    options = {"num_workers": workers, "persistent_workers": workers == 2}
    sampler = PrefetchBatchSampler(range(22), batch_size=4, num_workers=workers, ahead=ahead)
    assert len(sampler) == 6
    loader = seen(sampler, **options)
    for _ in range(2):
        assert_told(loader, ahead=ahead, batches=PLAIN)


def test_any_sampler():
    generator = torch.Generator().manual_seed(3)
    wanted = list(BatchSampler(RandomSampler(range(22), generator=generator), 5, True))
    generator.manual_seed(3)
    sampler = PrefetchBatchSampler(
        RandomSampler(range(22), generator=generator), batch_size=5, drop_last=True
    )
    assert (list(sampler), len(sampler)) == (wanted, 4)
    assert list(PrefetchBatchSampler(PLAIN, num_workers=9)) == PLAIN
    assert list(PrefetchBatchSampler([])) == []
    of_two = DistributedSampler(range(22), num_replicas=2, rank=1, seed=1)
    mine = PrefetchBatchSampler(of_two, batch_size=4)
    first = list(mine)
    of_two.set_epoch(1)
    assert len(first) == len(mine) == 3
    assert list(mine) == list(BatchSampler(of_two, 4, False)) != first


@pytest.mark.filterwarnings("ignore:PrefetchBatchSampler")  # forked workers inherit it
def test_another_number_of_workers():
    """What was meant for others is not fetched; a worker says so."""
    sampler = PrefetchBatchSampler(PLAIN, num_workers=3)
    batch = pickle.loads(pickle.dumps(next(iter(sampler))))
    assert (batch, [list(later) for later in batch.upcoming]) == (PLAIN[0], [PLAIN[3]])
    assert [noted[2] for noted in seen(sampler, num_workers=1)] == [()] * 6


@pytest.mark.parametrize(
    "options",
    [{"ahead": 0}, {"ahead": 5}, {"num_workers": -1}, {"batch_size": 0}, {"drop_last": True}],
)
def test_what_makes_no_sense(options):
    with pytest.raises(ArgumentError):
        PrefetchBatchSampler(range(4), **options)


class TestEpisodeAware:
    def sampler(self, **options):
        return EpisodeAwareSampler([0, 10, 25, 27], [10, 25, 27, 40], **options)

    def test_bounds(self):
        found = self.sampler(
            drop_n_first_frames=2, drop_n_last_frames=3, episode_indices_to_use=[0, 2, 3]
        )
        assert list(found) == found.indices == [*range(2, 7), *range(29, 37)]
        assert len(found) == 13
        items = {frame: 1000 + frame for frame in range(40)}
        assert list(self.sampler(absolute_to_relative_idx=items))[:2] == [1000, 1001]

    def test_epochs_and_states(self):
        one, other = self.sampler(shuffle=True, seed=3), self.sampler(shuffle=True, seed=3)
        first, second = list(one), list(one)
        assert sorted(first) == sorted(second) == list(range(40))
        assert first != second
        assert one.state_dict() == {"epoch": 2, "start_index": 0}
        other.load_state_dict(compute_sampler_state(7, 40, 4, 2))  # 5 steps to an epoch
        assert list(other) == second[16:]
        other.set_epoch(0)
        assert list(other) == first

    def test_ranks_divide_an_epoch(self):
        whole = list(self.sampler(shuffle=True, seed=3))
        ranks = [self.sampler(shuffle=True, seed=3, rank=r, world_size=3) for r in range(3)]
        assert [list(rank) for rank in ranks] == [whole[r:39:3] for r in range(3)]
        assert len(ranks[0]) == 13

    @pytest.mark.parametrize(
        "options",
        [
            {"drop_n_first_frames": -1},
            {"drop_n_last_frames": -1},
            {"drop_n_last_frames": 15},
            {"episode_indices_to_use": []},
        ],
    )
    def test_refused(self, options):
        with pytest.raises(ValueError, match=r"must be|No frame"):
            self.sampler(**options)
        with pytest.raises(ValueError, match="same length"):
            EpisodeAwareSampler([0], [1, 2])


class TestWeighted:
    def test_every_frame_comes_as_often_as_its_score_says(self):
        scores = np.random.default_rng(0).random(300) * (np.arange(300) % 3 > 0)
        sampler = WeightedSampler(scores, num_samples=5000, seed=1)
        found = list(sampler)
        often = np.bincount(found, minlength=300)
        assert (np.abs(often - 5000 * scores / scores.sum()) < 1 + 1e-9).all()
        assert not often[scores == 0].any()
        assert found != sorted(found)
        again = WeightedSampler(scores, num_samples=5000, seed=1)
        again.load_state_dict({"epoch": 0, "start_index": 4000})
        assert list(again) == found[4000:]
        assert list(again) != found

    def test_ranks_and_columns(self, tmp_path):
        root = make_dataset(
            tmp_path / "d", episodes=[9, 8], cameras=0,
            features={"score": {"dtype": "float32", "shape": [1]}},
        )  # fmt: skip
        dataset = LeRobotDataset("me/d", root)
        scores = np.abs([float(dataset[n]["score"]) for n in range(17)])
        ranks = [WeightedSampler(scores, rank=r, world_size=2) for r in range(2)]
        both = [n for pair in zip(*ranks, strict=True) for n in pair]
        assert both == list(WeightedSampler(scores))[:16]
        if min(float(dataset[n]["score"]) for n in range(17)) >= 0:
            assert len(list(WeightedSampler("score", dataset))) == 17
        with pytest.raises(ArgumentError, match="no column"):
            WeightedSampler("nothing", dataset)
        with pytest.raises(ArgumentError, match="dataset="):
            WeightedSampler("score")

    @pytest.mark.parametrize("scores", [[], [0, 0], [1, -1], [1, float("nan")]])
    def test_refused(self, scores):
        with pytest.raises(ArgumentError, match="Scores"):
            WeightedSampler(scores)
