"""Score files of other programs follow every cut, frame by frame, or the result says that not."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import demoreel
from demoreel.testing import make_dataset

LENGTHS = (6, 5, 7, 4)
FORMAT = {"lerobot.scores.format": "lerobot.frame_signals", "lerobot.scores.schema_version": "1"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scores") / "base"
    make_dataset(root, episodes=LENGTHS, cameras={"observation.images.cam0": (32, 32)}, gop=2)
    episode = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    frame = np.concatenate([np.arange(length) for length in LENGTHS])
    index = np.arange(len(frame))
    name = {"index": index, "episode_index": episode, "frame_index": frame}
    value = (100 * episode + frame).astype(np.float32)
    (root / "scores").mkdir()
    shuffled = np.random.default_rng(0).permutation(len(index))
    table = pa.table({**name, "progress": value}).take(shuffled)
    pq.write_table(table.replace_schema_metadata(FORMAT), root / "scores" / "progress.parquet")
    old = pa.table({"index": index.astype(np.int32), "progress_sparse": value})
    pq.write_table(old, root / "sarm_progress.parquet")
    some = frame % 2 == 0
    part = {"episode_index": episode[some], "frame_index": frame[some], "note": value[some]}
    pq.write_table(pa.table(part), root / "part.parquet")
    rated = pa.table({"episode_index": [0, 2, 3], "stars": [5, 3, 1]})
    pq.write_table(rated, root / "stars.parquet")
    return root


@pytest.fixture
def source(base, tmp_path) -> Path:
    return Path(shutil.copytree(base, tmp_path / "source"))


def expected(clips: list[tuple[int, int, int]]) -> list[tuple[int, int, int, float]]:
    frames = [(n, f - a, 100 * e + f) for n, (e, a, b) in enumerate(clips) for f in range(a, b)]
    return [(at, n, f, float(value)) for at, (n, f, value) in enumerate(frames)]


def rows_of(path: Path, *columns: str) -> list[tuple]:
    table = pq.read_table(path)
    return list(zip(*(table.column(name).to_pylist() for name in columns), strict=True))


WHO = ("index", "episode_index", "frame_index")


@pytest.mark.parametrize("layout", ["v3.0", "v2.1", "lance-video"])
def test_a_row_goes_where_its_frame_goes(source, tmp_path, layout):
    clips = [(3, 0, 4), (2, 2, 6), (0, 0, 3), (0, 3, 6)]
    cut = demoreel.cut(source)
    one = cut.cutlist.clips[0]
    chosen = tuple(type(one)(0, e, a, b) for e, a, b in clips)
    made = type(cut)(type(cut.cutlist)(cut.cutlist.sources, chosen))
    done = made.render(tmp_path / "new", layout=layout, exact=layout == "v2.1")
    assert [what for what in done.dropped if "parquet" in what or "scores" in what] == []
    path = tmp_path / "new" / "scores" / "progress.parquet"
    assert rows_of(path, *WHO, "progress") == expected(clips)
    metadata = pq.read_schema(path).metadata
    assert metadata[b"lerobot.scores.format"] == b"lerobot.frame_signals"
    old = tmp_path / "new" / "sarm_progress.parquet"
    assert rows_of(old, "index", "progress_sparse") == [(r[0], r[3]) for r in expected(clips)]
    assert pq.read_schema(old).field("index").type == pa.int32()
    part = rows_of(tmp_path / "new" / "part.parquet", "episode_index", "frame_index", "note")
    assert part == [r[1:] for r in expected(clips) if r[3] % 2 == 0]
    stars = rows_of(tmp_path / "new" / "stars.parquet", "episode_index", "stars")
    assert stars == [(0, 1), (1, 3), (2, 5), (3, 5)]


def test_merged_split_and_resampled(source, tmp_path):
    other = Path(shutil.copytree(source, tmp_path / "other"))
    (other / "sarm_progress.parquet").unlink()
    demoreel.cut(source).keep([1]).merge(demoreel.cut(other).keep([3, 0])).render(tmp_path / "m")
    merged = rows_of(tmp_path / "m/scores/progress.parquet", *WHO, "progress")
    assert merged == expected([(1, 0, 5), (3, 0, 4), (0, 0, 6)])
    old = rows_of(tmp_path / "m/sarm_progress.parquet", "index", "progress_sparse")
    assert old == [(n, 100.0 + n) for n in range(5)]
    parts = demoreel.cut(source).split({"a": 0.5, "b": 0.5})
    parts["b"].render(tmp_path / "b", fps=15)
    values = [row[3] for row in rows_of(tmp_path / "b/scores/progress.parquet", *WHO, "progress")]
    assert values == [200.0, 202.0, 204.0, 206.0, 300.0, 302.0]


@pytest.mark.parametrize("to", ["v2.1", "lance-video", "lance-frames"])
def test_a_conversion_keeps_them(source, tmp_path, to):
    report = demoreel.convert(source, tmp_path / "new", to=to)
    assert not any("scores" in what for what in report.dropped)
    rows = rows_of(tmp_path / "new/scores/progress.parquet", *WHO, "progress")
    assert sorted(rows) == expected([(e, 0, length) for e, length in enumerate(LENGTHS)])


def test_an_edit_in_place_changes_them_with_the_rows(source, tmp_path):
    demoreel.convert(source, tmp_path / "lance", to="lance-video")
    done = demoreel.cut(tmp_path / "lance").delete([1]).trim(2, 1).render_in_place()
    assert [what for what in done.dropped if "checkout" not in what] == []
    rows = rows_of(tmp_path / "lance/scores/progress.parquet", *WHO, "progress")
    assert rows == expected([(0, 0, 6), (2, 1, 7), (3, 0, 4)])


@pytest.mark.parametrize("fault", ["other rows", "outside", "damaged", "no numbers"])
def test_what_is_not_of_these_episodes_is_left_out_and_said(source, tmp_path, fault):
    path = source / "scores" / "progress.parquet"
    table = pq.read_table(path)
    if fault == "other rows":
        fewer = pa.array((np.asarray(table.column("index")) + 1) % 22)
        pq.write_table(table.set_column(0, "index", fewer), path)
    elif fault == "outside":
        pq.write_table(table.slice(0, 3).set_column(1, "episode_index", pa.array([0, 9, 1])), path)
    elif fault == "damaged":
        path.write_bytes(b"PAR1 nothing PAR1")
    else:
        pq.write_table(table.select(["progress"]), path)
    (source / "scores" / "notes.txt").write_text("by hand")
    done = demoreel.cut(source).delete([0]).render(tmp_path / "new")
    assert not (tmp_path / "new/scores/progress.parquet").exists()
    said = [what.split(":")[0] for what in done.dropped]
    assert said == ["scores/progress.parquet", "scores/notes.txt"]
    assert (tmp_path / "new/sarm_progress.parquet").exists()


def test_the_command_says_nothing_where_nothing_is_lost(source, tmp_path, capsys):
    from demoreel.cli import main

    assert main(["cut", "delete", str(source), str(tmp_path / "n"), "-e", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dropped"] == []


@pytest.mark.parametrize("layout", ["v3.0", "lance-video"])
def test_they_follow_a_cut_of_a_dataset_in_a_store(source, s3, proxy, tmp_path, layout):
    root = source
    if layout != "v3.0":
        root = tmp_path / "lance"
        demoreel.convert(source, root, to=layout)
    uri = s3.upload(root, f"{uuid.uuid4().hex[:8]}/scored")
    done = demoreel.cut(uri).delete([1]).trim(2, 1).label(3, score=2).render(tmp_path / "new")
    assert [what for what in done.dropped if "parquet" in what or "scores" in what] == []
    rows = rows_of(tmp_path / "new/scores/progress.parquet", *WHO, "progress")
    assert rows == expected([(0, 0, 6), (2, 1, 7), (3, 0, 4)])
    stars = rows_of(tmp_path / "new/stars.parquet", "episode_index", "stars")
    assert stars == [(0, 5), (1, 3), (2, 1)]
    # And of a result that is written there.
    target = s3.uri(f"{uuid.uuid4().hex[:8]}/made")
    demoreel.cut(tmp_path / "new").delete([0]).render(target)
    demoreel.pull(target, tmp_path / "again")
    rows = rows_of(tmp_path / "again/scores/progress.parquet", *WHO, "progress")
    assert rows == expected([(2, 1, 7), (3, 0, 4)])
    rated = pq.read_table(tmp_path / "again/scores/labels.parquet")
    assert set(rated.column("score").to_pylist()) == {2.0}


def test_checkout_brings_back_the_score_files_of_a_version(source, tmp_path):
    root = tmp_path / "lance"
    demoreel.convert(source, root, to="lance-video")
    first = demoreel.versions(root)[-1].number
    whole = expected([(e, 0, length) for e, length in enumerate(LENGTHS)])
    done = demoreel.cut(root).delete([0]).label(1, score=4).render_in_place()
    assert not any("scores" in what for what in done.dropped)
    second = done.version
    after = expected([(1, 0, 5), (2, 0, 7), (3, 0, 4)])
    # An older version is cut with its own rows of scores, without going back to it.
    demoreel.cut(demoreel.open(root, version=first)).delete([1]).render(tmp_path / "old")
    rows = rows_of(tmp_path / "old/scores/progress.parquet", *WHO, "progress")
    assert rows == expected([(0, 0, 6), (2, 0, 7), (3, 0, 4)])
    demoreel.checkout(root, first)
    assert sorted(rows_of(root / "scores/progress.parquet", *WHO, "progress")) == whole
    assert not (root / "scores/labels.parquet").exists()
    demoreel.checkout(root, second)
    assert rows_of(root / "scores/progress.parquet", *WHO, "progress") == after
    assert len(rows_of(root / "scores/labels.parquet", "index")) == LENGTHS[1]
