"""Every example in README.md and docs/ runs, on datasets at the paths that the examples use."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from demoreel.testing import make_dataset
from support.command import run_here
from support.hub_server import HubServer
from support.s3_server import S3Server

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#]+)(#[^)]*)?\)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; ``line`` is where its content begins."""

    language: str
    text: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(match[1], match[2], text.count("\n", 0, match.start()) + 2)
        for match in FENCE.finditer(text)
    ]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the datasets of the examples in it."""
    folder = tmp_path_factory.mktemp("docs")
    for path in ("path/to/dataset", "home/me/my_task"):
        make_dataset(
            folder / path,
            episodes=[40, 30, 50, 35],
            cameras={"observation.images.front": (96, 128), "observation.images.wrist": (64, 64)},
            tasks=("pick the red cube", "push the blue block"),
        )
    commands = folder / "bin"
    commands.mkdir()
    (commands / "demoreel").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m demoreel "$@"\n')
    (commands / "demoreel").chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def hub(world: Path) -> Iterator[HubServer]:
    """A Hub on loopback with a dataset that the examples fetch."""
    with HubServer(world / "hub server") as server:
        server.seed("lerobot/pusht", world / "path/to/dataset", tag="v3.0")
        yield server


@pytest.fixture
def here(world: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(world)
    for name, value in hub.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HF_LEROBOT_HOME", str(world / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(world / "cache"))
    return world


@pytest.fixture
def store(here: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """An S3 server with the dataset of the examples at s3://robots/my_task."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    if not s3.list("my_task"):
        s3.upload(here / "path/to/dataset", "my_task")
    return s3


def name_of(page: Path) -> str:
    return page.name


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_say_what_they_are(page):
    """A block is run (python, bash) or is not meant to be (text)."""
    assert page.read_text().count("```") == 2 * len(blocks_of(page))
    assert {block.language for block in blocks_of(page)} <= {"python", "bash", "text"}


@pytest.mark.parametrize(
    "page", [p for p in PAGES if any(b.language == "python" for b in blocks_of(p))], ids=name_of
)
def test_python_examples(page, here, request):
    """In order, sharing their names within a page."""
    if any("s3://" in block.text for block in blocks_of(page) if block.language == "python"):
        request.getfixturevalue("store")
    names: dict[str, Any] = {"__name__": "example"}
    for block in blocks_of(page):
        if block.language == "python":
            at_its_line = "\n" * (block.line - 1) + block.text
            exec(compile(at_its_line, str(page), "exec"), names)


def commands() -> list[Any]:
    lines = [
        (page, line)
        for page in PAGES
        for block in blocks_of(page)
        if block.language == "bash"
        for line in block.text.splitlines()
    ]
    # The page of all verbs says little that the guides do not try.
    soak = {"cli.md": pytest.mark.soak}
    return [
        pytest.param(line, id=f"{page.name}: {line}", marks=soak.get(page.name, ()))
        for page, line in lines
    ]


@pytest.mark.parametrize("line", commands())
def test_commands(line, here, tmp_path, request, monkeypatch):
    """Each as it stands; in a shell, where `demoreel` is this one, if it needs one."""
    if "s3://" in line:
        request.getfixturevalue("store")
    assert line.startswith("demoreel "), "a bash block holds demoreel commands; others are text"
    (tmp_path / "path").symlink_to(here / "path")
    monkeypatch.chdir(tmp_path)
    if not set(re.sub(r"\"[^\"]*\"|'[^']*'|&&", "", line)) & set("|&;<>()$*?~`{"):
        for part in line.split(" && "):
            done = run_here(*shlex.split(part)[1:])
            assert done.returncode == 0, done.stderr
        return
    path = f"{here / 'bin'}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    shell = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, check=False)
    assert shell.returncode == 0, shell.stderr.decode()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for match in LINK.finditer(page.read_text()):
        target = match[1]
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target
