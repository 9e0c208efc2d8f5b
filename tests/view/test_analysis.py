"""What the pages learn about many episodes: measures, plots, filters, findings."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.request
from urllib.parse import quote

import numpy as np
import pytest

import demoreel
from demoreel.errors import ArgumentError
from demoreel.layouts.v3.reader import V3Reader
from demoreel.testing import make_dataset
from demoreel.view.jobs import Jobs
from demoreel.view.measures import EpisodeMeasures

FPS = 20


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def recorded(root, episodes, **more):
    """A dataset of one dimension: each episode is its values."""
    features = {
        "action": {"dtype": "float32", "shape": (1,), "names": None},
        "next.success": {"dtype": "bool", "shape": (1,), "names": None},
    }
    recorder = demoreel.create(root, fps=FPS, features=features)
    for number, values in enumerate(episodes):
        for frame, value in enumerate(values):
            recorder.add_frame(
                {
                    "action": np.array([value], np.float32),
                    "next.success": np.array([number % 2 == 1 and frame == len(values) - 1]),
                    "task": f"task {number % 3}",
                }
            )
        recorder.save_episode()
    recorder.finalize()
    return root


LINE = np.linspace(0, 10, 40)
STILL = np.concatenate([np.zeros(20), np.linspace(0, 10, 20)])
SHAKEN = LINE + np.where(np.arange(40) % 2, 0.5, -0.5)


@pytest.fixture
def root(tmp_path):
    return recorded(tmp_path / "ds", [LINE, STILL, SHAKEN, *([LINE] * 7), np.tile(LINE, 10)])


def measured(client, query: str = "") -> dict:
    for _ in range(600):
        answer = client.json(f"{client.first}/measures{query}")
        if answer["done"] == answer["of"]:
            return answer
        time.sleep(0.05)
    raise AssertionError(answer)


def rows(client, query: str) -> list[dict]:
    return client.json(f"{client.first}/episodes?{query}")["rows"]


def test_episodes_are_measured_from_their_rows(ask, root):
    client = ask(root)
    plots = {plot["key"]: plot for plot in measured(client)["plots"]}
    assert {"length", "idle", "jerk", "success", "action[0]"} <= plots.keys()
    found = rows(client, "")
    assert [round(row["idle"], 2) for row in found[:3]] == [0.0, round(20 / 39, 2), 0.0]
    assert found[2]["jerk"] > 50 * found[0]["jerk"]
    assert [row["success"] for row in found[:4]] == [0, 1, 0, 1]
    assert plots["length"]["counts"][0] == 10
    assert plots["length"]["counts"][-1] == 1
    assert [plots["length"]["least"], plots["length"]["most"]] == [40, 400]


def test_the_table_is_sorted_and_chosen_by_measures(ask, root):
    client = ask(root)
    measured(client)
    indices = [row["index"] for row in rows(client, "sort=idle&desc=1&n=1")]
    assert indices == [1]
    assert [row["index"] for row in rows(client, "sort=length&desc=1&n=1")] == [10]
    assert [row["index"] for row in rows(client, "r=idle:0.2:1")] == [1]
    assert [row["index"] for row in rows(client, "r=length:50:1000&r=success:0:0")] == [10]
    assert [row["index"] for row in rows(client, "task=task%201&r=idle:0.2:1")] == [1]
    assert [row["index"] for row in rows(client, "numbers=4,2")] == [2, 4]
    answer = measured(client, "?r=idle:0.2:1")
    assert [sum(plot["chosen"]) for plot in answer["plots"] if plot["key"] == "length"] == [1]
    assert sum(each["chosen"] for each in answer["tasks"]) == 1
    assert sum(each["count"] for each in answer["tasks"]) == 11


@pytest.mark.soak
@pytest.mark.parametrize(
    "query", ["r=idle", "r=idle:a:b", "r=nothing:0:1", "only=x", "numbers=x", "sort=action%5B9%5D"]
)
def test_measures_that_are_not_there_are_said(ask, root, query):
    client = ask(root)
    measured(client)
    status, data, _ = client.ask(f"{client.first}/episodes?{query}")
    assert status == 400
    assert json.loads(data)["message"]


def test_an_episode_far_from_the_others_is_an_outlier(ask, tmp_path):
    random = np.random.default_rng(0)
    episodes = [LINE + random.normal(0, 0.01, 40) for _ in range(20)]
    episodes[7] = episodes[7] + 100
    client = ask(recorded(tmp_path / "far", episodes))
    assert measured(client)["outliers"] == 1
    (row,) = rows(client, "only=outliers")
    assert row["index"] == 7
    assert "mean of action[0]" in row["far"]
    assert rows(client, "sort=outliers&desc=1&n=1")[0]["index"] == 7


def table_of(root, folder):
    dataset, jobs = demoreel.open(root), Jobs()
    table, job = EpisodeMeasures(jobs, folder).of("x", dataset)
    if job is not None:
        job.wait()
        assert job.to_json()["state"] == "done"
    return table, job


def test_measures_are_kept_outside_the_dataset_and_grow_with_it(root, tmp_path, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    first, job = table_of(root, tmp_path / "kept")
    assert job is not None
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
    again, job = table_of(root, tmp_path / "kept")
    assert job is None
    np.testing.assert_array_equal(again.values, first.values)
    with demoreel.resume(root, task="more") as recorder:
        for value in STILL:
            recorder.add_frame(
                {"action": np.array([value], np.float32), "next.success": np.array([True])}
            )
        recorder.save_episode()
    read, once = [], V3Reader.rows_once
    monkeypatch.setattr(V3Reader, "rows_once", lambda *span: read.append(span[1:]) or once(*span))
    table, _ = table_of(root, tmp_path / "kept")
    assert read == [(11, 12)]  # what was measured before counts
    np.testing.assert_allclose(table.column("idle")[[1, 11]], 20 / 39, rtol=1e-5)


def test_measures_of_another_dataset_are_measured_anew(root, tmp_path):
    table_of(root, tmp_path / "kept")
    root.rename(tmp_path / "before")
    recorded(root, [LINE, LINE, LINE, *([LINE] * 7), np.tile(LINE, 10)])  # of the same lengths
    table, job = table_of(root, tmp_path / "kept")
    assert job is not None
    assert table.column("idle")[1] == 0


@pytest.mark.soak
@pytest.mark.parametrize("content", [b"", b"PK", b"\x93NUMPY"])
def test_a_damaged_cache_is_no_harm(root, tmp_path, content):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "x.npz").write_bytes(content)
    table, job = table_of(root, tmp_path / "kept")
    assert job is not None
    assert table.is_done


def test_a_damaged_table_leaves_the_others_measured(ask, tmp_path):
    root = make_dataset(
        tmp_path / "ds", episodes=(9, 9, 9), cameras=0, data_files_size_in_mb=0.0001
    )
    table = sorted((root / "data").rglob("*.parquet"))[1]
    table.write_bytes(table.read_bytes()[:200])
    client = ask(root)
    answer = measured(client)
    assert len(answer["problems"]) == 1
    assert "episode 1" in answer["problems"][0]
    assert [row["idle"] is None for row in rows(client, "")] == [False, True, False]


def test_many_damaged_tables_are_counted_and_the_others_measured(ask, tmp_path):
    root = make_dataset(
        tmp_path / "ds", episodes=(6,) * 60, cameras=0, data_files_size_in_mb=0.0001
    )
    tables = sorted((root / "data").rglob("*.parquet"))
    assert len(tables) == 60
    for table in tables[::2]:
        table.write_bytes(table.read_bytes()[:200])
    client = ask(root)
    told = measured(client)["problems"]
    assert told[0].startswith("30 episodes could not be measured")
    assert len(told) == 21
    idle = [row["idle"] is None for row in rows(client, "")]
    assert idle == [number % 2 == 0 for number in range(60)]


def test_flags_sort_by_what_the_dataset_says_and_by_the_draft(ask, tmp_path):
    plain = make_dataset(tmp_path / "plain", episodes=(6,) * 5, cameras=0)
    cut = demoreel.cut(plain).label(1, score=2).label(3, score=5, flag="good")
    cut.label(4, flag="bad").render(tmp_path / "ds")
    client = ask(tmp_path / "ds")
    found = rows(client, "sort=flags&desc=1")
    assert [row["index"] for row in found][:3] == [3, 1, 4]
    assert (found[0]["score"], found[0]["flag"]) == (5, "good")
    assert "score" not in found[4]
    draft = json.dumps({"revision": 0, "episodes": {"0": {"score": 3}, "3": {"score": 1}}})
    request = urllib.request.Request(
        client.root + client.first + "/draft", draft.encode(), {"Origin": client.root}, method="PUT"
    )
    client.opener.open(request).close()
    assert [row["index"] for row in rows(client, "sort=flags&desc=1")][:4] == [0, 1, 3, 4]


@pytest.mark.parametrize(
    "layout", ["v2.0", "v2.1", "v3.0", "lance-frames", "lance-video", "lance-native"]
)
def test_every_layout_is_measured_alike(local_datasets, tmp_path, layout):
    expected, _ = table_of(local_datasets("v3.0"), tmp_path / "v3")
    table, _ = table_of(local_datasets(layout), tmp_path / "other")
    assert table.measures == expected.measures
    np.testing.assert_allclose(table.values, expected.values, rtol=1e-5)


def post(client, path: str, value=None) -> tuple[int, dict]:
    request = urllib.request.Request(
        client.root + path, json.dumps(value or {}).encode(), {"Origin": client.root}, method="POST"
    )
    try:
        with client.opener.open(request) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def checked(client) -> dict:
    status, answer = post(client, f"{client.first}/check")
    assert status == 200
    while answer["job"]["state"] == "running":
        time.sleep(0.05)
        answer = client.json(f"{client.first}/check")
    return answer


def test_findings_name_their_episode_and_frame(ask, tmp_path):
    values = LINE.copy()
    values[20] = 500.0
    others = [LINE + number * np.sin(LINE) / 20 for number in range(9)]
    client = ask(recorded(tmp_path / "ds", [*others, values]))
    assert client.json(f"{client.first}/check")["is_checked"] is False
    answer = checked(client)
    (leap,) = [each for each in answer["findings"] if each["code"] == "action-jump"]
    assert (leap["where"]["episode"], leap["where"]["frame"]) in [(9, 20), (9, 21)]
    (row,) = [row for row in rows(client, "sort=findings&desc=1") if row["index"] == 9]
    assert row["findings"] >= 1
    assert row["worst"] in ("hint", "warning", "error")
    assert 9 in [row["index"] for row in rows(client, "only=findings")]


def test_a_check_can_be_cancelled():
    begun, jobs = threading.Event(), Jobs()

    def work(report):
        begun.set()
        while True:
            with contextlib.suppress(Exception):  # as checks do
                report(0.5)
            time.sleep(0.005)

    job = jobs.start("check", work, cancels=True)
    assert begun.wait(10)
    assert job.is_running
    job.cancel()
    job.wait()
    assert job.to_json()["state"] == "cancelled"
    jobs.start("check", work, cancels=True)
    jobs.wait()  # ends what writes nothing


def test_what_writes_is_not_cancelled():
    jobs = Jobs()
    job = jobs.start("render", lambda report: "made")
    with pytest.raises(ArgumentError, match="cannot be cancelled"):
        job.cancel()
    jobs.wait()
    assert job.to_json()["state"] == "done"


def test_a_condition_with_quotes_stays_a_text(ask, root):
    client = ask(root)
    hostile = quote("x' or 1=1 --")
    assert rows(client, f"q={hostile}") == []
    assert rows(client, f"task={hostile}") == []
