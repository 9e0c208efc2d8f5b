"""Labels from files into a draft, annotations out of it, and events that speak of a camera."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import demoreel
from demoreel.edit.labels import labels_of
from demoreel.testing import make_dataset

CAMERA = "observation.images.cam0"


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return make_dataset(tmp_path / "ds", episodes=(20, 30, 10), cameras=1)


def take(client, data: bytes) -> tuple[int, dict]:
    address = f"{client.root}{client.first}/labels"
    request = urllib.request.Request(address, data, {"Origin": client.root}, method="POST")
    try:
        with client.opener.open(request) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def parquet(**columns) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def annotations(*atoms: dict, episode: str = "1") -> bytes:
    return json.dumps({"version": 2, "episodes": {episode: {"atoms": list(atoms)}}}).encode()


def atom(at: float, content: str, style: str = "subtask") -> dict:
    return {"role": "assistant", "content": content, "style": style, "timestamp": at}


TABLES = {
    "csv": b"episode_index,success,score,flag,task\n0,true,4,good,put\n2,false,,bad,\n",
    "csv of numbers": b"episode_index,next.success,score,flag,task\n0,1,4,1,put\n2,0,,0,\n",
    "parquet": parquet(
        episode_index=[0, 2],
        success=[True, False],
        score=[4, None],
        flag=["good", "bad"],
        task=["put", None],
    ),
    "a row for each frame": parquet(
        episode_index=[0, 0, 2, 2],
        **{"next.success": [False, True, False, False]},
        score=np.array([4, 4, np.nan, np.nan], np.float32),
        flag=np.array([1, 1, 0, 0], np.float32),
        task=["put", None, None, None],
        other=[1, 2, 3, 4],
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_becomes_changes(ask, root, name):
    status, answer = take(ask(root), TABLES[name])
    assert status == 200, answer
    assert answer["episodes"] == {
        "0": {"success": True, "score": 4, "flag": "good", "task": "put"},
        "2": {"success": False, "flag": "bad"},
    }


REFUSED = {
    "nothing": b"",
    "no table": b"\0\1\2 nothing",
    "a damaged parquet file": b"PAR1 nothing PAR1",
    "no episodes": b"score\n4\n",
    "no labels": b"episode_index,x\n0,4\n",
    "an episode by name": b"episode_index,score\nfirst,4\n",
    "an episode that is not there": b"episode_index,score\n9,4\n",
    "a negative episode": b"episode_index,score\n-1,4\n",
    "a huge episode": b"episode_index,score\n99999999999999999999999,4\n",
    "a score beyond all": b"episode_index,score\n0,6\n",
    "a score between": b"episode_index,score\n0,2.5\n",
    "an infinite score": parquet(episode_index=[0], score=[np.inf]),
    "markup for a flag": b"episode_index,flag\n0,<b>\n",
    "success by guess": b"episode_index,success\n0,perhaps\n",
    "labels that are lists": parquet(episode_index=[0], score=[[1]]),
    "too long a task": b"episode_index,task\n0," + b"x" * 20_000 + b"\n",
    "JSON that ends": b'{"version": 2',
    "JSON in JSON": b'{"a":' * 100_000,
    "another version": b'{"version": 1, "episodes": {}}',
    "annotations of no episode": b'{"version": 2, "episodes": {}}',
    "annotations of another episode": annotations(atom(0.0, "x"), episode="7"),
    "annotations at no time": annotations(atom(float("nan"), "x")),
    "half a letter": b'{"version": 2, "episodes": {"0": {"atoms": [{"content": "\\ud800", '
    b'"style": "subtask", "timestamp": 0.0}]}}}',
}


@pytest.mark.soak
@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_said(ask, root, name):
    client = ask(root)
    status, answer = take(client, REFUSED[name])
    assert status in (400, 404), answer
    assert answer["message"]
    assert client.json(client.first)["episodes"] == 3


def test_a_score_file_of_a_result_is_taken_back(ask, root, tmp_path):
    demoreel.cut(root).label(0, score=5, flag="good").label(2, flag="bad").render(tmp_path / "new")
    status, answer = take(ask(root), (tmp_path / "new/scores/labels.parquet").read_bytes())
    assert status == 200, answer
    assert answer["episodes"] == {"0": {"score": 5, "flag": "good"}, "2": {"flag": "bad"}}


def test_annotations_leave_as_they_came(ask, root, tmp_path):
    client = ask(root)
    column = demoreel.open(root).episode(1).column("timestamp")
    times = [float(at) for at in np.asarray(column, np.float32).reshape(-1)]
    sent = annotations(atom(times[0], "reach"), atom(times[7], "ask", "interjection"))
    status, answer = take(client, sent)
    assert status == 200, answer
    assert answer["episodes"]["1"]["persistent"][0]["frame"] == 0
    assert answer["episodes"]["1"]["events"][0]["frame"] == 7
    assert client.json(f"{client.first}/annotations")["episodes"] == {}
    assert client.put(0, answer["episodes"])[0] == 200
    given = client.json(f"{client.first}/annotations")
    assert [(a["content"], a["timestamp"]) for a in given["episodes"]["1"]["atoms"]] == [
        ("reach", times[0]),
        ("ask", times[7]),
    ]
    assert take(client, json.dumps(given).encode())[1] == answer
    # In columns, and with other rows in a draft of the result.
    (tmp_path / "file.json").write_text(json.dumps(given))
    demoreel.cut(root).annotate(tmp_path / "file.json").render(tmp_path / "new")
    other = ask(tmp_path / "new")
    assert other.json(f"{other.first}/annotations") == given
    change = {"persistent": [{"frame": 3, "style": "subtask", "content": "else"}]}
    assert other.put(0, {"1": change})[0] == 200
    atoms = other.json(f"{other.first}/annotations")["episodes"]["1"]["atoms"]
    assert [(a["content"], a["timestamp"]) for a in atoms] == [
        ("else", times[3]),
        ("ask", times[7]),
    ]


def test_a_page_takes_a_file_gives_annotations_and_asks_of_a_camera(page, serve, root, tmp_path):
    viewer = serve(root)
    page.goto(viewer.address)
    page.wait_for_selector("[data-episode='1']")
    page.keyboard.press("Enter")
    page.wait_for_selector("main[data-shown='0']")
    for frame, style, role, text in (
        (4, "vqa", "user", "where is it?"),
        (6, "trace", "assistant", "[[1, 2]]"),
        (8, "interjection", "user", "left"),
    ):
        page.evaluate("(frame) => document.getElementById('main').demoreel.seek(frame)", frame)
        page.keyboard.press("e")
        page.fill("dialog input", text)
        page.select_option("dialog select[name=style]", style)
        page.select_option("dialog select[name=role]", role)
        assert page.locator("select[name=camera]").is_visible() == (style != "interjection")
        page.click("dialog >> text=OK")
        page.wait_for_selector(f".event[data-from='{frame}'][data-style='{style}']")
    page.keyboard.press("c")
    table = tmp_path / "rated.csv"
    table.write_text("episode_index,success,score\n0,1,3\n1,0,2\n")
    page.set_input_files("dialog input[type=file]", str(table))
    page.wait_for_selector("dialog [role=status]:has-text('Labels of 2 episodes')")
    page.wait_for_selector("dialog .changes:has-text('failure; score 2')")
    page.set_input_files(
        "dialog input[type=file]",
        {"name": "x.csv", "mimeType": "text/csv", "buffer": b"episode_index,score\n0,99\n"},
    )
    page.wait_for_selector("dialog [role=alert]:has-text('99')")
    with page.expect_download() as download:
        page.click("text=the annotations as a file")
    given = json.loads(download.value.path().read_text())
    found = [(a["style"], a["role"], a["camera"]) for a in given["episodes"]["0"]["atoms"]]
    assert found == [
        ("vqa", "user", CAMERA),
        ("trace", "assistant", CAMERA),
        ("interjection", "user", None),
    ]
    page.fill("dialog input[type=text]", str(tmp_path / "made"))
    page.click("text=Write a new dataset")
    page.wait_for_selector("dialog [role=status]:has-text('made')")
    page.click("dialog.wide >> text=Close")
    page.keyboard.press("u")  # what the file brought is one step
    page.wait_for_selector("[data-score='3'][aria-pressed='false']")
    page.wait_for_selector(".draft:has-text('1 change')")
    dataset = demoreel.open(tmp_path / "made")
    labels = [labels_of(dataset, episode) for episode in range(3)]
    assert [(each.success, each.score) for each in labels] == [(True, 3), (False, 2), (None, None)]
    assert [(row.frame, row.style, row.camera) for row in labels[0].events] == [
        (4, "vqa", CAMERA),
        (6, "trace", CAMERA),
        (8, "interjection", None),
    ]
