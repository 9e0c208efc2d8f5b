"""Publishing: real folders, the real client, a Hub on loopback."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import demoreel
from demoreel.errors import (
    AccessError,
    ArgumentError,
    DatasetBusyError,
    DatasetNotFoundError,
    StoreError,
    UnfinishedError,
)
from demoreel.storage.hub_calls import Hub
from demoreel.testing import make_dataset
from support.persisted import leave_persisted

REPO = "me/my_task"
LFS_ABOVE = 2000  # bytes, for the fixture
IMAGE = "demoreel/first_frames.jpg"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A dataset of every version that is written, to be copied."""
    folder = tmp_path_factory.mktemp("made")
    return {
        layout: make_dataset(
            folder / layout,
            episodes=[5, 4],
            cameras={"observation.images.top": (48, 64)},
            layout=layout,
        )
        for layout in ("v2.0", "v2.1", "v3.0")
    }


@pytest.fixture
def folder(made, tmp_path):
    """A v3.0 dataset to change."""
    shutil.copytree(made["v3.0"], tmp_path / "ds")
    return tmp_path / "ds"


def routes(hub):
    return [entry.route for entry in hub.log]


def names_of(root):
    return {
        path.relative_to(root).as_posix()
        for path in Path(root).rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.parts[-4:])
    }


def test_one_commit_holds_data_and_card(hub, folder):
    done = demoreel.push(folder, REPO)
    newest, initial = hub.commits(REPO)
    assert newest.oid == done.commit
    assert initial.title == "initial commit"
    files = hub.files(REPO)
    assert names_of(folder) | {"README.md", IMAGE, ".gitattributes"} == set(files)
    for name in names_of(folder):
        assert hub.read(REPO, name) == (folder / name).read_bytes()
    assert done.created
    assert done.tag == "v3.0"
    assert done.tag_moved
    assert hub.refs(REPO)["tags"] == {"v3.0": done.commit}
    assert done.to_json()["bytes_sent"] == sum(done.sent.values()) > 0
    assert not (folder / ".demoreel").exists()


@pytest.mark.parametrize("layout", ["v2.0", "v2.1", "v3.0"])
def test_the_tag_is_the_version_that_was_written(hub, made, layout):
    done = demoreel.open(made[layout]).push_to_hub(REPO, private=True, tags=["so101"])
    assert done.tag == layout
    assert hub.refs(REPO)["tags"] == {layout: done.commit}
    assert "- so101" in hub.read(REPO, "README.md").decode()


def test_pushing_again_sends_nothing_and_reads_nothing(hub, folder):
    first = demoreel.push(folder, REPO)
    hub.reset_log()
    again = demoreel.push(folder, REPO)
    assert again.commit == first.commit
    assert not again.sent
    assert not again.deleted
    assert again.unchanged == len(names_of(folder)) + 1  # the card
    assert not again.created
    assert not again.tag_moved
    assert {entry.method for entry in hub.log} <= {"GET", "HEAD"}


def test_appended_episodes_cost_their_own_bytes(hub, folder):
    demoreel.push(folder, REPO)
    grow(folder)
    hub.reset_log()
    done = demoreel.push(folder, REPO)
    old = set(hub.files(REPO, hub.commits(REPO)[1].oid))
    assert len(hub.commits(REPO)) == 3
    # Rows and images of the old episodes are files that stayed as they were.
    assert not {name for name in old & set(done.sent) if name.startswith(("data/", "videos/"))}
    assert {name for name in done.sent if name.startswith("videos/")}
    assert names_of(folder) <= set(hub.files(REPO))


def grow(folder):
    with demoreel.resume(folder, fps=30, merge=False) as recorder:
        for number in range(3):
            recorder.add_frame(
                {
                    "observation.state": [float(number)] * 6,
                    "action": [1.0] * 6,
                    "observation.images.top": image(number),
                    "task": "do it",
                }
            )
        recorder.save_episode()


def image(number):
    import numpy as np

    return np.full((48, 64, 3), number, np.uint8)


def test_files_that_are_gone_are_deleted_and_foreign_ones_stay(hub, folder):
    extra = ["data/chunk-000/file-009.parquet", "meta/old.json", "videos/gone/x.mp4"]
    for name in extra:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    for name in extra[1:]:
        (folder / name).write_text("old")
    shutil.copyfile(folder / "data/chunk-000/file-000.parquet", folder / extra[0])
    demoreel.push(folder, REPO)
    assert set(extra) <= set(hub.files(REPO))
    foreign = {"notes.txt": b"mine", "images/a.png": b"png", "scripts/data/x.py": b"1"}
    hub.commit(REPO, foreign)
    for name in extra:
        (folder / name).unlink()
    done = demoreel.push(folder, REPO)
    assert done.deleted == tuple(sorted(extra))
    assert not done.sent
    assert len(hub.commits(REPO)) == 4
    assert foreign.keys() <= set(hub.files(REPO))
    assert not set(extra) & set(hub.files(REPO))


@pytest.mark.parametrize("gone", ["data", "videos"])
def test_part_of_a_dataset_is_not_pushed(hub, folder, gone):
    """As one is in a cache that was made for some of its episodes, or without videos."""
    demoreel.push(folder, REPO)
    shutil.rmtree(folder / gone)
    with pytest.raises(ArgumentError, match="not in its folder"):
        demoreel.push(folder, REPO, force=True)
    assert any(name.startswith(gone) for name in hub.files(REPO))


def test_hidden_things_never_leave_the_machine(hub, folder):
    for name in (
        ".demoreel/journal.old",
        ".demoreel/staging-000000000000/0000.parquet",
        ".cache/x",
        ".versions/00000001/meta/info.json",
        "data/.file.new-1",
        "data/.tmp/x.parquet",
        "meta/.lock",
        ".git/config",
        "images/observation/frame.png",
        "wandb.log",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("secret")
    (folder / "LICENSE").write_text("MIT")
    done = demoreel.push(folder, REPO)
    sent = set(done.sent)
    assert not {name for name in sent if any(p.startswith(".") for p in name.split("/"))}
    assert sent == {n for n in sent if n.startswith(("meta/", "data/", "videos/"))} | {
        "LICENSE",
        "README.md",
        IMAGE,
    }
    assert all(hub.read(REPO, name) != b"secret" for name in hub.files(REPO))


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("name", ["meta/notes", "README.md", "LICENSE", "data/more", "videos/x"])
def test_links_out_of_the_dataset_are_refused(hub, folder, tmp_path, name, dry_run):
    (tmp_path / "id_rsa").write_text("secret")
    (folder / name).symlink_to(tmp_path / "id_rsa")
    with pytest.raises(ArgumentError, match="leads out") as caught:
        demoreel.push(folder, REPO, dry_run=dry_run)
    assert caught.value.where == {"path": folder / name, "leads_to": tmp_path / "id_rsa"}
    assert not hub.exists(REPO)


def test_a_card_that_is_a_pipe_is_passed_over(hub, folder):
    os.mkfifo(folder / "README.md")
    assert "README.md" in demoreel.push(folder, REPO).sent


def test_a_dry_run_changes_nothing(hub, folder):
    plan = demoreel.push(folder, REPO, dry_run=True)
    assert plan.dry_run
    assert plan.created
    assert plan.tag == "v3.0"
    assert names_of(folder) | {"README.md", IMAGE} == set(plan.sent)
    assert plan.bytes_sent > 0
    assert plan.commit is None
    assert not hub.exists(REPO)
    assert {entry.method for entry in hub.log} == {"GET"}
    done = demoreel.push(folder, REPO)
    assert done.sent == plan.sent


def test_what_is_asked_for_the_repository(hub, folder):
    demoreel.push(folder, REPO, private=True)
    with pytest.raises(DatasetNotFoundError):
        Hub(hub.stranger_token).refs(REPO)


def test_a_branch_begins_at_main_and_leaves_the_tag(hub, folder):
    first = demoreel.push(folder, REPO)
    hub.commit(REPO, {"notes.txt": b"1"})
    (folder / "meta" / "more.txt").write_text("1")
    done = demoreel.push(folder, REPO, branch="more")
    assert done.tag is None
    refs = hub.refs(REPO)
    assert refs["tags"] == {"v3.0": first.commit}
    assert refs["branches"]["more"] == done.commit != refs["branches"]["main"]
    assert "notes.txt" in hub.files(REPO, "more")
    again = demoreel.push(folder, REPO, branch="more", tag_version=True)
    assert again.commit == done.commit
    assert again.tag_moved
    assert hub.refs(REPO)["tags"] == {"v3.0": done.commit}


def test_videos_may_stay_at_home(hub, folder):
    done = demoreel.push(folder, REPO, push_videos=False)
    assert not any(name.startswith("videos/") for name in done.sent)
    demoreel.push(folder, REPO)
    again = demoreel.push(folder, REPO, push_videos=False, allow_patterns="meta/")
    assert not again.sent
    assert not again.deleted
    assert any(name.startswith("videos/") for name in hub.files(REPO))


@pytest.mark.parametrize(
    "repo_id",
    ["my_task", "me/my/task", "", "me/", "/x", "me/..", "me/a b", "me/x.git", 3, "../x/y"],
)
def test_names_are_checked_before_anything(hub, folder, repo_id):
    with pytest.raises(ArgumentError, match="name of a repository"):
        demoreel.push(folder, repo_id)
    assert hub.log == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"branch": "a b"}, "branch"),
        ({"branch": "../x"}, "branch"),
        ({"tags": [3]}, "tags="),
        ({"tags": [" "]}, "tags="),
    ],
)
def test_options_are_checked_before_anything(hub, folder, options, said):
    with pytest.raises(ArgumentError, match=said):
        demoreel.push(folder, REPO, **options)
    assert hub.log == []


def test_a_readme_that_cannot_be_read_leaves_no_repository(hub, folder):
    (folder / "README.md").write_text("---\na: [\n---\n")
    with pytest.raises(ArgumentError, match="YAML"):
        demoreel.push(folder, REPO)
    assert not hub.exists(REPO)


def test_the_folders_readme_is_the_card_until_the_hubs_is_edited(hub, folder):
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# Ours\n\nFirst.\n")
    demoreel.push(folder, REPO)
    card = hub.read(REPO, "README.md").decode()
    assert "license: mit" in card
    assert "First." in card
    (folder / "README.md").write_text("# Ours\n\nSecond.\n")
    done = demoreel.push(folder, REPO)
    assert set(done.sent) == {"README.md"}
    assert "Second." in hub.read(REPO, "README.md").decode()
    hub.commit(REPO, {"README.md": card.replace("First.", "Third.").encode()})
    (folder / "README.md").write_text("# Ours\n\nFourth.\n")
    done = demoreel.push(folder, REPO)
    assert "Third." in hub.read(REPO, "README.md").decode()
    assert "is kept" in done.notes[0]


def test_no_dataset(hub, tmp_path):
    with pytest.raises(DatasetNotFoundError):
        demoreel.push(tmp_path / "nothing", REPO)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetNotFoundError):
        demoreel.push(tmp_path / "empty", REPO)
    with pytest.raises(ArgumentError, match="on this machine"):
        demoreel.push("s3://bucket/ds", REPO)
    assert hub.log == []


def test_some_episodes_are_not_a_dataset(hub, folder):
    with pytest.raises(ArgumentError, match="as a whole"):
        demoreel.open(folder, episodes=[0]).push_to_hub(REPO)
    assert hub.log == []


def test_without_a_token(hub, folder, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(folder / "none"))
    with pytest.raises(AccessError, match="hf auth login"):
        demoreel.push(folder, REPO)
    assert demoreel.push(folder, REPO, dry_run=True).created
    assert not hub.exists(REPO)


@pytest.mark.parametrize("which", ["read", "stranger", "wrong"])
def test_a_token_that_may_not_write(hub, folder, which):
    token = {"read": hub.read_token, "stranger": hub.stranger_token, "wrong": "hf_wrong"}[which]
    with pytest.raises(AccessError) as caught:
        demoreel.push(folder, REPO, token=token)
    assert token not in str(caught.value)
    assert caught.value.__cause__ is None
    assert not hub.exists(REPO)


def test_offline(hub, folder, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(StoreError, match="HF_HUB_OFFLINE"):
        demoreel.push(folder, REPO)
    assert hub.log == []


def test_while_it_is_recorded(hub, tmp_path):
    folder = make_dataset(tmp_path / "blind", episodes=1, cameras=0)
    with demoreel.resume(folder, fps=30), pytest.raises(DatasetBusyError):
        demoreel.push(folder, REPO)
    assert not hub.exists(REPO)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_commit_that_a_kill_left_must_be_finished_first(hub, folder, dry_run):
    from demoreel.storage.commit.journal import transaction
    from demoreel.storage.commit.writer_lock import WriterLock

    with WriterLock(folder), transaction(folder) as change:
        change.new("meta/extra.txt").write_text("committed")
        change.record()
    with pytest.raises(UnfinishedError, match="demoreel finish"):
        demoreel.push(folder, REPO, dry_run=dry_run)
    demoreel.finish(folder)
    done = demoreel.push(folder, REPO)
    assert "meta/extra.txt" in done.sent
    assert hub.read(REPO, "meta/extra.txt") == b"committed"


@pytest.mark.parametrize("dry_run", [True, False])
def test_nothing_is_pushed_while_saved_episodes_wait(hub, made, tmp_path, dry_run):
    root = tmp_path / "ds"
    shutil.copytree(made["v3.0"], root)
    leave_persisted(root)
    with pytest.raises(UnfinishedError, match="demoreel finish"):
        demoreel.push(root, REPO, dry_run=dry_run)


def test_on_a_disk_that_cannot_be_written(hub, made, mounted):
    disk = mounted("8m")
    shutil.copytree(made["v2.1"], disk / "ds")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert demoreel.push(disk / "ds", REPO).tag == "v2.1"
    assert not (disk / "ds" / ".demoreel").exists()


def test_there_and_back_again(hub, folder, tmp_path, monkeypatch):
    demoreel.push(folder, REPO)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    there = tmp_path / "there"
    demoreel.pull(REPO, there)
    again = demoreel.push(there, REPO)
    assert not again.sent
    assert not again.deleted
    (there / "README.md").write_text((there / "README.md").read_text() + "\nBy hand.\n")
    cut = tmp_path / "cut"
    demoreel.cut(there).delete([0]).render(cut)
    for name in ("meta", "data", "videos"):  # edited in the pulled folder: its own change
        shutil.rmtree(there / name)
        (cut / name).rename(there / name)
    done = demoreel.push(there, REPO)
    assert done.episodes == 1
    assert "By hand." in hub.read(REPO, "README.md").decode()


def test_progress_goes_to_one(hub, folder):
    shares = []
    demoreel.push(folder, REPO, report=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert len(shares) > 1


def test_check_sums_are_remembered_while_files_do_not_change(hub, folder, tmp_path):
    old = os.stat(folder / "meta/info.json").st_mtime_ns - 10 * 10**9
    for path in folder.rglob("*.parquet"):
        os.utime(path, ns=(old, old))
    demoreel.push(folder, REPO)
    path = folder / "data" / "chunk-000" / "file-000.parquet"
    status = path.stat()
    changed = bytearray(path.read_bytes())
    changed[len(changed) // 2] ^= 1
    path.write_bytes(changed)
    os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))
    done = demoreel.push(folder, REPO, force=True)
    assert path.relative_to(folder).as_posix() in done.sent
    assert hub.read(REPO, "data/chunk-000/file-000.parquet") == bytes(changed)
    shutil.rmtree(tmp_path / "cache")  # nothing of it is needed
    assert not demoreel.push(folder, REPO).sent
