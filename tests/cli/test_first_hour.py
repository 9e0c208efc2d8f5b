"""What a newcomer tries: every verb with a path that leads nowhere, and what the answers say."""

from __future__ import annotations

import json
import re
import shutil

import pytest

import demoreel
from demoreel.cli.app import in_command_words
from demoreel.errors import ArgumentError, TargetExistsError

PLACE = "PLACE"
VERBS = {
    "info": ["info", PLACE],
    "episodes": ["episodes", PLACE],
    "frame": ["frame", PLACE, "0", "-o", "x.png"],
    "bench": ["bench", PLACE],
    "sql": ["sql", PLACE, "select 1"],
    "stats": ["stats", PLACE],
    "recompute": ["stats", PLACE, "--recompute"],
    "convert": ["convert", PLACE, "out", "--to", "v2.1"],
    "diff": ["diff", PLACE, PLACE],
    "check": ["check", PLACE],
    "repair": ["repair", PLACE, "out"],
    "push": ["push", PLACE, "me/x", "--dry-run"],
    "finish": ["finish", PLACE],
    "versions": ["versions", PLACE],
    "tag": ["tag", PLACE, "name"],
    "checkout": ["checkout", PLACE, "1"],
    "clean": ["clean", PLACE],
    "delete": ["cut", "delete", PLACE, "out", "-e", "0"],
    "merge": ["cut", "merge", PLACE, "-o", "out"],
    "resume": ["record", PLACE, "--resume"],
}


@pytest.fixture
def here(tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # `clean` also lists what killed processes, those of other tests among them, left in scratch.
    monkeypatch.setenv("DEMOREEL_SCRATCH", str(tmp_path_factory.mktemp("scratch")))
    (tmp_path / "file").write_text("text")
    return tmp_path


@pytest.mark.parametrize("place", ["nowhere", "me/nowhere", "file"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_path_that_leads_nowhere(run, here, verb, place):
    before = sorted(here.rglob("*"))
    done = run(*(place if text is PLACE else text for text in VERBS[verb]))
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert f": {place}\n" in done.stderr  # as it was given
    assert "\n  next: " in done.stderr
    assert not re.search(r"demoreel\.[a-z]", done.stderr)
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize("verb", VERBS)
def test_the_same_as_json(run, here, verb):
    done = run(*("nowhere" if text is PLACE else text for text in VERBS[verb]), "--json")
    assert done.stdout == ""
    told = json.loads(done.stderr)
    assert told["hint"]


ONLY_LOCAL = {
    "finish": ["finish", PLACE],
    "tag": ["tag", PLACE, "name"],
    "checkout": ["checkout", PLACE, "1"],
    "recompute": ["stats", PLACE, "--recompute"],
    "push": ["push", PLACE, "me/x"],
    "record": ["record", PLACE],
    "resume": ["record", PLACE, "--resume"],
    "in place": ["convert", PLACE, "--to", "v2.1", "--in-place"],
    "cut in place": ["cut", "delete", PLACE, "-e", "0", "--in-place"],
}


@pytest.mark.parametrize("verb", ONLY_LOCAL)
def test_uris_are_refused_where_only_a_folder_will_do(run, here, monkeypatch, verb):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    place = "s3://bucket/ds"
    done = run(*(place if text is PLACE else text for text in ONLY_LOCAL[verb]))
    assert done.returncode in (1, 2)
    assert place in done.stderr
    assert "\n  next: " in done.stderr
    assert [path.name for path in here.iterdir()] == ["file"]


def test_no_summary_is_cut_off(run):
    for arguments in ([], ["cut"]):
        assert "..." not in run(*arguments, "--help").stdout.split("Commands:")[1]


def test_in_place_is_offered_where_it_works(run, dataset, tmp_path):
    for verb in ("merge", "split", "apply"):
        assert "--in-place" not in run("cut", verb, "--help").stdout
    for verb in ("delete", "select", "trim", "tasks", "features"):
        assert "--in-place" in run("cut", verb, "--help").stdout
    assert "--in-place" not in run("cut", "delete", dataset, "-e", "0").stderr
    lance = tmp_path / "lance"
    demoreel.convert(dataset, lance, to="lance-video")
    assert "--in-place" in run("cut", "delete", lance, "-e", "0").stderr
    assert "--in-place" in run("convert", dataset, "--to", "v2.1").stderr
    assert "--in-place" not in run("convert", "s3://b/x", "--to", "v2.1").stderr


def test_paths_are_printed_as_they_were_given(run, dataset, here):
    shutil.copytree(dataset, here / "mine")
    told = run("convert", "mine", "new", "--to", "lance-video")
    assert told.stderr.startswith("wrote new as lance-video")
    in_place = run("convert", "mine", "--to", "v2.1", "--in-place")
    assert "kept at mine_old" in in_place.stderr
    assert run("clean", "new").stdout == "new: nothing to remove\n"
    assert str(here) not in told.stderr + in_place.stderr


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("pass overwrite (--overwrite) to replace it", "pass --overwrite to replace it"),
        ("leave it out: drop_audio=True (--drop-audio); or", "leave it out: --drop-audio; or"),
        ("ask for one: vcodec='h264' (--vcodec h264)", "ask for one: --vcodec h264"),
        ("append to a dataset with demoreel.resume", "append to a dataset with --resume"),
        ("demoreel.checkout() makes the older one", "demoreel checkout makes the older one"),
        ("version= and tag= both name one.", "--version and --tag both name one."),
        ("in the environment, or in storage_options=", "in the environment"),
        ("set AWS_REGION, or storage_options={'aws_region': ...}", "set AWS_REGION"),
        (
            "leave the episode out with episodes=, or",
            "leave the episode out with demoreel cut delete, or",
        ),
        ("pip install 'demoreel[sql]'", "pip install 'demoreel[sql]'"),
        ("train=0.8 val=0.2", "train=0.8 val=0.2"),
    ],
)
def test_hints_are_in_the_commands_words(said, shown):
    assert in_command_words(said) == shown


def test_hints_of_the_library_are_in_its_words(dataset, tmp_path):
    (tmp_path / "x").write_text("x")
    with pytest.raises(TargetExistsError) as caught:
        demoreel.convert(dataset, tmp_path, to="v2.1")
    assert "overwrite" in str(caught.value)
    assert "--" not in str(caught.value)
    with pytest.raises(ArgumentError, match="in_place=True"):
        demoreel.convert(dataset, to="v2.1")


def test_a_wrong_choice_is_no_value_error(run, dataset, tmp_path):
    ended = run("convert", dataset, tmp_path / "out", "--to", "v4")
    assert ended.returncode == 2
    assert "'v4' is not one of" in ended.stderr
    assert "Value error" not in ended.stderr


def test_hints_are_whole_commands(run, dataset, tmp_path):
    ended = run("cut", "delete", dataset, "--episodes", "0", "--in-place")
    assert f"demoreel convert {dataset} TARGET --to lance-video" in ended.stderr
    assert "--in-place" in run("repair", dataset).stderr


@pytest.mark.parametrize("given", ["ds", "./ds"])
def test_a_folder_in_place_of_a_repo_id(tmp_path, monkeypatch, given):
    pytest.importorskip("torch")
    from demoreel.testing import make_dataset
    from demoreel.torch import LeRobotDataset

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    make_dataset("ds", cameras=0)
    with pytest.raises(demoreel.errors.DemoreelError) as caught:
        LeRobotDataset(given)
    assert f"root={given!r}" in caught.value.hint
