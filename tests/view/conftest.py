"""A viewer that runs in this process, and a browser that drives it."""

from __future__ import annotations

import http.cookiejar
import json
import os
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from demoreel.view.server import RunningViewer

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@dataclass
class Client:
    """Asks a viewer as a page does: with its cookie."""

    address: str
    opener: urllib.request.OpenerDirector

    @property
    def root(self) -> str:
        parts = urlsplit(self.address)
        return f"{parts.scheme}://{parts.netloc}"

    def ask(self, path: str, **headers: str) -> tuple[int, bytes, Any]:
        request = urllib.request.Request(self.root + path, headers=headers)
        try:
            with self.opener.open(request) as answer:
                return answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, error.read(), error.headers

    def send(self, method: str, path: str, value: Any, **headers: str) -> tuple[int, Any]:
        """Send JSON, with the origin that a page has."""
        sent = {"Origin": self.root, **headers}
        request = urllib.request.Request(
            self.root + path, json.dumps(value).encode(), sent, method=method
        )
        try:
            with self.opener.open(request) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            data = error.read()
            is_json = data.startswith(b"{")
            return error.code, json.loads(data) if is_json else {"message": data.decode()}

    def put(self, revision: object, episodes: object) -> tuple[int, Any]:
        """Save a draft of the first dataset."""
        value = {"revision": revision, "episodes": episodes}
        return self.send("PUT", f"{self.first}/draft", value)

    def json(self, path: str) -> Any:
        status, data, _ = self.ask(path)
        assert status == 200, data
        return json.loads(data)

    @property
    def first(self) -> str:
        """The API's address of the first dataset."""
        return f"/api/d/{self.json('/api/datasets')['datasets'][0]['id']}"


@pytest.fixture
def serve() -> Iterator[Callable[..., RunningViewer]]:
    """A function that starts a viewer of datasets."""
    running: list[tuple[RunningViewer, threading.Thread]] = []

    def start(*places: Path | str, **options: Any) -> RunningViewer:
        viewer = RunningViewer([str(place) for place in places], **options)
        thread = threading.Thread(target=viewer.serve)
        thread.start()
        running.append((viewer, thread))
        return viewer

    yield start
    for viewer, thread in running:
        viewer.stop()
        thread.join()


@pytest.fixture
def ask(serve: Callable[..., RunningViewer]) -> Callable[..., Client]:
    """A function that starts a viewer of datasets, and returns a client that has its cookie."""

    def start(*places: Path | str, **options: Any) -> Client:
        viewer = serve(*places, **options)
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        client = Client(viewer.address, urllib.request.build_opener(cookies))
        status, _, _ = client.ask(f"/?token={viewer.token}")
        assert status == 200
        return client

    return start


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A real browser."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("there is no browser: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium's own sandbox needs rights that containers lack; the pages are our own.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=program, args=options)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page whose errors fail the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 720})
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))

    def hear(said: Any) -> None:
        # The browser tells of each answer that is an error; tests of damaged datasets have some.
        if said.type in ("error", "warning") and "Failed to load resource" not in said.text:
            problems.append(said.text)

    page.on("console", hear)
    yield page
    context.close()
    assert problems == []
