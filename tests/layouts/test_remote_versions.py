"""Older versions of a remote Lance dataset, whose metadata come when they are wanted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import demoreel
from demoreel.layouts.detect import open_reader
from demoreel.storage.place import RemotePlace
from demoreel.storage.remote.folder import RemoteFolder, open_folder
from demoreel.testing import make_dataset

from ..storage.remote.conftest import FolderStore

EPISODES = 5


@pytest.fixture(scope="module")
def edited(tmp_path_factory):
    """A dataset that lost an episode three times, and how many each version has."""
    home = tmp_path_factory.mktemp("edited")
    root = home / "film"
    demoreel.convert(make_dataset(home / "v3", episodes=[2] * EPISODES), root, to="lance-video")
    lengths = {}
    for left in range(EPISODES, 1, -1):
        lengths[demoreel.open(root).reader.tables["frames"].version] = left
        demoreel.cut(root).delete(0).render_in_place()
    return root, lengths


def opened(root: Path, cache: Path) -> tuple[RemoteFolder, FolderStore]:
    # A folder as a store: SeaweedFS hides what is called .versions.
    store = FolderStore(root)
    store.place = RemotePlace(f"file://{root}")
    return open_folder(store, cache_dir=cache, cache_size=0, with_versions=True), store


def test_every_version_has_its_own_metadata(edited, tmp_path):
    root, lengths = edited
    for version, episodes in lengths.items():
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        remote, store = opened(root, tmp_path / "cache")
        assert remote.deferred(".versions/")
        reader = open_reader(remote, version=version)
        assert reader.info.total_episodes == episodes
        assert len(store.asked) <= 20
        assert not [name for name in store.asked if ".versions" in name and "episodes/" in name]
        assert len(reader.episodes) == episodes
        other = [f for f in remote.deferred(".versions/") if f"{version:08d}" not in f.name]
        assert len({file.name.split("/")[1] for file in other if "meta" in file.name}) == 3
