"""Batches reach the training loop without a copy, and right when something was changed."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from demoreel.testing import make_dataset, read_stamp
from demoreel.torch import LeRobotDataset

CAMERA = "observation.images.cam0"


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    root = make_dataset(tmp_path_factory.mktemp("collate") / "made", episodes=[9, 9], language=True)
    return LeRobotDataset("me/made", root=root, return_uint8=True)


def plainly_collated(ds, numbers):
    batch = {}
    for key, first in ds[0].items():
        values = [ds[number][key] for number in numbers]
        batch[key] = values if isinstance(first, (str, list)) else torch.stack(values)
    return batch


def same(left, right):
    assert list(left) == list(right)
    for key, value in left.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == right[key].dtype
            assert torch.equal(value, right[key]), key
        else:
            assert value == right[key], key


def test_a_whole_batch_is_not_copied(ds):
    items = ds.__getitems__([4, 2, 11])
    batch = default_collate(items)
    assert batch[CAMERA].data_ptr() == items[0][CAMERA].data_ptr()
    same(batch, plainly_collated(ds, [4, 2, 11]))


def test_a_part_or_another_order_is_collated_anew(ds):
    items = ds.__getitems__([4, 2, 11])
    same(default_collate(items[:2]), plainly_collated(ds, [4, 2]))
    items = ds.__getitems__([4, 2, 11])
    same(default_collate(items[::-1]), plainly_collated(ds, [11, 2, 4]))
    mixed = [ds.__getitems__([4, 2])[0], ds.__getitems__([7, 5])[1]]
    same(default_collate(mixed), plainly_collated(ds, [4, 5]))


def test_changed_samples_are_collated_anew(ds):
    items = ds.__getitems__([4, 2])
    items[1]["action"] = torch.full((6,), 7.0)
    batch = default_collate(items)
    assert batch["action"][1].tolist() == [7.0] * 6
    assert torch.equal(batch["action"][0], ds[4]["action"])

    items = ds.__getitems__([4, 2])
    for item in items:
        item["more"] = torch.tensor(3)
        del item["action"]
    batch = default_collate(items)
    assert batch["more"].tolist() == [3, 3]
    assert "action" not in batch


def test_changes_in_place_are_in_the_batch(ds):
    items = ds.__getitems__([4, 2])
    items[0]["action"].fill_(5)
    assert default_collate(items)["action"][0].tolist() == [5.0] * 6


def test_samples_pickle_alone(ds):
    item = ds.__getitems__(list(range(18)))[3]
    data = pickle.dumps(item["index"])
    assert len(data) < 2000
    again = pickle.loads(pickle.dumps(item))
    assert type(again) is dict
    assert torch.equal(again[CAMERA], item[CAMERA])


class Wrapped(Dataset):
    """What users do: a dataset around the dataset."""

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, number):
        item = self.inner[number]
        item["action"] = item["action"] * 2
        return {key: value for key, value in item.items() if not isinstance(value, list)}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_around_the_dataset(ds, workers):
    for batch in DataLoader(Wrapped(ds), batch_size=6, num_workers=workers):
        torch.testing.assert_close(batch["action"][:, 1], -2.0 * batch["frame_index"])


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_batches(ds, workers):
    loader = DataLoader(ds, batch_size=5, num_workers=workers, shuffle=True)
    seen = []
    for batch in loader:
        assert batch[CAMERA].dtype == torch.uint8
        if workers:
            assert batch[CAMERA].is_shared()  # decoded where the training process sees it
        for place in range(len(batch["index"])):
            stamp = read_stamp(batch[CAMERA][place].numpy())
            assert stamp.episode == batch["episode_index"][place].item()
            assert stamp.frame == batch["frame_index"][place].item()
            assert len(batch["language_events"][place]) == (0 if stamp.frame % 5 else 1)
        seen += batch["index"].tolist()
    assert sorted(seen) == list(range(18))
