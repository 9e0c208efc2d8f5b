"""What lerobot and demoreel read from the same folders, item by item. `make conformance` runs it.

lerobot wants older packages (PyAV, numpy), so it runs in an environment of its own, once, and
writes down its answers; see `lerobot_answers.py`. The datasets are those that other tools wrote,
where `../shared/fixtures` exists, and those that demoreel writes here. demoreel and lerobot in one
process: `test_beside_lerobot.py`.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot_answers import describe_like
from recorded import close_all, recorded, resumed

import demoreel
from demoreel.testing import make_dataset
from demoreel.torch import (
    LeRobotDataset,
    LeRobotDatasetMetadata,
    LeRobotLanceDataset,
    LeRobotLanceVideoDataset,
)

HERE = Path(__file__).resolve().parent
FIXTURES = Path(os.environ.get("DEMOREEL_FIXTURES") or HERE.parents[1] / "shared" / "fixtures")
LEROBOT_PYTHON = os.environ.get("DEMOREEL_LEROBOT_PYTHON")

Kwargs = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """A dataset that both read.

    Attributes:
        name: What the tests call it.
        cases: Keyword arguments for `LeRobotDataset`, each under a name.
        indices: Which items of each case to compare, as `lerobot_answers.py` understands it.
        write: Writes the dataset into an empty folder; the fixture of that name where it is None.
        referee: The fixture that lerobot reads in its place, for layouts that lerobot refuses.
        opened_with: The class that demoreel reads it with.
        same_pixels: Whether images must be equal, or only of the same type and shape. lerobot's
            own two backends turn 10-bit colour into different pixels.
    """

    name: str
    cases: dict[str, Kwargs]
    indices: Any = "all"
    write: Callable[[Path], object] | None = None
    referee: str | None = None
    opened_with: Callable[..., LeRobotDataset] = LeRobotDataset
    same_pixels: bool = True

    @property
    def answered_as(self) -> str:
        return self.referee or self.name


def frames(fps: float, *offsets: int) -> list[float]:
    """Offsets in frames, as the seconds that `delta_timestamps` takes."""
    return [offset / fps for offset in offsets]


# ── The datasets ──────────────────────────────────────────────────────────────────────────────────


def g1_cases() -> dict[str, Kwargs]:
    camera = "observation.images.cam_high"
    return {
        "uint8": {"return_uint8": True},
        "float": {},
        "windows": {
            "return_uint8": True,
            "delta_timestamps": {
                camera: frames(30, -7, -3, -1, 0),
                "observation.state": frames(30, -1, 0),
                "action": frames(30, *range(16)),
            },
        },
        "windows_past_the_episode": {
            "return_uint8": True,
            "delta_timestamps": {camera: frames(30, -300, 300), "action": frames(30, -300, 0, 300)},
        },
        "windows_of_one_frame": {
            "return_uint8": True,
            "delta_timestamps": {camera: [0.0], "action": [0.0]},
        },
        "episodes": {"return_uint8": True, "episodes": [1, 3]},
        "episodes_out_of_order": {"return_uint8": True, "episodes": [3, 0]},
        "episodes_and_windows": {
            "return_uint8": True,
            "episodes": [2],
            "delta_timestamps": {camera: frames(30, -2, 0, 2), "action": frames(30, 0, 1)},
        },
    }


def kitchen_cases(*extra_cameras: str) -> dict[str, Kwargs]:
    windows = {
        "observation.images.front": frames(10, -2, -1, 0),
        "observation.images.wrist": frames(10, 0, 3),
        "observation.state": frames(10, -1, 0),
        "observation.tactile": frames(10, -1, 0),
        "action": frames(10, 0, 1, 2, 3),
        "next.reward": frames(10, 0, 1),
        "next.done": frames(10, 0, 1),
        "phase": frames(10, -1, 1),
        **{camera: frames(10, -1, 0) for camera in extra_cameras},
    }
    return {
        "uint8": {"return_uint8": True},
        "float": {},
        "windows": {"return_uint8": True, "delta_timestamps": windows},
        "float_windows": {"delta_timestamps": windows},
        "windows_out_of_order": {
            "return_uint8": True,
            "delta_timestamps": {key: frames(10, 3, -2, 3, 0) for key in windows},
        },
        "windows_of_one_frame": {
            "return_uint8": True,
            "delta_timestamps": {key: [0.0] for key in windows},
        },
        "windows_of_columns": {"return_uint8": True, "delta_timestamps": {"action": [0.0, 0.1]}},
        "episodes": {"return_uint8": True, "episodes": [1, 4]},
        "episodes_out_of_order": {"return_uint8": True, "episodes": [4, 0, 2]},
        "episodes_and_windows": {
            "return_uint8": True,
            "episodes": [2, 3],
            "delta_timestamps": windows,
        },
    }


def written_cases(fps: float, *keys: str) -> dict[str, Kwargs]:
    return {
        "uint8": {"return_uint8": True},
        "float": {},
        "windows": {
            "return_uint8": True,
            "delta_timestamps": {key: frames(fps, -3, -1, 0, 2) for key in keys},
        },
        "windows_of_one_frame": {"delta_timestamps": {key: [0.0] for key in keys}},
        "episodes": {"return_uint8": True, "episodes": [2, 1]},
        "episodes_and_windows": {
            "return_uint8": True,
            "episodes": [1],
            "delta_timestamps": {key: frames(fps, -1, 0, 1) for key in keys},
        },
    }


FRONT, WRIST = "observation.images.front", "observation.images.wrist"


def two_cameras_in_many_files(folder: Path) -> None:
    make_dataset(
        folder,
        episodes=[5, 33, 1, 12, 40, 8],
        cameras={FRONT: (96, 128), WRIST: (64, 80)},
        fps=30,
        gop=10,
        data_files_size_in_mb=0.005,
        video_files_size_in_mb=0.02,
        tasks=["push the block", "抓起杯子"],
    )


def one_codec(codec: str, **options: Any) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        make_dataset(
            folder, episodes=[9, 14, 6], cameras={FRONT: (96, 128)}, fps=25, codec=codec, **options
        )

    return write


COLUMNS: dict[str, tuple[str, tuple[int, ...]]] = {
    "action": ("float32", (6,)),
    "scalar.float32": ("float32", (1,)),
    "scalar.float64": ("float64", (1,)),
    "vector.float64": ("float64", (3,)),
    "vector.float16": ("float16", (2,)),
    "scalar.int64": ("int64", (1,)),
    "vector.int64": ("int64", (2,)),
    "vector.int32": ("int32", (4,)),
    "scalar.uint8": ("uint8", (1,)),
    "vector.uint8": ("uint8", (5,)),
    "scalar.bool": ("bool", (1,)),
    "vector.bool": ("bool", (3,)),
    "matrix.float32": ("float32", (4, 3)),
    "matrix.float64": ("float64", (2, 2)),
    "matrix.int64": ("int64", (2, 3)),
    "cube.float32": ("float32", (2, 3, 4)),
    "note": ("string", (1,)),
}


def every_column(folder: Path) -> None:
    make_dataset(
        folder,
        episodes=[4, 7, 5],
        cameras={},
        fps=50,
        features={
            key: {"dtype": dtype, "shape": shape, "names": None}
            for key, (dtype, shape) in COLUMNS.items()
        },
    )


def images_in_tables(folder: Path) -> None:
    make_dataset(
        folder,
        episodes=[6, 3, 8],
        cameras={},
        image_cameras={FRONT: (48, 64), WRIST: (64, 64)},
        fps=10,
    )


DEPTH = "observation.depth.front"


def depth_language_and_changing_tasks(folder: Path) -> None:
    make_dataset(
        folder,
        episodes=[6, 3, 8],
        cameras={FRONT: (64, 96)},
        depth_cameras={DEPTH: (64, 96)},
        language=True,
        tasks=["take it", "ponlo ahí", "抓起杯子"],
        task_changes=True,
        fps=15,
    )


def converted(source: str, to: Any, **options: Any) -> Callable[[Path], None]:
    """Write a Lance dataset from one that was written before it."""

    def write(folder: Path) -> None:
        demoreel.convert(folder.parent / source, folder, to=to, **options)

    return write


def as_lance(source: str, cases: dict[str, Kwargs], **layouts: dict[str, Any]) -> list[Subject]:
    """Return a written dataset's Lance twins, whose items are those of their source."""
    return [
        Subject(
            f"{source}_{name}",
            cases,
            write=converted(source, **options),
            referee=source,
            opened_with=LeRobotLanceDataset
            if options["to"] == "lance-frames"
            else LeRobotLanceVideoDataset,
        )
        for name, options in layouts.items()
    ]


def cut_of(source: str, layout: Any) -> Callable[[Path], None]:
    """Write a cut of a dataset that was written before it."""

    def write(folder: Path) -> None:
        shortened(folder.parent / source).render(folder, layout=layout)

    return write


def edited_in_place(source: str, layout: Any) -> Callable[[Path], None]:
    """Write the same cut as a new version of a Lance dataset."""

    def write(folder: Path) -> None:
        demoreel.cut(folder.parent / source).render(folder, layout=layout)
        shortened(folder).render_in_place()

    return write


def shortened(dataset: Path) -> Any:
    return demoreel.cut(dataset).delete(0).trim(3, 2, 9).retask({1: "another"})


RECORDED = written_cases(20, FRONT, WRIST, "action")
FEW_RECORDED = {case: RECORDED[case] for case in ("uint8", "windows")}
RESUMED = {case: kitchen_cases()[case] for case in ("uint8", "episodes_and_windows")}

CUT = {case: written_cases(30, FRONT, WRIST, "action")[case] for case in ("uint8", "windows")}
VIDEO, NATIVE = {"to": "lance-video"}, {"to": "lance-native"}
G1 = g1_cases()
SUBJECTS = [
    Subject("g1_v30", G1, {"step": 7}),
    Subject("g1_v21", G1, {"step": 7}, referee="g1_v30"),
    *(
        Subject(name, G1, {"step": 7}, referee="g1_v30", opened_with=LeRobotLanceVideoDataset)
        for name in ("g1_lance_video", "g1_lance_native")
    ),
    Subject("kitchen_v30", kitchen_cases("observation.depth.front")),
    Subject("kitchen_images_v30", kitchen_cases()),
    Subject(
        "two_cameras_in_many_files",
        written_cases(30, FRONT, WRIST, "action"),
        write=two_cameras_in_many_files,
    ),
    *(
        Subject(
            name,
            written_cases(25, FRONT, "action"),
            write=one_codec(**options),
            same_pixels=name != "hevc_10_bit",
        )
        for name, options in {
            "h264": {"codec": "h264", "gop": 2},
            "h264_b_frames": {"codec": "h264", "gop": 12, "b_frames": 2},
            "hevc": {"codec": "hevc", "gop": 5},
            "av1": {"codec": "av1", "gop": 2},
            "vp9": {"codec": "vp9", "gop": 4},
            "mpeg4": {"codec": "mpeg4", "gop": 6},
            "h264_444": {"codec": "h264", "pix_fmt": "yuv444p"},
            "hevc_10_bit": {"codec": "hevc", "pix_fmt": "yuv420p10le"},
        }.items()
    ),
    Subject(
        "every_column",
        # lerobot cannot stack strings, so `note` has no window.
        written_cases(50, *(key for key in COLUMNS if key != "note")),
        write=every_column,
    ),
    Subject(
        "depth_language_and_changing_tasks",
        written_cases(15, FRONT, DEPTH, "action"),
        write=depth_language_and_changing_tasks,
    ),
    Subject("pictures_in_tables", written_cases(10, FRONT, "action"), write=images_in_tables),
    Subject("recorded_h264", RECORDED, write=recorded("h264", finish=True)),
    Subject("recorded_av1", FEW_RECORDED, write=recorded("av1", finish=True)),
    Subject("while_recording", FEW_RECORDED, write=recorded("h264", finish=False)),
    Subject("resumed", RESUMED, write=resumed(FIXTURES / "kitchen_v30")),
    *as_lance(
        "two_cameras_in_many_files",
        written_cases(30, FRONT, WRIST, "action"),
        video=VIDEO,
        native=NATIVE,
        frames={"to": "lance-frames", "image_codec": "png"},
    ),
    *as_lance(
        "depth_language_and_changing_tasks",
        written_cases(15, FRONT, DEPTH, "action"),
        video=VIDEO,
        native=NATIVE,
        frames={"to": "lance-frames", "image_codec": "webp-lossless"},
    ),
    Subject("cut", CUT, write=cut_of("two_cameras_in_many_files", "v3.0")),
    *(
        Subject(
            f"cut_{name}",
            CUT,
            write=write("two_cameras_in_many_files", layout),
            referee="cut",
            opened_with=LeRobotLanceVideoDataset,
        )
        for name, write, layout in (
            ("into_lance_video", cut_of, "lance-video"),
            ("into_lance_native", cut_of, "lance-native"),
            ("in_place_lance_video", edited_in_place, "lance-video"),
            ("in_place_lance_native", edited_in_place, "lance-native"),
        )
    ),
    *as_lance(
        "pictures_in_tables",
        written_cases(10, FRONT, "action"),
        frames={"to": "lance-frames", "image_codec": "source"},
    ),
]


# ── lerobot's side ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Answers:
    roots: dict[str, Path | Exception]
    datasets: dict[str, dict[str, Any]]

    def root(self, subject: Subject) -> Path:
        if subject.name not in self.roots:
            pytest.skip(f"{FIXTURES / subject.name} does not exist")
        root = self.roots[subject.name]
        if isinstance(root, Exception):
            raise root
        return root

    def dataset(self, subject: Subject) -> dict[str, Any]:
        answers = self.datasets[subject.answered_as]
        assert "error" not in answers, f"lerobot cannot open it: {answers['error']}"
        return answers

    def case(self, subject: Subject, name: str) -> dict[str, Any]:
        position = list(subject.cases).index(name)
        answers: dict[str, Any] = self.dataset(subject)["cases"][position]
        assert "error" not in answers, f"lerobot cannot open it: {answers['error']}"
        return answers


@pytest.fixture(scope="session")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    """Write the datasets, and ask lerobot about all of them in one process."""
    if not LEROBOT_PYTHON:
        pytest.skip("DEMOREEL_LEROBOT_PYTHON is not set: run `make conformance`")
    scratch = tmp_path_factory.mktemp("conformance")
    roots = dict(find_or_write(scratch))
    jobs = [
        {
            "name": subject.name,
            "root": str(roots[subject.name]),
            "cases": [
                {"kwargs": kwargs, "indices": subject.indices} for kwargs in subject.cases.values()
            ],
        }
        for subject in SUBJECTS
        if isinstance(roots.get(subject.name), Path) and subject.referee is None
    ]
    (scratch / "jobs.json").write_text(json.dumps(jobs))
    subprocess.run(
        [
            *(LEROBOT_PYTHON, HERE / "lerobot_answers.py"),
            *("--jobs", scratch / "jobs.json", scratch / "answers.json"),
        ],
        check=True,
    )
    yield Answers(roots, json.loads((scratch / "answers.json").read_text())["datasets"])
    close_all()


def find_or_write(scratch: Path) -> Iterator[tuple[str, Path | Exception]]:
    for subject in SUBJECTS:
        if subject.write:
            try:
                subject.write(scratch / subject.name)
            except Exception as error:  # fails the tests of this dataset, not those of the others
                yield subject.name, error
            else:
                yield subject.name, scratch / subject.name
        elif (FIXTURES / subject.name).is_dir():
            yield subject.name, FIXTURES / subject.name


# ── The comparison ────────────────────────────────────────────────────────────────────────────────

CASES = [
    pytest.param(subject, case, id=f"{subject.name}-{case}")
    for subject in SUBJECTS
    for case in subject.cases
]


@pytest.mark.parametrize(("subject", "case"), CASES)
def test_the_same_items(answers: Answers, subject: Subject, case: str) -> None:
    root = answers.root(subject)
    expected = answers.case(subject, case)
    dataset = subject.opened_with(f"conformance/{subject.name}", root, **subject.cases[case])

    assert len(dataset) == dataset.num_frames == expected["len"]
    assert dataset.num_episodes == expected["num_episodes"]
    indices = [int(index) for index in expected["items"]]
    assert indices
    one_by_one = {indices[0], indices[-1], *indices[::5]}
    for index in one_by_one:
        same_item(dataset[index], expected["items"][str(index)], f"item {index}", subject)
    # The rest as a DataLoader asks for them: whole batches, in no order.
    random.Random(0).shuffle(indices)
    for start in range(0, len(indices), 32):
        batch = indices[start : start + 32]
        items = dataset.__getitems__(batch)
        assert len(items) == len(batch)
        for index, item in zip(batch, items, strict=True):
            same_item(item, expected["items"][str(index)], f"item {index} of a batch", subject)


def same_item(item: dict[str, Any], expected: dict[str, Any], where: str, subject: Subject) -> None:
    assert "error" not in expected, f"{where}: lerobot cannot read it: {expected['error']}"
    assert set(item) == set(expected), where
    for key, value in item.items():
        assert not isinstance(value, np.ndarray | np.generic), f"{where}, {key}: not a tensor"
        wanted = expected[key]
        got = describe_like(value, wanted)
        if key == FRONT and not subject.same_pixels:
            got, wanted = ({k: d[k] for k in ("dtype", "shape")} for d in (got, wanted))
        if got != wanted:
            pytest.fail(f"{where}, {key}:\n  demoreel {got}\n  lerobot  {wanted}")


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_the_same_metadata(answers: Answers, subject: Subject) -> None:
    root = answers.root(subject)
    expected = answers.dataset(subject)["meta"]
    meta = subject.opened_with(f"conformance/{subject.name}", root=root).meta

    for name in ("fps", "robot_type", "total_episodes", "total_frames", "total_tasks"):
        assert getattr(meta, name) == expected[name], name
    for name in ("camera_keys", "video_keys", "image_keys", "depth_keys"):
        assert sorted(getattr(meta, name)) == expected[name], name
    assert list(meta.tasks.index) == expected["tasks"]
    assert [int(length) for length in meta.episodes["length"]] == expected["lengths"]
    if subject.referee is None:
        assert json.loads(json.dumps(meta.features)) == expected["features"]
        # Of the metadata alone: a dataset gives statistics of depth in the unit of its samples.
        stats = LeRobotDatasetMetadata(subject.name, root=root).stats
        assert set(stats) == set(expected["stats"])
        for key, statistics in expected["stats"].items():
            for name, value in statistics.items():
                if "value" in value:
                    got = np.asarray(stats[key][name])
                    assert list(got.shape) == value["shape"], f"{key} {name}"
                    np.testing.assert_allclose(got, value["value"], err_msg=f"{key} {name}")
