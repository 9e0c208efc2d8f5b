"""A stranger's Lance table that points at files of the user, through every way in."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import lance
import pytest
from torch.utils.data import DataLoader

import demoreel
from demoreel.cli.app import run
from demoreel.errors import ArgumentError, TableError, UnsafePathError
from demoreel.layouts.lance.calls import import_lance
from demoreel.testing import make_dataset
from demoreel.torch import LeRobotDataset, LeRobotLanceVideoDataset

CAMERA = "observation.images.front"


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A dataset of the user, with private videos."""
    folder = tmp_path_factory.mktemp("mine") / "private"
    return make_dataset(folder, episodes=[4, 3], cameras={CAMERA: (32, 32)}, codec="h264")


@pytest.fixture(scope="module")
def linked(source, tmp_path_factory) -> Path:
    """A dataset that this user has linked to it."""
    out = tmp_path_factory.mktemp("linked") / "linked"
    demoreel.convert(source, out, to="lance-video", link=True, table_name="t")
    return out


@pytest.fixture
def stranger(linked, tmp_path) -> Path:
    """The same tables, as a stranger would have made them: nothing is noted of them here."""
    return shutil.copytree(linked, tmp_path / "stranger")


def read(path, **options):
    return demoreel.open(path, **options)[0][CAMERA]


WAYS = {
    "open": read,
    "batch": lambda path: demoreel.open(path).batch([0, 6]),
    "LeRobotDataset": lambda path: LeRobotDataset("a/b", root=path)[0],
    "Lance class": lambda path: LeRobotLanceVideoDataset(root=path)[0],
    "forked worker": lambda path: list(DataLoader(LeRobotDataset("a/b", path), num_workers=1)),
    "convert": lambda path: demoreel.convert(path, path.parent / "out", to="v3.0"),
    "convert to frames": lambda p: demoreel.convert(p, p.parent / "out", to="lance-frames"),
    "link": lambda p: demoreel.convert(p, p.parent / "out", to="lance-native", link=True),
    "cut": lambda path: demoreel.cut(path).keep([1]).render(path.parent / "out"),
    "repair": lambda path: demoreel.repair(path, path.parent / "out"),
    "diff": lambda path: demoreel.diff(path, path, pixels="all"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_strangers_table_reads_no_file_of_the_user(stranger, tmp_path, way):
    with pytest.raises(UnsafePathError, match=r"(?s)private.*allow"):
        WAYS[way](stranger)
    assert [path.name for path in tmp_path.iterdir()] == ["stranger"]


@pytest.mark.parametrize("verb", ["frame", "bench"])
def test_commands_refuse_and_say_how_to_allow(stranger, source, tmp_path, verb, capfd):
    more = {"frame": ["0", "-o", str(tmp_path / "x.png")], "bench": ["--seconds", "0.1"]}[verb]
    assert run([verb, str(stranger), *more]) == 1
    assert f"--allow-external {source}" in capfd.readouterr().err
    assert not (tmp_path / "x.png").exists()
    assert run([verb, str(stranger), *more, "--allow-external", str(source)]) == 0
    assert run([verb, str(stranger), *more, *["--overwrite"][: verb == "frame"]]) == 1  # once only


def test_check_and_info_list_what_is_named(stranger, source, capfd):
    assert run(["info", str(stranger), "--json"]) == 0
    told = json.loads(capfd.readouterr().out)["external"]
    assert told["files"] == told["refused"] == 1
    assert told["prefixes"][0].startswith(str(source))
    assert run(["info", str(stranger)]) == 0
    assert "--allow-external" in capfd.readouterr().out
    report = demoreel.check(stranger)
    assert [f.code for f in report.findings if f.severity == "error"] == ["lance-external-refused"]
    allowed = demoreel.check(stranger, allow_external=source)
    assert [f.code for f in allowed.findings if f.code.startswith("lance")] == ["lance-external"]


def test_what_does_not_read_videos_goes_on(stranger, capfd):
    for verb in (["episodes"], ["stats"], ["versions"]):
        assert run([*verb[:1], str(stranger), "--json"]) == 0
    capfd.readouterr()


@pytest.mark.parametrize("way", [[], {"allow_external": ["{source}"]}], ids=["linked", "allowed"])
def test_what_the_user_has_linked_or_allowed_is_read(linked, stranger, source, way):
    expected = read(source)
    if not way:
        assert (read(linked) == expected).all()
        return
    assert (read(stranger, allow_external=[source]) == expected).all()
    item = LeRobotLanceVideoDataset(root=stranger, allow_external=source)[0]
    loaded = list(DataLoader(LeRobotDataset("a/b", stranger, allow_external=source), num_workers=1))
    assert (loaded[0][CAMERA][0] == item[CAMERA]).all()
    out = stranger.parent
    demoreel.convert(stranger, out / "v3", to="v3.0", allow_external=source)
    demoreel.cut(stranger, allow_external=source).keep([0, 1]).render(out / "cut")
    assert not demoreel.diff(out / "v3", source, pixels="all").pictures
    assert len(demoreel.open(out / "cut")) == 7


def test_another_table_in_the_place_of_a_linked_one_is_a_strangers(source, tmp_path):
    out = tmp_path / "out"
    demoreel.convert(source, out, to="lance-video", link=True, verify="none", table_name="t")
    read(out)
    again = tmp_path / "again"
    demoreel.convert(source, again, to="lance-video", link=True, verify="none", table_name="t")
    shutil.rmtree(out)
    shutil.copytree(again, out)
    with pytest.raises(UnsafePathError):
        read(out)


def point_at(root: Path, uri: str) -> None:
    """Let a table of videos point at something else."""
    table = import_lance().dataset(str(root / "t_videos.lance"))
    rows = table.to_table(columns=[n for n in table.schema.names if n != "video_bytes"])
    blobs = lance.blob_array([lance.Blob.from_uri(uri)] * len(rows))
    lance.write_dataset(
        rows.append_column(lance.blob_field("video_bytes"), blobs),
        str(root / "t_videos.lance"),
        mode="overwrite",
        data_storage_version="2.2",
        allow_external_blob_outside_bases=True,
    )


@pytest.mark.parametrize(
    "uri",
    ["file:///etc/passwd", "s3://bucket/x.mp4", "gs://bucket/x", "hf://datasets/me/private/x.mp4"],
)
def test_no_store_is_asked(stranger, uri, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # a request would fail otherwise
    try:
        point_at(stranger, uri)
    except (OSError, ValueError):
        pytest.skip("this Lance does not write such a table")
    with pytest.raises(UnsafePathError, match="outside the dataset"):
        read(stranger)
    with pytest.raises(UnsafePathError, match="outside the dataset"):
        demoreel.open(stranger).reader.blob(CAMERA, 0, 0)


@pytest.mark.parametrize("table", ["t.lance", "t_videos.lance"])
def test_data_files_in_another_dataset_are_refused(linked, source, tmp_path, table):
    """A shallow clone holds no rows: its manifest says where they lie."""
    root = shutil.copytree(linked, tmp_path / "clone")
    shutil.rmtree(root / table)
    mine = import_lance().dataset(str(linked / table))
    mine.shallow_clone(str(root / table), mine.version)
    for way in (
        lambda: demoreel.open(root)[0],
        lambda: demoreel.convert(root, tmp_path / "out", to="v3.0"),
        lambda: (
            demoreel.open(root).sql("select count(*) from frames")
            if table == "t.lance"
            else read(root)
        ),
        lambda: demoreel.push(root, "me/x", dry_run=True),
        lambda: demoreel.tag(root, "mine") if table == "t.lance" else read(root),
    ):
        with pytest.raises(UnsafePathError, match="outside the dataset"):
            way()
    assert "lance-external-refused" in {f.code for f in demoreel.check(root).findings}
    assert not (tmp_path / "out").exists()
    assert read(root, allow_external=[linked, source]).shape


@pytest.mark.parametrize("name", ["../../victim.lance", "/etc/victim.lance", "x/y.lance", ".."])
def test_data_files_have_plain_names(linked, tmp_path, name):
    root = shutil.copytree(linked, tmp_path / "paths")
    table = root / "t.lance"
    opened = import_lance().dataset(str(table))
    parts = [fragment.metadata.to_json() for fragment in opened.get_fragments()]
    for part in parts:
        part["files"][0]["path"] = name
    from lance.fragment import FragmentMetadata

    made = [FragmentMetadata.from_json(json.dumps(part)) for part in parts]
    lance.LanceDataset.commit(str(table), lance.LanceOperation.Overwrite(opened.schema, made))
    with pytest.raises(TableError, match="data file is called"):
        demoreel.open(root, cameras=[])[0]
    with pytest.raises((TableError, ArgumentError), match="data file is called"):
        demoreel.resume(root)
