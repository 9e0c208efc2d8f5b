"""Lance datasets are published at their newest version, and read from there as they are here."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import demoreel
from demoreel.errors import ArgumentError
from demoreel.testing import make_dataset

REPO = "me/my_task"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    source = make_dataset(
        folder / "source", episodes=[5, 4], cameras={"observation.images.top": (48, 64)}
    )
    for layout in ("lance-video", "lance-frames", "lance-native"):
        demoreel.convert(source, folder / layout, to=layout, verify="none")
    demoreel.convert(source, folder / "linked", to="lance-video", link=True, verify="none")
    return folder


def fetched(hub, folder):
    """What the repository holds, as a plain folder."""
    for name in hub.files(REPO):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(hub.read(REPO, name))
    return folder


def assert_alike(left, right):
    a, b = demoreel.open(left), demoreel.open(right)
    assert len(a) == len(b)
    assert a.layout == b.layout
    for index in range(len(a)):
        for key, value in a[index].items():
            assert np.array_equal(value, b[index][key]), (index, key)


@pytest.mark.parametrize("layout", ["lance-video", "lance-frames", "lance-native"])
def test_what_is_published_is_the_dataset(hub, made, tmp_path, layout):
    done = demoreel.push(made / layout, REPO)
    assert done.tag == "v3.0"
    assert done.layout == layout
    assert "configs" not in hub.read(REPO, "README.md").decode()
    assert_alike(fetched(hub, tmp_path / "there"), made / layout)


def test_an_edit_is_a_new_version_and_older_ones_stay_here(hub, made, tmp_path):
    root = shutil.copytree(made / "lance-video", tmp_path / "ds")
    demoreel.push(root, REPO)
    demoreel.tag(root, "before")
    demoreel.cut(root).delete([0]).render_in_place()
    assert (root / ".versions").is_dir()
    done = demoreel.push(root, REPO)
    assert done.deleted
    assert done.episodes == 1
    tables = [name.split("/")[0] for name in hub.files(REPO) if name.endswith(".manifest")]
    assert len(tables) == len(set(tables))  # one version of each
    assert not any(name.startswith(".versions") or "_refs" in name for name in hub.files(REPO))
    there = fetched(hub, tmp_path / "there")
    assert_alike(there, root)
    assert len(demoreel.versions(there)) == 1
    assert not demoreel.push(root, REPO).sent


def test_appended_episodes_cost_their_own_bytes(hub, made, tmp_path):
    root = shutil.copytree(made / "lance-native", tmp_path / "ds")
    demoreel.push(root, REPO)
    old = set(hub.files(REPO))
    with demoreel.resume(root, fps=30) as recorder:
        for number in range(3):
            recorder.add_frame(
                {
                    "observation.state": np.full(6, number),
                    "action": np.ones(6),
                    "observation.images.top": np.full((48, 64, 3), number, np.uint8),
                    "task": "do it",
                }
            )
        recorder.save_episode()
    done = demoreel.push(root, REPO)
    again = {name for name in set(done.sent) & old if "/data/" in name}
    assert again == set()
    assert_alike(fetched(hub, tmp_path / "there"), root)


def test_linked_videos_are_not_published(hub, made):
    with pytest.raises(ArgumentError, match="are elsewhere"):
        demoreel.push(made / "linked", REPO)
    with pytest.raises(ArgumentError, match="push_videos"):
        demoreel.push(made / "lance-video", REPO, push_videos=False)
    assert not hub.exists(REPO)


def test_an_older_version_is_not_what_is_pushed(hub, made, tmp_path):
    root = shutil.copytree(made / "lance-video", tmp_path / "ds")
    demoreel.tag(root, "before")
    demoreel.cut(root).delete([0]).render_in_place()
    with pytest.raises(ArgumentError, match="older version"):
        demoreel.open(root, tag="before").push_to_hub(REPO)


def test_a_layout_may_be_replaced_by_another(hub, made, tmp_path):
    demoreel.push(made / "source", REPO)
    done = demoreel.push(made / "lance-video", REPO)
    assert any(name.startswith("videos/") for name in done.deleted)
    assert_alike(fetched(hub, tmp_path / "there"), made / "lance-video")
    demoreel.push(made / "source", REPO)
    assert not any(".lance/" in name for name in hub.files(REPO))


def test_what_other_tools_wrote(hub, fixtures, tmp_path):
    done = demoreel.push(fixtures / "kitchen_lance_frames", REPO)
    assert done.tag == "v3.0"
    assert len(demoreel.open(fetched(hub, tmp_path / "there"))) == done.frames
