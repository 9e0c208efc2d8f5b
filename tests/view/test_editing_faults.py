"""Editing where something goes wrong: hostile changes, kills, cancelled work, no rights."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
from contextlib import contextmanager

import pytest

import demoreel
from demoreel.cli import main
from demoreel.testing import make_dataset
from demoreel.view.server import Viewer

MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return make_dataset(tmp_path / "ds", episodes=(20, 30, 10), cameras=1)


@contextmanager
def own_process(root, port: int = 0):
    """A viewer in a process of its own; yields the process, and the address that it prints."""
    command = [sys.executable, "-m", "demoreel", "view", str(root), "--no-browser"]
    process = subprocess.Popen(
        [*command, "--port", str(port)], stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), address
        yield process, address
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


# Writing is off


HARMLESS = {
    "/api/jobs/{number:int}/cancel": "ends work, and writes nothing",
    "/api/predictions": "keeps a file that a person chose in memory",
    "/api/d/{id}/check": "reads, and keeps what it found in memory",
}


def test_read_only_refuses_every_route_that_writes(ask, root, tmp_path):
    """A route that is added is refused, or stands above with the reason why it need not be."""
    client = ask(root, read_only=True)
    before = {path: path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*"))}
    app = Viewer([str(root)], {}, read_only=True).app("token", None)
    writing = [
        (method, route.path)
        for route in app._app.routes
        for method in (route.methods or ()) - {"GET", "HEAD"}
    ]
    assert {path for _, path in writing} >= {"/api/d/{id}/draft", "/api/d/{id}/render"}
    assert HARMLESS.keys() <= {path for _, path in writing}
    for method, path in writing:
        if path in HARMLESS:
            continue
        where = path.replace("/api/d/{id}", client.first)
        for value in ({}, {"revision": 0, "episodes": {}, "target": "x"}, {"in_place": True}):
            status, answer = client.send(method, where, value)
            assert (status, "read-only" in answer["message"]) == (400, True), path
    assert {path: path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*"))} == before


def test_a_read_only_page_changes_nothing(page, serve, root, tmp_path):
    viewer = serve(root, read_only=True)
    page.goto(viewer.address)
    page.wait_for_selector("[data-episode='2']")
    page.keyboard.press("Enter")
    page.wait_for_selector("main[data-shown='0']")
    for key in "gx[k":
        page.keyboard.press(key)
    assert page.text_content(".draft") == "no changes"
    page.keyboard.press("c")
    assert "read-only" in page.text_content("dialog.wide")
    assert page.locator("dialog >> text=Write a new dataset").count() == 0
    assert not (tmp_path / "state").exists()


# Hostile changes


def rows(**more):
    return [{"frame": 0, "style": "subtask", "content": "x", **more}]


HOSTILE = {
    "no object": [],
    "no changes": {"0": None},
    "an episode that is not there": {"77": {"deleted": True}},
    "a negative episode": {"-1": {"deleted": True}},
    "an episode beyond all": {"9" * 14: {"deleted": True}},
    "a frame beyond all": {"0": {"start": 10**18}},
    "a frame that fits no type": {"0": {"stop": 10**400}},
    "an infinite frame": {"0": {"stop": float("inf")}},
    "a frame that is none": {"0": {"start": float("nan")}},
    "splits beyond all": {"0": {"splits": [10**30]}},
    "splits of splits": {"0": {"splits": [[1]]}},
    "a huge score": {"0": {"score": 10**400}},
    "a score of NaN": {"0": {"score": float("nan")}},
    "a score that is a truth": {"0": {"score": True}},
    "a flag of markup": {"0": {"flag": MARKUP}},
    "success by text": {"0": {"success": "yes"}},
    "rows at a frame beyond all": {"0": {"persistent": rows(frame=10**400)}},
    "rows at a negative frame": {"0": {"events": rows(frame=-1)}},
    "rows that are nested": {"0": {"events": [[[[]]]]}},
    "half a letter in a role": {"0": {"events": rows(role="\ud800")}},
    "half a letter in a call": {"0": {"events": rows(tool_calls=[{"a": "\ud800"}])}},
    "a number that no file holds": {"0": {"events": rows(tool_calls=[float("nan")])}},
    "too long a text": {"0": {"persistent": rows(content="x" * 20_000)}},
    "too long a call": {"0": {"events": rows(tool_calls=["x" * 20_000])}},
    "too many rows": {"0": {"persistent": rows() * 20_000}},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_draft_is_refused_and_the_server_goes_on(ask, root, name):
    client = ask(root)
    status, answer = client.put(0, HOSTILE[name])
    assert status in (400, 404), answer
    assert answer["message"]
    assert client.json(f"{client.first}/draft")["episodes"] == {}
    assert client.put(0, {"0": {"deleted": True}})[0] == 200


@pytest.mark.parametrize("revision", [None, "0", -1, 10**400, [], True])
def test_a_revision_that_is_none_saves_nothing(ask, root, revision):
    client = ask(root)
    assert client.put(revision, {"0": {"deleted": True}})[0] == 409
    assert client.json(f"{client.first}/draft")["episodes"] == {}


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_no_damaged_draft_file_ends_the_server(ask, root, tmp_path, seed):
    """A draft's file may hold anything; the page says so, and other datasets are shown."""
    client, luck = ask(root), random.Random(seed)
    change = {"persistent": rows(), "events": rows(frame=3), "score": 3, "splits": [4]}
    assert client.put(0, {"0": {"start": 2, **change}})[0] == 200
    (path,) = (tmp_path / "state" / "demoreel" / "drafts").iterdir()
    whole = path.read_bytes()
    values = [None, [], "x", -1, 10**30, 1.5, {}, True, MARKUP]
    for _ in range(40):
        draft = json.loads(whole)
        part = luck.choice([draft, draft["made_for"], draft["episodes"], draft["episodes"]["0"]])
        key = luck.choice(list(part))
        part[key] = luck.choice(values)
        path.write_text(json.dumps(draft))
        for asked in ("/draft", "/cutlist", "/episodes"):
            status, data, _ = client.ask(client.first + asked)
            assert status in (200, 400, 404, 422), (draft, data)
        assert main(["episodes", str(root), "--quiet"]) == 0
    path.write_bytes(whole)
    assert client.json(f"{client.first}/draft")["episodes"]["0"]["start"] == 2


def test_markup_in_changes_and_labels_is_text(page, serve, ask, root, tmp_path):
    client = ask(root)
    said = {"persistent": rows(content=MARKUP, style=MARKUP), "events": rows(content=MARKUP)}
    assert client.put(0, {"0": {"task": MARKUP, **said}})[0] == 200
    page.on("dialog", lambda dialog: pytest.fail("markup was run"))
    page.goto(serve(root).address)
    page.wait_for_selector("[data-episode='0']")
    page.keyboard.press("Enter")
    page.wait_for_selector("main[data-shown='0']")
    page.wait_for_selector(".span")
    assert page.text_content(".span").endswith(MARKUP)
    page.keyboard.press("c")
    assert MARKUP in page.text_content("dialog .changes")
    assert page.locator("main img, dialog img, #facts img").count() == 0
    page.fill("dialog input[type=text]", str(tmp_path / "made"))
    page.click("text=Write a new dataset")
    page.wait_for_selector("dialog [role=status]:has-text('made')")
    page.goto(serve(tmp_path / "made").address)
    page.wait_for_selector("[data-episode='0']")
    page.keyboard.press("Enter")
    page.wait_for_selector("main[data-shown='0']")
    page.wait_for_selector(".span")
    assert MARKUP in page.text_content("#facts")
    assert page.locator("main img, #facts img").count() == 0


# Killed


def test_a_draft_survives_a_kill_while_it_is_saved(root, ask, tmp_path):
    """What was answered as saved is there; what was being saved is there whole, or not at all."""
    acknowledged = 0
    with own_process(root) as (process, address):
        client = ask(root)  # only for its opener
        client.address = address
        client.ask(f"/?{address.partition('?')[2]}")
        timer = threading.Timer(0.5, process.kill)
        timer.start()
        try:
            while True:
                task = f"{acknowledged + 1} " + "x" * 5000
                status, draft = client.put(acknowledged, {"1": {"task": task}})
                assert status == 200
                acknowledged = draft["revision"]
        except (OSError, urllib.error.URLError):
            pass
        timer.join()
        assert process.wait() == -signal.SIGKILL
    assert acknowledged > 0
    again = ask(root)
    draft = again.json(f"{again.first}/draft")
    assert draft["revision"] in (acknowledged, acknowledged + 1)
    assert draft["episodes"]["1"]["task"].split()[0] == str(draft["revision"])


@pytest.mark.soak
def test_a_tab_keeps_what_a_killed_server_did_not_save(page, root):
    port = free_port()
    with own_process(root, port) as (process, address):
        page.goto(address)
        page.wait_for_selector("[data-episode='2']")
        page.keyboard.press("Enter")
        page.wait_for_selector("main[data-shown='0']")
        page.keyboard.press("g")
        page.wait_for_selector(".draft:has-text('1 change')")
        page.wait_for_function("() => sessionStorage.length === 0")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        page.keyboard.press("4")
        page.wait_for_selector(".draft.bad:has-text('not saved')")
    with own_process(root, port) as (_, address):
        page.goto(address)
        page.wait_for_selector("[data-episode='2']")
        page.keyboard.press("Enter")
        page.wait_for_selector("[data-mark='flag good'][aria-pressed='true']")
        page.wait_for_selector("[data-score='4'][aria-pressed='true']")
        page.wait_for_function("() => sessionStorage.length === 0")


# Cancelled


def test_what_a_cancelled_render_leaves_is_listed_and_removed(ask, root, tmp_path, monkeypatch):
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
    assert begun.wait(30)
    client.send("POST", f"/api/jobs/{job['id']}/cancel", {})
    go.set()
    while job["state"] == "running":
        time.sleep(0.02)
        job = client.json(f"/api/jobs/{job['id']}")
    assert job["state"] == "cancelled"
    found = demoreel.clean(tmp_path, dry_run=True)
    assert [(each.kind, each.resumable) for each in found.removed] == [("cut", True)]
    (left,) = found.removed
    assert left.path.parent == tmp_path
    assert left.path.name.startswith(".")
    assert demoreel.clean(tmp_path).removed
    assert not left.path.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ds", "state"]
    assert len(demoreel.open(root)) == 60
