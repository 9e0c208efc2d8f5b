"""A push deletes no episodes of others: what is compared, and what the error says."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import demoreel
from demoreel.errors import NewerRemoteError
from demoreel.testing import make_dataset

REPO = "me/my_task"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    return {
        layout: make_dataset(folder / layout, episodes=[5, 4, 6], cameras=0, layout=layout)
        for layout in ("v2.1", "v3.0")
    }


@pytest.fixture
def folder(made, tmp_path):
    shutil.copytree(made["v3.0"], tmp_path / "ds")
    return tmp_path / "ds"


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A function that makes the rest of a test happen on another machine, or back on "mine"."""

    def go(machine):
        cache = "cache" if machine == "mine" else f"cache-of-{machine}"
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))

    return go


def grow(folder, value=0.0, frames=3):
    with demoreel.resume(folder, fps=30) as recorder:
        for number in range(frames):
            recorder.add_frame(
                {
                    "observation.state": np.full(6, value + number),
                    "action": np.full(6, value),
                    "task": "do it",
                }
            )
        recorder.save_episode()


@pytest.mark.parametrize("machine", ["mine", "one that remembers nothing"])
def test_what_another_machine_has_added_is_kept(hub, folder, tmp_path, elsewhere, machine):
    demoreel.push(folder, REPO)
    copy = shutil.copytree(folder, tmp_path / "copy")
    elsewhere("theirs")
    grow(copy, value=1.0)
    theirs = demoreel.push(copy, REPO)
    elsewhere(machine)
    grow(folder, value=2.0)  # as long, and of the same task: only its numbers differ
    with pytest.raises(NewerRemoteError) as caught:
        demoreel.push(folder, REPO)
    assert hub.refs(REPO)["branches"]["main"] == theirs.commit
    where = caught.value.where
    assert where["lost"] == "episode 3"
    assert where["on_the_hub"] == "4 episodes, 18 frames" == where["here"]
    assert REPO in str(where["repository"])
    assert theirs.commit[:7] in str(where["repository"])
    assert "force" in str(caught.value.hint)
    if machine == "mine":
        assert "after this folder was last pushed" in caught.value.what
        assert "meta/info.json" in str(where["changed_there"])
    with pytest.raises(NewerRemoteError):
        demoreel.push(folder, REPO, dry_run=True)
    done = demoreel.push(folder, REPO, force=True)
    assert hub.refs(REPO)["tags"]["v3.0"] == done.commit


def test_a_copy_that_grew_may_be_pushed_from_anywhere(hub, folder, tmp_path, elsewhere):
    demoreel.push(folder, REPO)
    elsewhere("other")
    copy = shutil.copytree(folder, tmp_path / "copy")
    grow(copy, value=1.0)
    demoreel.push(copy, REPO)
    elsewhere("mine")
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    grow(folder, value=2.0)
    done = demoreel.push(folder, REPO)
    assert json.loads(hub.read(REPO, "meta/info.json"))["total_episodes"] == 5
    assert done.episodes == 5


def test_episodes_that_were_taken_out_here(hub, folder, tmp_path):
    demoreel.push(folder, REPO)
    demoreel.cut(folder).delete([1]).render(tmp_path / "cut")
    shutil.rmtree(folder)
    (tmp_path / "cut").rename(folder)
    done = demoreel.push(folder, REPO)
    assert done.episodes == 2
    assert json.loads(hub.read(REPO, "meta/info.json"))["total_episodes"] == 2


def test_episodes_that_are_missing_from_a_copy(hub, folder, tmp_path, elsewhere):
    demoreel.push(folder, REPO)
    demoreel.cut(folder).delete([1]).render(tmp_path / "cut")
    elsewhere("other")
    with pytest.raises(NewerRemoteError) as caught:
        demoreel.push(tmp_path / "cut", REPO)
    assert caught.value.where["lost"] == "episode 1"


def test_another_dataset_at_the_same_path(hub, folder):
    """Recorded again under the old name: what is remembered is of another dataset."""
    demoreel.push(folder, REPO)
    shutil.rmtree(folder)
    make_dataset(folder, episodes=[9, 9], cameras=0, layout="v3.0", seed=7)
    with pytest.raises(NewerRemoteError, match="another dataset"):
        demoreel.push(folder, REPO)
    assert json.loads(hub.read(REPO, "meta/info.json"))["total_episodes"] == 3


def test_a_converted_dataset_replaces_its_source(hub, made, tmp_path):
    hub.seed(REPO, made["v2.1"], tag="v2.1")
    before = hub.refs(REPO)["tags"]["v2.1"]
    demoreel.convert(made["v2.1"], tmp_path / "new", to="v3.0")
    done = demoreel.push(tmp_path / "new", REPO)
    assert hub.refs(REPO)["tags"] == {"v2.1": before, "v3.0": done.commit}
    assert "meta/episodes.jsonl" not in hub.files(REPO)
    assert "meta/episodes.jsonl" in hub.files(REPO, "v2.1")


def test_a_renamed_task_on_the_hub_is_noticed(hub, folder, tmp_path):
    demoreel.push(folder, REPO)
    copy = shutil.copytree(folder, tmp_path / "copy")
    renamed = tmp_path / "renamed"
    demoreel.cut(copy).retask({"do it": "do it well"}).render(renamed)
    hub.seed(REPO, renamed)
    grow(folder)
    with pytest.raises(NewerRemoteError):
        demoreel.push(folder, REPO)


def test_commits_to_other_files_do_not_matter(hub, folder):
    demoreel.push(folder, REPO)
    hub.commit(REPO, {"README.md": b"# By hand\n", "docs/x.md": b"x"})
    grow(folder)
    hub.reset_log()
    demoreel.push(folder, REPO)
    assert "# By hand" in hub.read(REPO, "README.md").decode()
    # What is remembered was enough: no metadata were fetched.
    assert not [e for e in hub.log if e.route == "resolve" and "/meta/" in e.path]


def test_metadata_that_nobody_can_read(hub, folder):
    hub.seed(REPO)
    hub.commit(REPO, {"meta/info.json": b"{", "data/chunk-000/file-000.parquet": b"x"})
    with pytest.raises(NewerRemoteError, match="cannot be read"):
        demoreel.push(folder, REPO)
    hub.commit(REPO, {"meta/info.json": None})
    with pytest.raises(NewerRemoteError, match="cannot be read"):
        demoreel.push(folder, REPO)
    demoreel.push(folder, REPO, force=True)


def test_a_repository_without_a_dataset(hub, folder):
    hub.seed(REPO)
    hub.commit(REPO, {"README.md": b"# Soon\n", "model.bin": b"1"})
    demoreel.push(folder, REPO)
    assert "model.bin" in hub.files(REPO)
    assert "# Soon" in hub.read(REPO, "README.md").decode()
