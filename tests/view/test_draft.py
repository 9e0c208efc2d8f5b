"""Drafts: what was changed on a page is kept, told apart, and rendered as a cut."""

from __future__ import annotations

import json
import time
import urllib.request

import numpy as np
import pytest

import demoreel
from demoreel.edit.cut import load
from demoreel.model import DEFAULT_FEATURES
from demoreel.testing import make_dataset, read_stamp
from demoreel.view.datasets import ShownDataset
from demoreel.view.draft import Drafts
from demoreel.view.jobs import Jobs


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return make_dataset(tmp_path / "ds", episodes=(20, 30, 10, 12), tasks=("pick", "place"))


def send(client, method: str, path: str, value, **headers: str) -> tuple[int, dict]:
    request = urllib.request.Request(
        client.root + path,
        json.dumps(value).encode(),
        {"Origin": client.root, **headers},
        method=method,
    )
    try:
        with client.opener.open(request) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        data = error.read()
        return error.code, json.loads(data) if data.startswith(b"{") else {"message": data.decode()}


def put(client, revision: int, episodes: object) -> tuple[int, dict]:
    return send(
        client, "PUT", f"{client.first}/draft", {"revision": revision, "episodes": episodes}
    )


CHANGES = {
    "0": {"deleted": True},
    "1": {"start": 4, "stop": 26, "splits": [10]},
    "3": {"task": "go"},
}


def test_a_draft_is_kept_on_disk_and_never_in_the_dataset(ask, root):
    before = sorted(path for path in root.rglob("*"))
    client = ask(root)
    assert client.json(f"{client.first}/draft")["episodes"] == {}
    status, answer = put(client, 0, CHANGES)
    assert (status, answer["revision"], answer["episodes"]) == (200, 1, CHANGES)
    again = ask(root)  # after a crash of the first
    assert again.json(f"{again.first}/draft")["episodes"] == CHANGES
    assert sorted(path for path in root.rglob("*")) == before


def test_the_second_window_is_told(ask, root):
    client = ask(root)
    assert put(client, 0, {"0": {"deleted": True}})[0] == 200
    status, answer = put(client, 0, {"1": {"deleted": True}})
    assert status == 409
    assert "another window" in answer["message"]
    assert client.json(f"{client.first}/draft")["episodes"] == {"0": {"deleted": True}}
    assert put(client, 1, {})[0] == 200


@pytest.mark.parametrize(
    "episodes",
    [
        [],
        {"9": {"deleted": True}},
        {"../x": {"deleted": True}},
        {"²": {"deleted": True}},
        {"9" * 5000: {"deleted": True}},
        {"0": {"start": 20}},
        {"0": {"stop": 21}},
        {"0": {"start": 5, "stop": 5}},
        {"0": {"start": 0.5}},
        {"0": {"splits": [0]}},
        {"0": {"splits": "no"}},
        {"0": {"task": 5}},
        {"0": {"task": ""}},
        {"0": {"task": " "}},
        {"0": {"task": "\ud800"}},
        {"0": {"exec": "rm"}},
    ],
)
def test_changes_that_make_no_sense_are_not_kept(ask, root, episodes):
    client = ask(root)
    assert put(client, 0, episodes)[0] in (400, 404)
    assert client.json(f"{client.first}/draft")["revision"] == 0


def test_writing_needs_an_origin_and_is_off_where_read_only(ask, root):
    client = ask(root)
    for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}):
        value = {"revision": 0, "episodes": {}}
        assert send(client, "PUT", f"{client.first}/draft", value, **headers)[0] == 403
    request = urllib.request.Request(client.root + f"{client.first}/draft", b"{}", method="PUT")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        client.opener.open(request)
    closed = ask(root, read_only=True)
    assert put(closed, 0, {})[0] == 400
    assert send(closed, "POST", f"{closed.first}/render", {"revision": 0, "target": "x"})[0] == 400


def rendered(client, fields: dict) -> dict:
    status, job = send(client, "POST", f"{client.first}/render", fields)
    assert status == 200, job
    while job["state"] == "running":
        time.sleep(0.02)
        job = client.json(f"/api/jobs/{job['id']}")
    return job


def test_a_draft_is_rendered_into_a_new_dataset(ask, root, tmp_path):
    client = ask(root)
    assert put(client, 0, CHANGES)[0] == 200
    job = rendered(client, {"revision": 1, "target": "made"})
    assert job["state"] == "done", job
    assert job["result"]["path"] == str(tmp_path / "made")
    made = demoreel.open(tmp_path / "made")
    assert made.episodes.length.tolist() == [6, 16, 10, 12]
    assert made[len(made) - 1]["task"] == "go"
    for index, (episode, frame) in {0: (1, 4), 6: (1, 10), 22: (2, 0)}.items():
        mark = read_stamp(made[index]["observation.images.cam0"])
        assert (mark.episode, mark.frame) == (episode, frame)
    assert len(demoreel.open(root)) == 72
    status, answer = send(
        client, "POST", f"{client.first}/render", {"revision": 1, "target": "made"}
    )
    assert status == 409
    assert "something" in answer["message"]


def test_the_cut_list_is_the_one_that_the_command_takes(ask, root, tmp_path):
    client = ask(root)
    put(client, 0, CHANGES)
    (tmp_path / "cutlist.json").write_text(json.dumps(client.json(f"{client.first}/cutlist")))
    load(tmp_path / "cutlist.json").render(tmp_path / "applied")
    assert demoreel.open(tmp_path / "applied").episodes.length.tolist() == [6, 16, 10, 12]


def test_a_lance_dataset_gets_a_new_version(ask, root, tmp_path):
    demoreel.convert(root, tmp_path / "lance", to="lance-video")
    client = ask(tmp_path / "lance")
    put(client, 0, {"0": {"deleted": True}})
    job = rendered(client, {"revision": 1, "in_place": True})
    assert job["state"] == "done", job
    assert client.json(client.first)["episodes"] == 3
    assert client.json(f"{client.first}/draft")["episodes"] == {}
    assert len(demoreel.versions(tmp_path / "lance")) >= 2


def test_a_draft_is_of_the_episodes_that_it_was_made_for(ask, root, tmp_path):
    """Where a dataset was edited or replaced, the same numbers are other episodes."""
    client = ask(root)
    put(client, 0, CHANGES)
    demoreel.cut(root).delete([0]).render(tmp_path / "shorter")
    root.rename(tmp_path / "before")
    (tmp_path / "shorter").rename(root)
    drafts = tmp_path / "state" / "demoreel" / "drafts"
    (path,) = drafts.iterdir()
    now = client.json(f"{client.first}/draft")
    assert now["episodes"] == {}
    fields = {"revision": 1, "target": "x"}
    assert send(client, "POST", f"{client.first}/render", fields)[0] == 409
    assert put(client, 1, {"0": {"deleted": True}, "1": {"deleted": True}})[0] == 409
    assert path.exists()
    assert put(client, now["revision"], {"2": {"deleted": True}})[0] == 200
    kept = [json.loads(file.read_text())["episodes"] for file in sorted(drafts.iterdir())]
    assert kept == [CHANGES, {"2": {"deleted": True}}]


def test_episodes_that_are_recorded_meanwhile_leave_a_draft_as_it_is(ask, root):
    client = ask(root)
    put(client, 0, CHANGES)
    with demoreel.resume(root, task="pick") as recorder:
        dataset = demoreel.open(root)
        given = [k for k, f in dataset.features.items() if k not in DEFAULT_FEATURES]
        for _ in range(3):
            zeros = {
                key: np.zeros(dataset.features[key].shape, dataset.features[key].numpy_dtype)
                for key in given
                if not dataset.features[key].is_camera
            }
            images = {
                key: np.zeros(dataset.features[key].image_shape, np.uint8)
                for key in dataset.cameras
            }
            recorder.add_frame({**zeros, **images})
        recorder.save_episode()
    assert client.json(client.first)["episodes"] == 5
    assert client.json(f"{client.first}/draft")["episodes"] == CHANGES


def test_a_draft_that_was_changed_while_it_was_rendered_in_place_is_put_aside(root, tmp_path):
    shown, drafts = ShownDataset("ds", str(root), {}), Drafts(tmp_path / "drafts")
    drafts.write(shown, 0, {"0": {"deleted": True}})
    later = drafts.write(shown, 1, {"0": {"deleted": True}, "2": {"deleted": True}})
    drafts.end(shown, 1)
    assert drafts.read(shown)["episodes"] == {}
    (aside,) = (tmp_path / "drafts").glob("*-2.json")
    assert json.loads(aside.read_text()) == later


@pytest.mark.parametrize("text", ['{"demoreel.draft": 1}', '{"demoreel.draft": 1, "episodes": []}'])
def test_a_damaged_draft_is_an_error_that_names_its_file(ask, root, tmp_path, text):
    client = ask(root)
    put(client, 0, CHANGES)
    (path,) = (tmp_path / "state" / "demoreel" / "drafts").iterdir()
    path.write_text(text)
    status, data, _ = client.ask(f"{client.first}/draft")
    assert status == 400
    assert json.loads(data)["where"]["file"] == str(path)


class PanicError(BaseException):
    """What libraries in Rust raise."""


def test_work_that_panics_has_ended():
    def work(report):
        raise PanicError("at the disk")

    jobs = Jobs()
    job = jobs.start("render", work)
    jobs.wait()
    assert (job.to_json()["state"], job.to_json()["result"]["message"]) == ("failed", "at the disk")


def test_all_episodes_deleted_is_said(ask, root):
    client = ask(root)
    put(client, 0, {str(number): {"deleted": True} for number in range(4)})
    status, answer = send(client, "POST", f"{client.first}/render", {"revision": 1, "target": "x"})
    assert status == 400
    assert "All episodes" in answer["message"]


def test_idle_ends_are_proposed(ask, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    features = {"action": {"dtype": "float32", "shape": (1,), "names": None}}
    recorder = demoreel.create(tmp_path / "idle", fps=10, features=features)
    for frame in range(60):
        value = np.array([np.clip(frame - 20, 0, 20)], np.float32)
        recorder.add_frame({"action": value, "task": "go"})
    recorder.save_episode()
    recorder.finalize()
    client = ask(tmp_path / "idle")
    assert client.json(f"{client.first}/e/0/idle") == {"start": 15, "stop": 46}


def test_a_page_trims_deletes_undoes_and_renders(page, serve, root, tmp_path):
    viewer = serve(root)
    page.goto(viewer.address)
    page.wait_for_selector("[data-episode='3']")
    page.keyboard.press("x")
    page.wait_for_selector("[data-episode='0'].deleted")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector("main[data-shown='0']")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.wait_for_selector("main[data-shown='3']")
    page.keyboard.press("[")
    page.wait_for_selector(".transport .cut i")
    page.keyboard.press("x")
    page.wait_for_selector(".cameras.deleted")
    page.keyboard.press("u")
    page.wait_for_selector(".cameras:not(.deleted)")
    page.reload()  # nothing is lost
    page.wait_for_selector(".transport .cut i")
    page.keyboard.press("c")
    page.fill("dialog input[type=text]", str(tmp_path / "page-made"))
    page.click("text=Write a new dataset")
    page.wait_for_selector("dialog [role=status]:has-text('page-made')")
    assert demoreel.open(tmp_path / "page-made").episodes.length.tolist() == [27, 10, 12]
