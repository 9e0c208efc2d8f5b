"""An episode as a Rerun recording.

Rerun is 170 MB, so the tests' environment does not have it: the calls are bound to the signatures
that rerun-sdk 0.41 has. Where it is installed, the file is read back as well.
"""

from __future__ import annotations

import inspect
import io
import sys
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

import demoreel
from demoreel.cli.app import run
from demoreel.testing import make_dataset, read_stamp


# The signatures of rerun-sdk 0.41, as ``inspect.signature`` gives them.
def _scalars_columns(*, scalars=None): ...
def _time_column(timeline, *, sequence=None, duration=None, timestamp=None): ...
def _text_document(text, *, media_type=None): ...
def _text_log(text, *, level=None, color=None): ...
def _series_lines(*, colors=None, widths=None, names=None, visible_series=None): ...
def _encoded_image(*, path=None, contents=None, media_type=None, opacity=None, draw_order=None): ...
def _depth_image(image, *, meter=None, colormap=None, depth_range=None): ...


def _bound(signature: Any) -> Any:
    def call(*values: Any, **named: Any) -> SimpleNamespace:
        given = inspect.signature(signature).bind(*values, **named).arguments
        return SimpleNamespace(kind=signature.__name__, **given)

    return call


class Stream:
    """Records what it is told."""

    made: ClassVar[list[Stream]] = []

    def __init__(self, application_id, *, recording_id=None, make_default=False):
        self.id, self.calls, self.time, self.path = recording_id, [], {}, None
        Stream.made.append(self)

    def save(self, path, default_blueprint=None, *, write_footer=True):
        self.path = path
        path.write_bytes(b"RRF2")

    def spawn(self, *, port=9876, connect=True, memory_limit="75%", hide_welcome_screen=False):
        self.path = "viewer"

    def log(self, entity_path, entity, *extra, static=False, strict=None):
        self.calls.append((entity_path, entity, None if static else dict(self.time)))

    def set_time(self, timeline, *, sequence=None, duration=None, timestamp=None):
        self.time[timeline] = sequence if sequence is not None else duration

    def send_columns(self, entity_path, indexes, columns, *, strict=None):
        self.calls.append((entity_path, columns, indexes))

    def flush(self, *, timeout_sec=1e38): ...
    def disconnect(self): ...

    def of(self, path: str, kind: str) -> list[Any]:
        return [
            (entity, at) for name, entity, at in self.calls if (name, entity.kind) == (path, kind)
        ]


@pytest.fixture
def root(tmp_path):
    return make_dataset(
        tmp_path / "my task",
        episodes=(5, 8),
        cameras=1,
        fps=10,
        depth_cameras={"observation.images.depth": (48, 64)},
        features={"note": {"dtype": "string", "shape": [1]}},
    )


@pytest.fixture
def stream(monkeypatch) -> list[Stream]:
    names = {
        "Scalars": SimpleNamespace(columns=_bound(_scalars_columns)),
        "TimeColumn": _bound(_time_column),
        "TextDocument": _bound(_text_document),
        "TextLog": _bound(_text_log),
        "SeriesLines": _bound(_series_lines),
        "EncodedImage": _bound(_encoded_image),
        "DepthImage": _bound(_depth_image),
        "RecordingStream": Stream,
    }
    monkeypatch.setitem(sys.modules, "rerun", SimpleNamespace(**names))
    monkeypatch.setattr(Stream, "made", [])
    return Stream.made


def test_an_episode_is_told_to_rerun(stream, root, tmp_path, capsys):
    out = tmp_path / "out.rrd"
    assert run(["view", str(root), "--rerun", str(out), "--episode", "1"]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    assert out.read_bytes() == b"RRF2"
    (made,) = stream
    view = demoreel.open(root).episode(1)
    ((scalars, times),) = made.of("action", "_scalars_columns")
    np.testing.assert_allclose(scalars.scalars, np.asarray(view.column("action")))
    assert [np.asarray(t.sequence).tolist() for t in times if t.timeline == "frame"] == [
        [*range(8)]
    ]
    images = made.of("observation.images.cam0", "_encoded_image")
    assert [at["frame"] for _, at in images] == list(range(8))
    assert images[3][1]["time"] == pytest.approx(0.3)
    for frame, (image, _) in enumerate(images):
        mark = read_stamp(np.asarray(Image.open(io.BytesIO(image.contents))))
        assert (mark.episode, mark.frame) == (1, frame)
    depth = made.of("observation.images.depth", "_depth_image")
    expected = list(view.frames("observation.images.depth"))
    np.testing.assert_allclose(depth[7][0].image, expected[7])
    assert depth[0][0].meter == 1000
    assert made.of("note", "_text_log")


def test_a_dry_run_says_what_would_be_written(stream, root, tmp_path, capsys):
    out = tmp_path / "out.rrd"
    assert run(["view", str(root), "--rerun", str(out), "--episode", "1", "--dry-run"]) == 0
    assert capsys.readouterr().out.strip() == f"{out}: episode 1, 8 frames of 2 cameras"
    assert not out.exists()
    assert stream == []
    out.write_text("mine")
    assert run(["view", str(root), "--rerun", str(out), "--dry-run"]) != 0
    assert run(["view", str(root), "--dry-run"]) != 0


def test_without_a_file_the_viewer_is_opened(stream, root):
    assert run(["view", str(root), "--rerun", "--episode", "0"]) == 0
    assert [made.path for made in stream] == ["viewer"]


def test_what_is_there_stays(stream, root, tmp_path, capsys):
    (tmp_path / "out.rrd").write_text("mine")
    assert run(["view", str(root), "--rerun", str(tmp_path / "out.rrd")]) != 0
    assert run(["view", str(root), "--rerun", str(tmp_path / "new.rrd"), "--episode", "9"]) != 0
    assert (tmp_path / "out.rrd").read_text() == "mine"
    assert not (tmp_path / "new.rrd").exists()
    assert stream == []


def test_a_missing_extra_names_the_line(root, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rerun", None)
    assert run(["view", str(root), "--rerun", str(tmp_path / "out.rrd")]) != 0
    assert "pip install 'demoreel[rerun]'" in capsys.readouterr().err


def test_the_file_is_read_back(root, tmp_path):
    chunks = pytest.importorskip("rerun.chunk", reason="pip install 'demoreel[rerun]'")
    out = tmp_path / "out.rrd"
    assert run(["view", str(root), "--rerun", str(out), "--episode", "1"]) == 0
    rows: dict[str, int] = {}
    for chunk in chunks.RrdReader(out).stream():
        if not chunk.is_static:
            rows[chunk.entity_path] = rows.get(chunk.entity_path, 0) + chunk.num_rows
    for key in (
        "action",
        "observation.state",
        "observation.images.cam0",
        "observation.images.depth",
    ):
        assert rows[f"/{key}"] == 8
