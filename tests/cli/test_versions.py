"""``demoreel versions``, ``tag``, ``checkout`` and ``cut --in-place``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import demoreel
from demoreel.testing import make_dataset


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cli_versions")
    source = make_dataset(folder / "v3", episodes=[5, 7, 3], tasks=("one", "two"))
    demoreel.cut(source).render(folder / "lance", layout="lance-video")
    return folder


@pytest.fixture
def dataset(made, tmp_path) -> Path:
    return shutil.copytree(made / "lance", tmp_path / "lance")


def lengths(path: Path) -> list[int]:
    return demoreel.open(path).episodes.length.tolist()


@pytest.mark.parametrize(
    ("verb", "arguments", "left"),
    [
        ("delete", ("-e", "1"), [5, 3]),
        ("select", ("--where", "length > 4"), [5, 7]),
        ("trim", ("--episode", "1", "--start", "2"), [5, 5, 3]),
        ("tasks", ("--set", "other"), [5, 7, 3]),
        ("features", ("--remove", "action"), [5, 7, 3]),
    ],
)
def test_in_place(run, dataset, verb, arguments, left):
    planned = run("cut", verb, dataset, "--in-place", "--dry-run", "--json", *arguments)
    assert planned.returncode == 0, planned.stderr
    plan = json.loads(planned.stdout)
    assert (plan["episodes"], plan["videos"]) == (len(left), 0)
    assert [file["path"] for file in plan["files"]] == ["lance.lance"]
    assert lengths(dataset) == [5, 7, 3]
    done = run("cut", verb, dataset, "--in-place", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["version"] == demoreel.versions(dataset)[-1].number
    assert lengths(dataset) == left


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("OUT", "--in-place"), "nothing is written elsewhere"),
        ((), "Where is the result"),
        (("--in-place", "--layout", "lance-native"), "no layout"),
        (("--in-place", "--shard", "0/2"), "shard"),
        (("--in-place", "--exact"), "codec"),
    ],
)
def test_what_does_not_go_together(run, dataset, tmp_path, arguments, message):
    given = [tmp_path / "out" if word == "OUT" else word for word in arguments]
    done = run("cut", "delete", dataset, *given, "-e", "0")
    assert done.returncode == 2
    assert message in done.stderr
    assert lengths(dataset) == [5, 7, 3]
    assert not (tmp_path / "out").exists()


def test_merge_is_not_in_place(run, dataset, made, tmp_path):
    done = run("cut", "merge", dataset, made / "v3", "-o", tmp_path / "out", "--in-place")
    assert done.returncode == 2
    assert "merge" in done.stderr


def test_cut_into_lance(run, made, tmp_path):
    options = ("--layout", "lance-native", "--episodes", "0")
    planned = run("cut", "delete", made / "v3", tmp_path / "out", *options, "--dry-run", "--json")
    files = [file["path"] for file in json.loads(planned.stdout)["files"]]
    assert files == ["frames.lance", "videos.lance"]
    assert run("cut", "delete", made / "v3", tmp_path / "out", *options).returncode == 0
    assert demoreel.open(tmp_path / "out").layout == "lance-native"
    assert lengths(tmp_path / "out") == [7, 3]


def test_there_and_back(run, dataset):
    assert run("tag", dataset, "before").stdout == "version 3 is called before\n"
    run("cut", "delete", dataset, "--in-place", "-e", "0")
    shown = run("versions", dataset).stdout.splitlines()
    assert shown[0].split() == ["version", "time", "episodes", "frames", "tags", "done"]
    assert shown[3].split()[0] == "3"
    assert "before" in shown[3]
    assert shown[-1].endswith("deleted 1 episode")
    would = run("checkout", dataset, "before", "--dry-run").stdout
    assert "would be what it was in version 3: 3 episodes, 15 frames" in would
    assert lengths(dataset) == [7, 3]
    done = json.loads(run("checkout", dataset, "before", "--json").stdout)
    assert (done["version"], done["episodes"], done["dry_run"]) == (3, 3, False)
    assert lengths(dataset) == [5, 7, 3]
    listed = json.loads(run("versions", dataset, "--json").stdout)["versions"]
    assert listed[-1]["done"] == "went back to version 3"
    assert listed[2]["tags"] == ["before"]
    assert run("checkout", dataset, "2", "--quiet").stdout == ""
    gone = json.loads(run("tag", dataset, "before", "--delete", "--json").stdout)
    assert gone["deleted"] is True


def test_faults_of_the_caller(run, dataset, made):
    for arguments in (
        ("checkout", dataset, "99"),
        ("checkout", dataset, "unknown"),
        ("tag", dataset, "a b"),
        ("tag", dataset, "late", "--version", "99"),
        ("versions", made / "v3"),
    ):
        done = run(*arguments)
        assert done.returncode == 2, arguments
        assert done.stderr.startswith("error: ")
