"""Small datasets that ask for too much: a tree error or right data, whatever is done with them."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from demoreel.cli.app import make_app
from support.fuzz import make_bases
from support.fuzz.bases import BASES
from support.fuzz.bombs import BOMBS, MEMORY, SECONDS, STORES, bomb_cases, run_bomb
from support.fuzz.entries import uncovered
from support.fuzz.pool import run_each
from support.fuzz.trial import Case

_QUICK = [
    "shape-1e9", "shape-negative", "shape-nested", "shape-of-thousands", "shape-of-true",
    "image-65535", "channels-2e20", "dtype-long", "fps-tiny", "fps-huge", "fps-nan", "fps-text",
    "robot-dict", "robot-half", "key-half", "key-control", "total-huge", "version-list",
    "json-deep", "json-digits", "json-twice", "json-more", "elst-negative", "stsz-many",
    "timescale-zero",
]  # fmt: skip


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_bases(tmp_path_factory.mktemp("bombs") / "bases", ["v3"])


def test_every_way_in_is_tried():
    command = typer.main.get_command(make_app())
    assert uncovered(sorted(command.commands)) == []


def test_a_share_has_every_bomb_entry_and_base():
    chosen = bomb_cases(list(BASES), share=0.0)
    assert {case.base.split("/")[1] for case in chosen} == set(BOMBS)
    assert {case.base.split("/")[0] for case in chosen} == set(BASES)
    assert len(bomb_cases(["v3"])) == len(BOMBS) * len({c.base.split("/")[2] for c in chosen})


@pytest.mark.parametrize("bomb", _QUICK)
def test_opening_one(bases, tmp_path, bomb):
    """What ``open`` makes of it; only metadata and headers are looked at."""
    verdict = run_bomb(Case(f"v3/{bomb}/open", 0), bases, tmp_path)
    assert not verdict.faults, str(verdict)
    assert verdict.outcome["open"] in ("MetadataError", "UnsupportedVersionError", "0 frames")


@pytest.mark.parametrize("bomb", ["shape-1e9", "json-deep", "stsz-many"])
def test_opening_one_in_a_store(bases, tmp_path, bomb):
    verdict = run_bomb(Case(f"v3/{bomb}/open/s3", 0), bases, tmp_path)
    assert not verdict.faults, str(verdict)
    assert verdict.outcome["open"] in ("MetadataError", "0 frames")


@pytest.mark.soak
@pytest.mark.parametrize("store", STORES)
def test_no_bomb_does_harm(tmp_path, store):
    every = make_bases(tmp_path / "bases", ["v3"] if store == "hub" else list(BASES))
    cases = bomb_cases(list(every), share=0.0, store=store)
    if store == "hub":  # a server's start is most of the time
        cases = cases[:12]
    verdicts = list(
        run_each(
            run_bomb, cases, every, tmp_path / "work", processes=2, seconds=SECONDS, memory=MEMORY
        )
    )
    assert len(verdicts) == len(cases)
    bad = [str(verdict) for verdict in verdicts if verdict.faults]
    assert not bad, "\n".join(bad)
