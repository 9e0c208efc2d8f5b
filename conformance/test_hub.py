"""demoreel and lerobot on one Hub: what either pushes and fetches, the other reads.

The Hub is `support.hub_server`, on loopback; lerobot talks to it with the huggingface_hub
of its own environment (1.x), demoreel with that of this one (2.x).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from asking_lerobot import FIXTURES, Answers, Asked, same_as_answered, same_item
from recorded import recorded, resumed

import demoreel
from demoreel.errors import DatasetNotFoundError
from demoreel.testing import make_dataset
from demoreel.torch import LeRobotDataset, LeRobotDatasetMetadata, StreamingLeRobotDataset
from support.hub_server import HubServer

FRONT, WRIST = "observation.images.front", "observation.images.wrist"
PART = [2, 1]  # the episodes that are fetched of the dataset of that name
PUSHED = ("cameras", "recorded", "g1_v30", "kitchen_v30")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    """A Hub to which this process's environment leads."""
    folder = tmp_path_factory.mktemp("hub")
    with HubServer(folder / "server") as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        patch.setenv("HF_LEROBOT_HOME", str(folder / "fetched by demoreel"))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv("DEMOREEL_CACHE", str(folder / "cache"))
        yield server


@pytest.fixture(scope="module")
def roots(hub: HubServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of the datasets that demoreel has pushed, by name."""
    folder = tmp_path_factory.mktemp("pushed")
    make_dataset(
        folder / "cameras",
        episodes=[5, 33, 1, 12],
        cameras={FRONT: (96, 128), WRIST: (64, 80)},
        gop=10,
        data_files_size_in_mb=0.005,
        video_files_size_in_mb=0.01,
        tasks=["push the block", "抓起杯子"],
    )
    recorded("h264", finish=True)(folder / "recorded")
    found = {"cameras": folder / "cameras", "recorded": folder / "recorded"}
    found |= {name: FIXTURES / name for name in PUSHED[2:] if (FIXTURES / name).is_dir()}
    found["part"] = folder / "cameras"
    for name, root in found.items():
        demoreel.push(root, f"me/{name}")
    return found


def root_of(roots: dict[str, Path], name: str) -> Path:
    if name not in roots:
        pytest.skip(f"{FIXTURES / name} does not exist")
    return roots[name]


def reading(name: str, **kwargs: Any) -> dict[str, Any]:
    return {
        "do": "read",
        "repo_id": f"me/{name}",
        "kwargs": {
            "return_uint8": True,
            **kwargs,
            **({"episodes": PART} if name == "part" else {}),
        },
        "indices": {"step": 97 if name == "g1_v30" else 5 if name == "kitchen_v30" else 1},
    }


def client(home: Path, *, offline: bool = False) -> dict[str, str]:
    """What a process needs to keep what it fetches in this folder."""
    return {
        "HF_HOME": str(home.with_name(home.name + " (client)")),
        "HF_LEROBOT_HOME": str(home),
        "HF_HUB_OFFLINE": str(int(offline)),
    }


@pytest.fixture(scope="module")
def home_of_lerobot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fetched") / "by lerobot"


@pytest.fixture(scope="module")
def by_lerobot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a dataset that lerobot has recorded, and pushes."""
    folder = tmp_path_factory.mktemp("by lerobot") / "kitchen"
    if not (FIXTURES / "kitchen_v30").is_dir():
        pytest.skip(f"{FIXTURES} does not exist")
    return Path(shutil.copytree(FIXTURES / "kitchen_v30", folder))


@pytest.fixture(scope="module")
def answers(
    lerobot_python: str,
    hub: HubServer,
    roots: dict[str, Path],
    by_lerobot: Path,
    home_of_lerobot: Path,
) -> dict[str, Answers]:
    """What lerobot, with an empty cache, reads of what demoreel has pushed; it pushes, too."""
    card = {"tags": ["arm"], "license": "mit"}
    pushes = {
        name: {"do": "push", "repo_id": f"me/{name}", "root": str(by_lerobot), "kwargs": card}
        for name in ("by_lerobot", "continued")
    }
    jobs = pushes | {name: reading(name) for name in roots}
    return Asked(lerobot_python, jobs, client(home_of_lerobot)).answers()


# ── What demoreel pushes ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", PUSHED)
def test_lerobot_reads_what_demoreel_has_pushed(
    roots: dict[str, Path], answers: dict[str, Answers], name: str
) -> None:
    ours = LeRobotDataset(f"me/{name}", root_of(roots, name), return_uint8=True)
    same_as_answered(ours, answers[name])
    meta = answers[name]["meta"]
    assert answers[name]["revision"] == "v3.0"
    assert meta["tasks"] == list(ours.meta.tasks.index)
    assert meta["lengths"] == ours.meta.episodes["length"]
    assert set(meta["stats"]) == set(ours.meta.stats or ())


def test_lerobot_fetches_some_episodes(roots: dict[str, Path], answers: dict[str, Answers]) -> None:
    ours = LeRobotDataset("me/part", roots["part"], episodes=PART, return_uint8=True)
    same_as_answered(ours, answers["part"])


@pytest.mark.parametrize("name", [*PUSHED, "part"])
def test_what_lerobot_has_fetched_is_opened_without_a_request(
    hub: HubServer,
    roots: dict[str, Path],
    answers: dict[str, Answers],
    home_of_lerobot: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    root_of(roots, name)
    monkeypatch.setenv("HF_LEROBOT_HOME", str(home_of_lerobot))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.reset_log()
    episodes = PART if name == "part" else None
    ours = LeRobotDataset(f"me/{name}", episodes=episodes, return_uint8=True)
    same_as_answered(ours, answers[name])
    assert str(ours.root) == answers[name]["root"]
    if name == "part":
        with pytest.raises(DatasetNotFoundError, match="HF_HUB_OFFLINE"):
            LeRobotDataset("me/part")
    assert hub.requests == 0


def test_streaming_gives_the_items_of_lerobots_map_style_dataset(
    answers: dict[str, Answers],
) -> None:
    """lerobot's own streaming (0.6.1) does not: it was tried on the same data.

    It takes a frame's number in the dataset for its place in a video file, and ends with an
    IndexError where there are several. Where there is one, `episodes=` is not heeded, and
    `shuffle=False` gives the frames in random order.
    """
    expected = answers["cameras"]
    for shuffle in (True, False):
        ours = StreamingLeRobotDataset("me/cameras", shuffle=shuffle, return_uint8=True)
        order = []
        for item in ours:
            order.append(int(item["index"]))
            same_item(item, expected["items"][str(order[-1])], f"item {order[-1]}")
        assert sorted(order) == list(range(expected["len"]))
        assert shuffle == (order != sorted(order))


# ── What demoreel fetches ─────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def ours(hub: HubServer, roots: dict[str, Path]) -> dict[str, LeRobotDataset]:
    """The datasets that demoreel has fetched from the Hub into an empty cache."""
    found = {}
    for name in roots:
        episodes = PART if name == "part" else None
        found[name] = LeRobotDataset(f"me/{name}", episodes=episodes, return_uint8=True)
        assert LeRobotDatasetMetadata(f"me/{name}", revision="main").root == found[name].root
    return found


@pytest.fixture(scope="module")
def longer(by_lerobot: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """lerobot's dataset with more episodes, which demoreel has recorded."""
    folder = tmp_path_factory.mktemp("longer") / "kitchen"
    resumed(by_lerobot)(folder)
    return folder


@dataclass(frozen=True)
class Again:
    """What lerobot answers with the cache that demoreel has filled, on line and off line.

    Off line it wants to be told a branch. For the tag of a version it asks the Hub which tags there
    are; and its huggingface_hub (1.33) asks for the list of a commit's files unless it is cached.
    """

    answers: dict[str, dict[str, Answers]]
    fetched: list[str]


@pytest.fixture(scope="module")
def again(
    lerobot_python: str,
    hub: HubServer,
    ours: dict[str, LeRobotDataset],
    answers: dict[str, Answers],
    longer: Path,
) -> Again:
    demoreel.push(longer, "me/continued")
    home = ours["cameras"].root.parents[3]
    hub.reset_log()
    jobs = {name: reading(name) for name in (*ours, "continued")}
    of_a_branch = {name: reading(name, revision="main") for name in ours}
    copied = shutil.copytree(home, home.with_name(f"{home.name}, copied"), symlinks=True)
    asked = {
        "on line": Asked(lerobot_python, jobs, client(home)),
        "off line": Asked(lerobot_python, of_a_branch, client(copied, offline=True)),
    }
    found = {how: process.answers() for how, process in asked.items()}
    return Again(found, [entry.path for entry in hub.log if entry.route == "resolve"])


@pytest.mark.parametrize("how", ["on line", "off line"])
@pytest.mark.parametrize("name", [*PUSHED, "part"])
def test_lerobot_opens_what_demoreel_has_fetched(
    ours: dict[str, LeRobotDataset],
    roots: dict[str, Path],
    again: Again,
    name: str,
    how: str,
) -> None:
    root_of(roots, name)
    expected = again.answers[how][name]
    same_as_answered(ours[name], expected)
    assert Path(expected["root"]).name == ours[name].root.name


def test_lerobot_fetches_nothing_again(again: Again) -> None:
    assert not [path for path in again.fetched if "/me/continued/" not in path]
    assert again.fetched


# ── What lerobot pushes ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["fetched", "streamed", "by its URI"])
def test_demoreel_opens_what_lerobot_has_pushed(
    hub: HubServer, answers: dict[str, Answers], by_lerobot: Path, how: str
) -> None:
    assert answers["by_lerobot"] == {}, answers["by_lerobot"]
    options: dict[str, Any] = {"return_uint8": True, "delta_timestamps": {FRONT: [-0.1, 0.0]}}
    if how == "by its URI":
        found = LeRobotDataset("hf://datasets/me/by_lerobot", **options)
    else:
        found = LeRobotDataset("me/by_lerobot", stream=how == "streamed", **options)
    expected = LeRobotDataset("me/by_lerobot", by_lerobot, **options)
    same_datasets(found, expected)


def same_datasets(found: LeRobotDataset, expected: LeRobotDataset) -> None:
    import torch

    assert (len(found), found.num_episodes) == (len(expected), expected.num_episodes)
    batch = range(0, len(expected), 7)
    for item, wanted in zip(
        found.__getitems__(list(batch)), expected.__getitems__(list(batch)), strict=True
    ):
        assert set(item) == set(wanted)
        for key, value in wanted.items():
            equal = torch.equal if isinstance(value, torch.Tensor) else lambda a, b: a == b
            assert equal(item[key], value), key


def test_pushing_onto_what_lerobot_has_pushed(hub: HubServer, longer: Path, again: Again) -> None:
    before = hub.read("me/by_lerobot", "README.md").decode().replace("by_lerobot", "continued")
    after = hub.read("me/continued", "README.md").decode()
    for line in before.split("---", 2)[2].splitlines():
        assert line in after
    assert "license: mit" in after
    assert "- arm" in after
    assert hub.refs("me/continued")["tags"]["v3.0"] == hub.commits("me/continued")[0].oid
    same_as_answered(
        LeRobotDataset("me/continued", longer, return_uint8=True),
        again.answers["on line"]["continued"],
    )
