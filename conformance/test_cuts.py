"""What lerobot reads from cuts: frame by frame, what the sources hold. `make conformance` runs it.

Every kind of cut is rendered as v3.0 from small sources, and lerobot opens it, with both of its
decoders. Its images must be those that demoreel decodes from the sources, bit for bit.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot_answers import describe

import demoreel
from demoreel.edit.cut import Cut
from demoreel.testing import make_dataset
from demoreel.torch import LeRobotDataset

HERE = Path(__file__).resolve().parent
LEROBOT_PYTHON = os.environ.get("DEMOREEL_LEROBOT_PYTHON")

FPS = 20
FRONT, WRIST = "observation.images.front", "observation.images.wrist"
CAMERAS = {FRONT: (64, 96), WRIST: (64, 64)}
NUMBERED = ("index", "episode_index", "frame_index", "timestamp", "task_index", "task")
BACKENDS = ("torchcodec", "pyav")

# Groups of images that clips begin inside of, with images that are shown before their keyframe.
SOURCES: dict[str, dict[str, Any]] = {
    "plain": {"episodes": [14, 9, 11], "gop": 6, "tasks": ("pick", "place")},
    "b_frames": {"episodes": [12, 10], "gop": 8, "b_frames": 2},
    "open_gop": {
        "episodes": [13, 12],
        "codec": "hevc",
        "gop": 5,
        "b_frames": 2,
        "open_gop": True,
    },
    "av1": {"episodes": [9, 8], "codec": "av1", "gop": 4},
    "v21": {"episodes": [7, 6], "layout": "v2.1", "gop": 3},
}


@dataclass(frozen=True)
class Edit:
    """A cut, by name.

    Attributes:
        make: Makes it of the folder of the sources.
        renamed: Names in the source of features that have new ones.
        added: Features that only the result has.
        tasks: The task of each frame of each clip; None where it is the source's.
        backends: The decoders that lerobot is asked to use.
        form: How it is rendered.
        every: Which frames of a clip are left, where that is fewer a second.
        encoded: Whether images are re-encoded; they are compared with the result's then.
    """

    make: Callable[[Path], Cut]
    renamed: Mapping[str, str] = field(default_factory=dict)
    added: tuple[str, ...] = ()
    tasks: tuple[str, ...] | None = None
    backends: tuple[str, ...] = BACKENDS
    form: Mapping[str, Any] = field(default_factory=dict)
    every: int = 1
    encoded: bool = False


def of(name: str, change: Callable[[Cut], Cut]) -> Callable[[Path], Cut]:
    return lambda folder: change(demoreel.cut(folder / name))


def reordered(folder: Path) -> Cut:
    """A dataset whose features stand in another order, merged behind the first."""
    turned = demoreel.cut(folder / "plain").rename({"action": "x"}).rename({"x": "action"})
    return demoreel.cut(folder / "b_frames").merge(turned, folder / "v21", folder / "av1")


def from_lance(folder: Path) -> Cut:
    demoreel.convert(folder / "b_frames", folder / "lance", to="lance-video")
    return demoreel.cut(folder / "lance").delete(0).trim(1, 3)


EDITS = {
    "deleted": Edit(of("plain", lambda cut: cut.delete(1))),
    "trimmed": Edit(of("plain", lambda cut: cut.trim(0, 4, 11).trim(2, 0.35))),
    "trimmed_b_frames": Edit(of("b_frames", lambda cut: cut.trim(0, 5, 11).trim(1, 3, 4))),
    # Of such a video, its source too, lerobot's torchcodec finds only some frames where it seeks.
    "trimmed_open_gop": Edit(
        of("open_gop", lambda cut: cut.trim(0, 7, 12).trim(1, 4)), backends=("pyav",)
    ),
    "trimmed_av1": Edit(of("av1", lambda cut: cut.trim(0, 2, 7).trim(1, 1))),
    "merged": Edit(reordered),
    "split": Edit(of("plain", lambda cut: cut.split({"a": 0.34, "b": 0.66})["b"])),
    "retasked": Edit(
        of("plain", lambda cut: cut.retask({"pick": "take"}).retask({2: "drop"})),
        tasks=("take", "place", "drop"),
    ),
    "features": Edit(
        of(
            "plain",
            lambda cut: (
                cut.remove(WRIST)
                .rename({"action": "actions", FRONT: "observation.images.eye"})
                .add("reward", np.linspace(0, 1, 34, dtype=np.float32))
            ),
        ),
        renamed={"actions": "action", "observation.images.eye": FRONT},
        added=("reward",),
    ),
    "reordered": Edit(of("plain", lambda cut: cut.keep([2, 0, 2]))),
    "selected": Edit(of("plain", lambda cut: cut.select("length > 9", order_by="length"))),
    "from_v21": Edit(of("v21", lambda cut: cut.trim(0, 2))),
    "from_lance": Edit(from_lance),
    "exact": Edit(
        of("b_frames", lambda cut: cut.trim(0, 5, 11).trim(1, 3)),
        form={"exact": True},
        encoded=True,
    ),
    "slower": Edit(
        of("plain", lambda cut: cut.trim(0, 3)),
        form={"fps": FPS / 2, "vcodec": "h264"},
        every=2,
        encoded=True,
    ),
    "reencoded": Edit(
        of("open_gop", lambda cut: cut.trim(0, 3)),
        form={"vcodec": "h264", "gop": 3, "cameras": [FRONT]},
        encoded=True,
        backends=("pyav",),
    ),
}


@dataclass(frozen=True)
class Rendered:
    """A cut that was rendered, and what lerobot answers about it."""

    cut: Cut
    root: Path
    answers: dict[str, Any]

    def case(self, number: int) -> dict[str, Any]:
        assert "error" not in self.answers, f"lerobot cannot open it: {self.answers['error']}"
        case: dict[str, Any] = self.answers["cases"][number]
        assert "error" not in case, f"lerobot cannot open it: {case['error']}"
        return case


@pytest.fixture(scope="session")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rendered]:
    """Render all cuts, and ask lerobot about all of them in one process."""
    if not LEROBOT_PYTHON:
        pytest.skip("DEMOREEL_LEROBOT_PYTHON is not set: run `make conformance`")
    scratch = tmp_path_factory.mktemp("cuts")
    for name, options in SOURCES.items():
        make_dataset(scratch / name, cameras=CAMERAS, fps=FPS, **options)
    cuts = {name: edit.make(scratch) for name, edit in EDITS.items()}
    for name, cut in cuts.items():
        cut.render(scratch / "made" / name, **EDITS[name].form)
    jobs = [
        {
            "name": name,
            "root": str(scratch / "made" / name),
            "cases": [
                {"kwargs": {"return_uint8": True, "video_backend": backend}}
                for backend in edit.backends
            ],
        }
        for name, edit in EDITS.items()
    ]
    (scratch / "jobs.json").write_text(json.dumps(jobs))
    subprocess.run(
        [
            *(LEROBOT_PYTHON, HERE / "lerobot_answers.py"),
            *("--jobs", scratch / "jobs.json", scratch / "answers.json"),
        ],
        check=True,
    )
    answers = json.loads((scratch / "answers.json").read_text())["datasets"]
    return {
        name: Rendered(cut, scratch / "made" / name, answers[name]) for name, cut in cuts.items()
    }


@pytest.mark.parametrize(
    ("name", "backend"), [(name, one) for name, edit in EDITS.items() for one in edit.backends]
)
def test_lerobot_reads_what_the_sources_hold(
    rendered: dict[str, Rendered], name: str, backend: str
) -> None:
    made, edit = rendered[name], EDITS[name]
    answers = made.case(edit.backends.index(backend))
    clips = made.cut.clips
    assert answers["num_episodes"] == len(clips)
    index = 0
    for number, clip in enumerate(clips):
        source = opened(made.cut.cutlist.sources[clip.source].path)
        first = int(source.reader.episodes.start[clip.episode])
        items = source.__getitems__(range(first + clip.start, first + clip.stop, edit.every))
        for frame, item in enumerate(items):
            found = answers["items"][str(index)]
            assert "error" not in found, f"item {index}: {found['error']}"
            same_frame(found, item, edit, f"item {index}")
            numbers = {"index": index, "episode_index": number, "frame_index": frame}
            assert {key: found[key]["value"] for key in numbers} == numbers
            assert found["timestamp"]["value"] == pytest.approx(frame * edit.every / FPS, abs=1e-6)
            task = item["task"] if edit.tasks is None else edit.tasks[number]
            assert found["task"] == {"python": task}
            index += 1
    assert answers["len"] == index


def same_frame(found: dict[str, Any], item: dict[str, Any], edit: Edit, where: str) -> None:
    """What lerobot found is the source's frame: every image and number that is not renumbered."""
    other = (*NUMBERED, *edit.added, *(CAMERAS if edit.encoded else ()))
    own = {key for key in found if key not in other}
    origin = {key: edit.renamed.get(key, key) for key in own}
    assert set(origin.values()) <= set(item), where
    for key, old in origin.items():
        assert found[key] == describe(item[old]), f"{where}, {key}"


@pytest.mark.parametrize("name", EDITS)
def test_demoreel_reads_the_same(rendered: dict[str, Rendered], name: str) -> None:
    """The result's own items, added features and numbers of tasks among them."""
    made = rendered[name]
    dataset = opened(str(made.root))
    items = dataset.__getitems__(range(len(dataset)))
    for index, item in enumerate(items):
        found = made.case(0)["items"][str(index)]
        assert {key: describe(value) for key, value in item.items()} == found, f"item {index}"
    assert list(dataset.meta.tasks.index) == made.answers["meta"]["tasks"]


def opened(path: str) -> LeRobotDataset:
    return LeRobotDataset("conformance/cut", root=path, return_uint8=True)
