"""Commands on datasets that are in an object store: looked at there, fetched, or sent there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import uuid
from pathlib import Path

import pytest

import demoreel
from demoreel.cli.options import name_of_place, place
from demoreel.errors import ArgumentError, DatasetNotFoundError
from demoreel.read import to_ray
from demoreel.storage.remote.fetch import working_home
from support.proxy.faults import Stall, Status

from ..conftest import assert_same_batch
from .conftest import COMMAND, environment


@pytest.fixture
def target(s3, proxy) -> str:
    """A URI where nothing is."""
    return s3.uri(f"made/{uuid.uuid4().hex[:8]}")


def asked_for(proxy) -> set[str]:
    """Return the files that were read, by what comes behind the layout's name."""
    paths = {request.path.split("?")[0] for request in proxy.log if request.method == "GET"}
    return {path.split("/v3.0/", 1)[1] for path in paths if "/v3.0/" in path}


def answer(done) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_places():
    assert place("s3://bucket//a/b/") == "s3://bucket//a/b"
    assert place("./a//b/") == "a/b"
    assert place("file:///data/my%20task") == "/data/my task"
    assert name_of_place("s3://bucket/a/b") == "b"
    assert name_of_place("a/b") == "b"


# Looked at where they are


@pytest.mark.parametrize("layout", ["v2.1", "v3.0", "lance-video"])
def test_looking(layout, run, uploaded, local_datasets, proxy, tmp_path):
    uri, local = uploaded(layout), local_datasets(layout)
    remote, near = (answer(run("info", where, "--json")) for where in (uri, local))
    assert remote["path"] == uri
    assert remote["disk"] == near["disk"]
    assert remote["disk_is_whole"]
    assert {**remote, "path": 0} == {**near, "path": 0}
    assert run("info", uri).stdout.splitlines()[:2] == [
        f"{layout}: LeRobot {layout}",
        f"  path      {uri}",
    ]
    remote, near = (answer(run("episodes", where, "--json")) for where in (uri, local))
    assert remote["path"] == uri
    assert remote["episodes"] == near["episodes"]
    remote, near = (answer(run("stats", where, "--json")) for where in (uri, local))
    assert remote["stats"] == near["stats"]
    camera = "observation.images.cam0"
    for where, name in ((uri, "remote.png"), (local, "near.png")):
        assert run("frame", where, 17, "-c", camera, "-o", tmp_path / name).returncode == 0
    assert (tmp_path / "remote.png").read_bytes() == (tmp_path / "near.png").read_bytes()
    assert not working_home().exists()


@pytest.mark.parametrize("layout", ["v2.1", "v3.0", "lance-video"])
def test_sql(layout, run, uploaded, local_datasets):
    uri = uploaded(layout)
    for query in (
        "select episode_index, count(*), sum(action[1]) from frames group by 1 order by 1",
        "select * from videos order by all",
    ):
        remote, near = (
            answer(run("sql", where, query, "--json")) for where in (uri, local_datasets(layout))
        )
        assert remote == near
    chosen = demoreel.open(uri, filter="timestamp > 0.55")
    assert chosen.episodes.episode_index.tolist() == [3]


def test_bench(run, uploaded):
    uri = uploaded("v3.0")
    found = answer(run("bench", uri, "--seconds", "0.1", "--batch-size", "2", "--json"))
    assert found["path"] == uri
    assert found["speeds"][0]["samples_per_s"] > 0


def test_what_needs_files_says_so(run, uploaded, local_datasets, target):
    uri = uploaded("lance-video")
    local = local_datasets("lance-video")
    for command in (
        ("versions", uri),
        ("tag", uri, "x"),
        ("checkout", uri, "1"),
        ("stats", uri, "--recompute"),
        ("cut", "delete", uri, "--in-place", "--episodes", "1"),
        ("cut", "commit", target),
        ("cut", "delete", uri, "out", "--episodes", "1", "--shard", "0/2"),
        ("cut", "delete", local, target, "--episodes", "1", "--shard", "0/2"),
        ("convert", uri, "--to", "v3.0", "--in-place"),
        ("convert", uploaded("v3.0"), "out", "--to", "lance-video", "--link"),
        ("repair", uri, "--in-place"),
        ("convert", local, "hf://datasets/me/x", "--to", "v3.0"),
        ("info", "ftp://somewhere/x"),
        ("convert", uri, f"{uri}/inside", "--to", "v3.0"),
        ("cut", "delete", uri, uri, "--episodes", "1", "--overwrite"),
        ("repair", uri, uri.rsplit("/", 1)[0]),
        ("cut", "delete", local, "out", "--episodes", "1", "--overwrite"),
    ):
        done = run(*command)
        assert (done.returncode, done.stdout) == (2, ""), command
        assert "next:" in done.stderr, command


# Fetched


def test_check(run, s3, uploaded, local_datasets):
    uri = uploaded("v3.0")
    key = uri.removeprefix(f"s3://{s3.bucket}/")
    video = next(k for k in s3.list(key) if k.endswith(".mp4"))
    s3.delete(video)
    done = run("check", uri, local_datasets("v3.0"), "--json")
    assert done.returncode == 2
    report = json.loads(done.stdout)
    assert report["datasets"] == [uri, str(local_datasets("v3.0"))]
    assert uri in report["looked_at"]
    (missing,) = (f for f in report["findings"] if f["code"] == "video-missing")
    assert missing["where"]["dataset"] == uri
    assert str(working_home()) not in done.stdout
    assert f"repair {uri}" in done.stdout
    assert list(working_home().iterdir()) == []
    assert run("check", f"{uri}-not").returncode == 2


def test_check_a_lance_dataset(uploaded):
    assert demoreel.check(uploaded("lance-native")).is_sound


def test_a_cut_fetches_what_its_clips_need(run, uploaded, local_datasets, proxy, tmp_path):
    uri = uploaded("v3.0")
    local = demoreel.open(local_datasets("v3.0"))
    episode = local.episodes[2]
    proxy.reset()
    done = run("cut", "select", uri, tmp_path / "out", "--episodes", 2)
    assert done.returncode == 0, done.stderr
    needed = {episode.data_file, *episode.video_files.values()}
    read = {name for name in asked_for(proxy) if not name.startswith("meta/")}
    assert read == needed
    assert len(list(local_datasets("v3.0").glob("videos/*/*/*.mp4"))) > 2
    batch = demoreel.open(tmp_path / "out")[:]
    for camera in local.cameras:
        assert (batch[camera] == local[episode.start : episode.stop][camera]).all()
    assert list(working_home().iterdir()) == []


def test_cut_lists_name_the_uri(run, uploaded, tmp_path):
    uri = uploaded("v3.0")
    args = ("--save", tmp_path / "list.json", "--dry-run", "--json")
    plan = answer(run("cut", "trim", uri, tmp_path / "out", "-e", 1, "--start", 3, *args))
    assert plan["sources"] == [uri]
    assert json.loads((tmp_path / "list.json").read_text())["sources"][0]["path"] == uri
    done = answer(run("cut", "apply", tmp_path / "list.json", tmp_path / "out", "--json"))
    assert done["frames"] == plan["frames"]


def test_a_source_that_changes_is_refused(run, s3, uploaded, tmp_path):
    uri = uploaded("v3.0")
    begun = demoreel.cut(uri).delete(0)
    key = uri.removeprefix(f"s3://{s3.bucket}/")
    s3.put(f"{key}/meta/stats.json", s3.get(f"{key}/meta/stats.json") + b"\n")
    with pytest.raises(demoreel.errors.ArgumentError, match="changed") as raised:
        begun.render(tmp_path / "out")
    assert raised.value.where["dataset"] == uri
    assert not (tmp_path / "out").exists()


def test_diff(run, s3, uploaded, local_datasets, tmp_path):
    uri = uploaded("lance-frames")
    same = answer(run("diff", local_datasets("lance-frames"), uri, "--json"))
    assert same["b"] == uri
    found = demoreel.diff(uri, local_datasets("v3.0"), pixels="none")
    assert found.a == uri
    assert found.columns == ()


# Sent


def test_cut_to_a_store(run, uploaded, local_datasets, target, tmp_path):
    source = local_datasets("v3.0")
    common = ("--episodes", "1", "--json")
    plan = answer(run("cut", "delete", source, target, "--dry-run", *common))
    assert plan["path"] == target
    with pytest.raises(DatasetNotFoundError):
        demoreel.open(target)
    done = answer(run("cut", "delete", uploaded("v3.0"), target, *common))
    assert done["path"] == target
    assert done["committed"]
    assert run("cut", "delete", source, tmp_path / "out", "--episodes", "1").returncode == 0
    assert_same_batch(demoreel.open(target)[:], demoreel.open(tmp_path / "out")[:])
    again = run("cut", "delete", source, target, *common)
    assert again.returncode == 2
    assert json.loads(again.stderr)["error"] == "TargetExistsError"
    again = run("cut", "delete", source, target, "--dry-run", *common)
    assert again.returncode == 2
    done = answer(run("cut", "delete", source, target, "--overwrite", "--episodes", "0", "--json"))
    assert demoreel.open(target).episodes.length.tolist() == [9, 15, 20]
    assert list(working_home().iterdir()) == []


def test_split_to_a_store(run, local_datasets, target):
    parts = ("train=0:3", "val=3", "--layout", "lance-video")
    done = run("cut", "split", local_datasets("v3.0"), target, *parts, "--quiet")
    assert done.returncode == 0, done.stderr
    assert demoreel.open(f"{target}/train").episodes.length.tolist() == [12, 9, 15]
    assert demoreel.open(f"{target}/val").layout == "lance-video"
    again = run("cut", "split", local_datasets("v3.0"), target, "new=0:3", "val=3")
    assert again.returncode == 2
    with pytest.raises(DatasetNotFoundError):  # refused before the first part was written
        demoreel.open(f"{target}/new")


@pytest.mark.parametrize("to", ["lance-video", "v2.1"])
def test_convert_from_store_to_store(to, run, uploaded, local_datasets, target):
    uri = uploaded("v3.0")
    options = ("--to", to, "--exact") if to == "v2.1" else ("--to", to)
    plan = answer(run("convert", uri, target, *options, "--dry-run", "--json"))
    done = answer(run("convert", uri, target, *options, "--json"))
    assert (done["source"], done["target"]) == (plan["source"], plan["target"]) == (uri, target)
    assert done["verified"]
    made, source = demoreel.open(target), demoreel.open(local_datasets("v3.0"))
    assert made.layout == to
    batch, before = made[:], source[:]
    assert (batch["action"] == before["action"]).all()
    assert list(working_home().iterdir()) == []


def test_repair_to_a_store(run, uploaded, target):
    uri = uploaded("v3.0")
    done = answer(run("repair", uri, target, "--json"))
    assert (done["source"], done["target"]) == (uri, target)
    assert done["before"]["datasets"] == [uri]
    assert done["after"]["datasets"] == [target]
    assert str(working_home()) not in json.dumps(done)
    assert len(demoreel.open(target)) == 56


def test_pull_from_a_store(run, uploaded, local_datasets, proxy, tmp_path):
    uri, out = uploaded("v3.0"), tmp_path / "out"
    done = answer(run("pull", uri, out, "--json"))
    assert done["repo_id"] == uri
    assert_same_batch(demoreel.open(out)[:], demoreel.open(local_datasets("v3.0"))[:])
    assert answer(run("pull", uri, out, "--json"))["was_up_to_date"]
    assert run("pull", uploaded("v2.1"), out).returncode == 2
    plan = answer(run("pull", uri, tmp_path / "some", "-e", "1", "--dry-run", "--json"))
    assert plan["files"] < done["files"]
    assert run("pull", uri, tmp_path / "some", "-e", "1").returncode == 0
    assert demoreel.open(tmp_path / "some").episodes.length.tolist() == [9]
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


# Interrupted


def test_a_failed_upload_is_not_made_again(run, uploaded, proxy, target):
    uri = uploaded("v3.0")
    command = ("convert", uri, target, "--to", "lance-video")
    proxy.fail(1.0, Status(403), where=f"{target.rsplit('/', 1)[1]}/meta/")
    assert run(*command).returncode == 1
    proxy.clear()
    proxy.reset()
    done = answer(run(*command, "--json"))
    assert done["target"] == target
    assert asked_for(proxy) == set()  # neither fetched nor converted again
    assert demoreel.open(target).layout == "lance-video"
    assert list(working_home().iterdir()) == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.soak
def test_stopped_while_it_sends(how, run, local_datasets, s3, proxy, target, tmp_path):
    """One object waits for its answer; there is no dataset, and the others are not sent again."""
    source = local_datasets("v3.0")
    demoreel.cut(source).delete(0).render(tmp_path / "same")
    same = [path.relative_to(tmp_path / "same") for path in tmp_path.rglob("*") if path.is_file()]
    others = {path.as_posix() for path in same} - {"meta/stats.json", "meta/info.json"}
    proxy.fail_next(1, Stall(60), where=f"{target.rsplit('/', 1)[1]}/meta/stats.json")
    command = ("cut", "delete", source, target, "--episodes", 0)
    process = subprocess.Popen([*COMMAND, *map(str, command)], env=environment(), stderr=-1)
    while not others <= _sent(s3, target) and process.poll() is None:
        pass
    process.send_signal(how)
    process.communicate(timeout=60)
    assert process.returncode == (130 if how == signal.SIGINT else -how)
    with pytest.raises(DatasetNotFoundError):
        demoreel.open(target)
    proxy.clear()
    proxy.reset()
    assert run(*command).returncode == 0
    sent = [request.path for request in proxy.log if request.method == "PUT"]
    assert len(sent) <= 2, sent
    assert demoreel.open(target).episodes.length.tolist() == [9, 15, 20]


def _sent(s3, target: str) -> set[str]:
    prefix = target.removeprefix(f"s3://{s3.bucket}/")
    return {key.removeprefix(f"{prefix}/") for key in s3.list(prefix)}


# Elsewhere


def test_ray_workers_open_the_uri(uploaded, local_datasets, s3, monkeypatch):
    uri, secret = uploaded("v3.0"), s3.environment["AWS_SECRET_ACCESS_KEY"]
    options = {**s3.storage_options, "aws_endpoint": os.environ["AWS_ENDPOINT_URL"]}
    with pytest.raises(ArgumentError, match="do not travel"):
        to_ray._state(demoreel.open(uri, storage_options=options), ["observation.images.cam0"])
    dataset = demoreel.open(uri, episodes=[1])
    state = to_ray._state(dataset, ["observation.images.cam0"])
    assert secret.encode() not in state
    assert uri.encode() in state
    shutil.rmtree(dataset.root)  # another machine has no copy of the metadata
    order = to_ray._Order(state, ("action",), ("observation.images.cam0",), encoded=False)
    row = to_ray._episode({"id": 0}, order)
    local = demoreel.open(local_datasets("v3.0"), episodes=[1])[:]
    assert (row["action"] == local["action"]).all()
    assert (row["observation.images.cam0"] == local["observation.images.cam0"]).all()


def test_staging(run, uploaded, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("DEMOREEL_STAGING", "to be put back")
    staging = tmp_path / "staging"
    assert run("check", uploaded("v2.1"), "--staging", staging).returncode == 0
    assert list(staging.iterdir()) == []
