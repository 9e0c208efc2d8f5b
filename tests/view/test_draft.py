"""Drafts: what was changed on a page is kept, told apart, and rendered as a cut."""

from __future__ import annotations

import json
import threading
import time
import urllib.request

import numpy as np
import pytest

import demoreel
from demoreel.cli import main
from demoreel.edit.cut import load
from demoreel.edit.labels import labels_of
from demoreel.model import DEFAULT_FEATURES
from demoreel.testing import make_dataset, read_stamp
from demoreel.view.datasets import ShownDataset
from demoreel.view.draft import Drafts
from demoreel.view.jobs import Jobs


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return make_dataset(tmp_path / "ds", episodes=(20, 30, 10, 12), tasks=("pick", "place"))


CHANGES = {
    "0": {"deleted": True},
    "1": {"start": 4, "stop": 26, "splits": [10]},
    "3": {"task": "go"},
}


def test_a_draft_is_kept_on_disk_and_never_in_the_dataset(ask, root):
    before = sorted(path for path in root.rglob("*"))
    client = ask(root)
    assert client.json(f"{client.first}/draft")["episodes"] == {}
    status, answer = client.put(0, CHANGES)
    assert (status, answer["revision"], answer["episodes"]) == (200, 1, CHANGES)
    again = ask(root)  # after a crash of the first
    assert again.json(f"{again.first}/draft")["episodes"] == CHANGES
    assert sorted(path for path in root.rglob("*")) == before


def test_the_second_window_is_told(ask, root):
    client = ask(root)
    assert client.put(0, {"0": {"deleted": True}})[0] == 200
    status, answer = client.put(0, {"1": {"deleted": True}})
    assert status == 409
    assert "another window" in answer["message"]
    assert client.json(f"{client.first}/draft")["episodes"] == {"0": {"deleted": True}}
    assert client.put(1, {})[0] == 200


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
    assert client.put(0, episodes)[0] in (400, 404)
    assert client.json(f"{client.first}/draft")["revision"] == 0


def test_writing_needs_an_origin_and_is_off_where_read_only(ask, root):
    client = ask(root)
    for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}):
        value = {"revision": 0, "episodes": {}}
        assert client.send("PUT", f"{client.first}/draft", value, **headers)[0] == 403
    request = urllib.request.Request(client.root + f"{client.first}/draft", b"{}", method="PUT")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        client.opener.open(request)
    closed = ask(root, read_only=True)
    assert closed.put(0, {})[0] == 400
    assert closed.send("POST", f"{closed.first}/render", {"revision": 0, "target": "x"})[0] == 400


def rendered(client, fields: dict) -> dict:
    status, job = client.send("POST", f"{client.first}/render", fields)
    assert status == 200, job
    while job["state"] == "running":
        time.sleep(0.02)
        job = client.json(f"/api/jobs/{job['id']}")
    return job


def test_a_draft_is_rendered_into_a_new_dataset(ask, root, tmp_path):
    client = ask(root)
    assert client.put(0, CHANGES)[0] == 200
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
    status, answer = client.send(
        "POST", f"{client.first}/render", {"revision": 1, "target": "made"}
    )
    assert status == 409
    assert "something" in answer["message"]


def test_the_cut_list_is_the_one_that_the_command_takes(ask, root, tmp_path):
    client = ask(root)
    client.put(0, CHANGES)
    (tmp_path / "cutlist.json").write_text(json.dumps(client.json(f"{client.first}/cutlist")))
    load(tmp_path / "cutlist.json").render(tmp_path / "applied")
    assert demoreel.open(tmp_path / "applied").episodes.length.tolist() == [6, 16, 10, 12]


def test_a_lance_dataset_gets_a_new_version(ask, root, tmp_path):
    demoreel.convert(root, tmp_path / "lance", to="lance-video")
    client = ask(tmp_path / "lance")
    client.put(0, {"0": {"deleted": True}})
    job = rendered(client, {"revision": 1, "in_place": True})
    assert job["state"] == "done", job
    assert client.json(client.first)["episodes"] == 3
    assert client.json(f"{client.first}/draft")["episodes"] == {}
    assert len(demoreel.versions(tmp_path / "lance")) >= 2


def test_a_draft_is_of_the_episodes_that_it_was_made_for(ask, root, tmp_path):
    """Where a dataset was edited or replaced, the same numbers are other episodes."""
    client = ask(root)
    client.put(0, CHANGES)
    demoreel.cut(root).delete([0]).render(tmp_path / "shorter")
    root.rename(tmp_path / "before")
    (tmp_path / "shorter").rename(root)
    drafts = tmp_path / "state" / "demoreel" / "drafts"
    (path,) = drafts.iterdir()
    now = client.json(f"{client.first}/draft")
    assert now["episodes"] == {}
    fields = {"revision": 1, "target": "x"}
    assert client.send("POST", f"{client.first}/render", fields)[0] == 409
    assert client.put(1, {"0": {"deleted": True}, "1": {"deleted": True}})[0] == 409
    assert path.exists()
    assert client.put(now["revision"], {"2": {"deleted": True}})[0] == 200
    kept = [json.loads(file.read_text())["episodes"] for file in sorted(drafts.iterdir())]
    assert kept == [CHANGES, {"2": {"deleted": True}}]


def test_episodes_that_are_recorded_meanwhile_leave_a_draft_as_it_is(ask, root):
    client = ask(root)
    client.put(0, CHANGES)
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
    client.put(0, CHANGES)
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
    client.put(0, {str(number): {"deleted": True} for number in range(4)})
    status, answer = client.send("POST", f"{client.first}/render", {"revision": 1, "target": "x"})
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


LABELS = {
    "1": {
        "success": False,
        "score": 4,
        "flag": "bad",
        "redo": True,
        "persistent": [{"frame": 3, "style": "subtask", "content": "reach"}],
        "events": [],
    }
}


def test_labels_are_part_of_a_draft_and_of_its_cut_list(ask, root, tmp_path):
    client = ask(root)
    status, answer = client.put(0, LABELS)
    assert (status, answer["episodes"]) == (200, LABELS)
    clips = client.json(f"{client.first}/cutlist")["clips"]
    said = {k: v for k, v in LABELS["1"].items() if k != "redo"}
    assert clips[1] == [0, 1, 0, 30, None, said]
    assert clips[0] == [0, 0, 0, 20]
    job = rendered(client, {"revision": 1, "target": "made"})
    assert job["state"] == "done", job
    again = ask(tmp_path / "made")
    found = again.json(f"{again.first}/e/1/labels")
    assert found == {**said, "persistent": [{**said["persistent"][0]}]}
    assert again.json(f"{again.first}/e/0/labels") == {"persistent": [], "events": []}
    lines = again.json(f"{again.first}/e/1/texts")["columns"]["language_persistent"]
    assert set(lines) == {"subtask: reach (assistant, 0.10 s)"}


@pytest.mark.parametrize(
    "change",
    [
        {"success": 1},
        {"score": 9},
        {"flag": "maybe"},
        {"redo": "yes"},
        {"persistent": [{"frame": 20, "content": "x"}]},
        {"persistent": [{"frame": 1, "content": "x" * 20_000}]},
        {"events": [{"frame": 1, "content": "\ud800"}]},
        {"events": [{"frame": 1, "kind": "x"}]},
        {"events": [1]},
    ],
)
def test_labels_that_make_no_sense_are_not_kept(ask, root, change):
    client = ask(root)
    assert client.put(0, {"0": change})[0] == 400
    assert client.json(f"{client.first}/draft")["revision"] == 0


def test_what_is_rendered_can_be_cancelled_and_gone_on_with(ask, root, tmp_path, monkeypatch):
    from demoreel.edit import render as rendering

    client, begun, go = ask(root), threading.Event(), threading.Event()

    class Slow(rendering.LocalEngine):
        def run(self, *given, **options):
            for done in super().run(*given, **options):
                begun.set()
                assert go.wait(30)
                yield done

    monkeypatch.setattr("demoreel.edit.cut.LocalEngine", Slow)
    client.put(0, {"0": {"deleted": True}})
    fields = {"revision": 1, "target": "made"}
    job = client.send("POST", f"{client.first}/render", fields)[1]
    assert job["cancels"]
    assert begun.wait(30)
    assert client.send("POST", f"/api/jobs/{job['id']}/cancel", {})[0] == 200
    go.set()
    while job["state"] == "running":
        time.sleep(0.02)
        job = client.json(f"/api/jobs/{job['id']}")
    assert job["state"] == "cancelled"
    assert not (tmp_path / "made").exists()
    assert rendered(client, fields)["state"] == "done"
    assert len(demoreel.open(tmp_path / "made").episodes) == 3


def test_the_command_lists_what_is_to_be_recorded_again(ask, root, capsys):
    client = ask(root)
    client.put(0, {"2": {"redo": True}, "3": {"flag": "bad"}})
    assert main(["episodes", str(root), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["episodes"]
    assert [each["record_again"] for each in listed] == [False, False, True, False]
    assert main(["episodes", str(root)]) == 0
    assert "to be recorded again: 2" in capsys.readouterr().err


def episode_page(page, viewer, episode: int) -> None:
    page.goto(viewer.address)
    page.wait_for_selector(f"[data-episode='{episode}']")
    id = page.evaluate("location.hash").split("/")[2]
    page.goto(f"http://127.0.0.1:{viewer.port}/#/d/{id}/e/{episode}")
    page.wait_for_selector("main[data-shown='0']")
    page.evaluate("document.getElementById('main').demoreel.ready")


def box_of(page, selector: str) -> dict[str, float]:
    """Return where an element is; lanes may be drawn anew at the moment, so this tries again."""
    while (box := page.locator(selector).bounding_box()) is None:
        page.wait_for_timeout(20)
    return box


def drag(page, selector: str, begin: float, end: float, *, edge: bool = False) -> None:
    """Drag on a lane from a share of its width to another."""
    lane, box = box_of(page, ".track[data-lane='subtask']"), box_of(page, selector)
    y = box["y"] + box["height"] / 2
    x = box["x"] + 3 if edge else lane["x"] + begin * lane["width"]
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(lane["x"] + end * lane["width"], y, steps=5)
    page.mouse.up()


def spans(page) -> list[tuple[int, int, str]]:
    found = page.evaluate(
        """() => [...document.querySelectorAll("[data-lane='subtask'] .span")].map(
            (span) => [Number(span.dataset.from), Number(span.dataset.to), span.textContent])"""
    )
    return [tuple(each) for each in found]


def test_a_draft_that_changes_during_a_drag_moves_no_label(page, serve, root):
    episode_page(page, serve(root), 1)
    drag(page, "[data-lane='subtask']", 0, 1)
    page.keyboard.type("reach")
    page.keyboard.press("Enter")
    page.wait_for_selector(".span:has-text('reach')")
    lane = box_of(page, ".track[data-lane='subtask']")
    y = lane["y"] + lane["height"] / 2
    page.mouse.move(lane["x"] + lane["width"] / 3, y)
    page.mouse.down()
    page.keyboard.press("g")
    page.wait_for_selector("[data-mark='flag good'][aria-pressed='true']")
    page.mouse.move(lane["x"] + 2 / 3 * lane["width"], y, steps=5)
    page.mouse.up()
    page.keyboard.type("grasp")
    page.keyboard.press("Enter")
    page.wait_for_selector(".span:has-text('grasp')")
    assert spans(page) == [(0, 10, "reach"), (10, 20, "grasp"), (20, 30, "reach")]


def test_a_page_labels_and_the_command_does_the_same(page, serve, root, tmp_path):
    viewer = serve(root)
    episode_page(page, viewer, 1)
    lane = "[data-lane='subtask']"
    for begin, end, text in ((0, 1, "reach"), (1 / 3, 2 / 3, "grasp")):
        drag(page, lane, begin, end)
        page.keyboard.type(text)
        page.keyboard.press("Enter")
        page.wait_for_selector(f".span:has-text('{text}')")
    assert spans(page) == [(0, 10, "reach"), (10, 20, "grasp"), (20, 30, "reach")]
    drag(page, f"{lane} .span >> nth=1", 1 / 3, 0.5, edge=True)
    page.wait_for_selector(f"{lane} .span[data-from='15']")
    assert spans(page) == [(0, 15, "reach"), (15, 20, "grasp"), (20, 30, "reach")]
    page.keyboard.press("u")
    page.wait_for_selector(f"{lane} .span[data-from='10']")
    page.keyboard.press("U")
    page.wait_for_selector(f"{lane} .span[data-from='15']")
    page.dblclick(f"{lane} .span >> nth=2")
    page.click("dialog >> text=Remove")
    page.wait_for_selector(f"{lane} .span[data-from='20']", state="detached")
    page.evaluate("document.getElementById('main').demoreel.seek(6)")
    page.keyboard.press("e")
    page.keyboard.type("a bit left")
    page.keyboard.press("Enter")
    page.wait_for_selector(".event[data-from='6']")
    for key, mark in (("s", "success true"), ("g", "flag good"), ("r", "redo true")):
        page.keyboard.press(key)
        page.wait_for_selector(f"[data-mark='{mark}'][aria-pressed='true']")
    page.keyboard.press("4")
    page.wait_for_selector("[data-score='4'][aria-pressed='true']")
    page.keyboard.press("f")
    page.wait_for_selector("[data-mark='success true'][aria-pressed='false']")
    page.keyboard.press("u")
    page.reload()
    page.wait_for_selector("[data-mark='success true'][aria-pressed='true']")
    page.wait_for_selector(".event[data-from='6']")
    assert spans(page) == [(0, 15, "reach"), (15, 30, "grasp")]
    page.keyboard.press("t")
    page.keyboard.press("Control+A")
    page.keyboard.type("put it down")
    page.keyboard.press("Enter")
    page.wait_for_selector("#facts:has-text('put it down')")
    page.keyboard.press("c")
    assert "demoreel cut apply cutlist.json" in page.text_content("dialog code")
    with page.expect_download() as download:
        page.click("text=the cut list as a file")
    download.value.save_as(tmp_path / "cutlist.json")
    page.fill("dialog input[type=text]", str(tmp_path / "by page"))
    page.click("text=Write a new dataset")
    page.wait_for_selector("dialog [role=status]:has-text('by page')")
    arguments = ["cut", "apply", str(tmp_path / "cutlist.json"), str(tmp_path / "by command")]
    assert main([*arguments, "--dry-run"]) == 0
    assert not (tmp_path / "by command").exists()
    assert main(arguments) == 0
    for name in ("by page", "by command"):
        dataset = demoreel.open(tmp_path / name)
        labels = labels_of(dataset, 1)
        assert (labels.success, labels.score, labels.flag) == (True, 4, "good")
        assert [(row.frame, row.content) for row in labels.persistent] == [
            (0, "reach"),
            (15, "grasp"),
        ]
        assert [(row.frame, row.content, row.role) for row in labels.events] == [
            (6, "a bit left", "user")
        ]
        assert dataset.episodes[1].tasks == ("put it down",)


def test_the_second_tab_is_told(page, serve, root):
    viewer = serve(root)
    episode_page(page, viewer, 0)
    other = page.context.new_page()
    episode_page(other, viewer, 1)
    page.keyboard.press("g")
    page.wait_for_selector(".draft:has-text('1 change')")
    page.wait_for_function("() => sessionStorage.length === 0")
    other.keyboard.press("b")
    other.wait_for_selector(".draft.bad:has-text('changed in another window')")
    other.keyboard.press("c")
    assert "reload this page" in other.text_content("dialog [role=alert]")
    other.reload()
    other.wait_for_selector(".draft:has-text('1 change')")


def test_idle_ends_are_trimmed_one_by_one(page, serve, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    features = {"action": {"dtype": "float32", "shape": (1,), "names": None}}
    recorder = demoreel.create(tmp_path / "idle", fps=10, features=features)
    for frame in range(60):
        value = np.array([np.clip(frame - 20, 0, 20)], np.float32)
        recorder.add_frame({"action": value, "task": "go"})
    recorder.save_episode()
    recorder.finalize()
    episode_page(page, serve(tmp_path / "idle"), 0)
    page.click("[data-trim='start']:has-text('trim head 1.5 s (idle)')")
    page.wait_for_selector("[data-trim='start'][aria-pressed='true']")
    assert page.locator("[data-trim='stop'][aria-pressed='false']").count() == 1
    page.keyboard.press("}")
    page.wait_for_selector("[data-trim='stop'][aria-pressed='true']")
    page.click("[data-trim='start']")
    page.wait_for_selector("[data-trim='start'][aria-pressed='false']")
