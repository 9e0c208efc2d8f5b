"""Where the classes are pointed to: URIs in the place of names and folders."""

from __future__ import annotations

import pytest

from demoreel.torch import LeRobotDataset, LeRobotDatasetMetadata, LeRobotLanceVideoDataset

from ..conftest import assert_same


@pytest.mark.parametrize("layout", ["v3.0", "lance-video"])
def test_metadata_of_a_dataset_that_lies_remote_away(uploaded, local_datasets, layout):
    uri = uploaded(layout)
    here = LeRobotDatasetMetadata("me/task", local_datasets(layout))
    for there in (LeRobotDatasetMetadata("me/task", uri), LeRobotDatasetMetadata(uri)):
        assert there.info == here.info
        assert list(there.episodes) == list(here.episodes)
        assert there.tasks.equals(here.tasks)
        assert there.stats.keys() == here.stats.keys()


def test_a_lance_class_takes_a_uri_for_its_only_argument(uploaded, local_datasets):
    there = LeRobotLanceVideoDataset(uploaded("lance-native"))
    here = LeRobotDataset("me/task", local_datasets("lance-native"))
    assert there.repo_id == "lance-native"
    for item, expected in zip(there.__getitems__([0, 40]), here.__getitems__([0, 40]), strict=True):
        assert_same(item, expected)
