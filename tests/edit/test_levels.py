"""Statistics of images after a cut are those of its frames, computed from scratch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from demoreel.edit.cut import cut
from demoreel.layouts.beside import histogram_files, noted, read_histograms
from demoreel.stats.files import episode_approximate, episode_stats
from demoreel.stats.recompute import recompute
from demoreel.stats.running import QUANTILES

from .conftest import CAMERA, opened

KINDS = {"min", "max", "mean", "std", "count", *QUANTILES}
NAMES = ("small_files", "b_frames", "v2.1", "av1")


@pytest.fixture(scope="session")
def counted(sources, tmp_path_factory) -> dict[str, Path]:
    """The sources, with their images counted."""
    folder = tmp_path_factory.mktemp("counted")
    for name in NAMES:
        shutil.copytree(sources[name], folder / name)
        recompute(folder / name)
    return {name: folder / name for name in NAMES}


def from_scratch(dataset, rows) -> dict[str, np.ndarray]:
    """The statistics of a camera's frames, by numpy, from samples."""
    images = np.stack([dataset[int(row)][CAMERA] for row in rows]) / 255
    values = images.transpose(1, 0, 2, 3).reshape(3, -1)
    found = {
        "min": values.min(axis=1),
        "max": values.max(axis=1),
        "mean": values.mean(axis=1),
        "std": values.std(axis=1),
        "count": np.array([len(rows)]),
    }
    return found | {name: np.quantile(values, share, axis=1) for name, share in QUANTILES.items()}


def assert_exact(path: Path) -> None:
    dataset = opened(path)
    start = dataset.episodes.start
    assert noted(path / "meta") == {}
    if dataset.layout != "v2.1":  # which keeps none of the whole
        assert_equal(dataset.stats[CAMERA], from_scratch(dataset, range(len(dataset))))
    for position in range(len(dataset.episodes)):
        stats = episode_stats(dataset.reader, position)
        rows = range(int(start[position]), int(start[position + 1]))
        assert_equal(stats[CAMERA], from_scratch(dataset, rows))
        assert episode_approximate(dataset.reader, position, stats) == {}


def assert_equal(found, wanted) -> None:
    assert found.keys() == KINDS
    for kind, value in wanted.items():
        np.testing.assert_allclose(found[kind].reshape(-1), value, rtol=1e-9, atol=1e-12)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whole_episodes_are_exact_however_they_are_put_together(counted, tmp_path_factory, data):
    names = data.draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3))
    made = cut(counted[names[0]])
    for name in names[1:]:
        made = made.merge(cut(counted[name]))
    clips = made.clips
    order = data.draw(st.permutations(range(len(clips))))
    kept = order[: data.draw(st.integers(1, min(len(clips), 5)))]
    layout = data.draw(st.sampled_from(["v3.0", "v2.1"]))
    target = tmp_path_factory.mktemp("out") / "out"
    made._with_clips(tuple(clips[n] for n in kept)).render(target, layout=layout, verify=False)
    assert_exact(target)


def test_a_cut_of_a_cut_of_a_cut_is_exact(counted, tmp_path):
    parts = cut(counted["small_files"]).split({"a": 0.5, "b": 0.5})
    for name, part in parts.items():
        part.render(tmp_path / name, verify=False)
    cut(tmp_path / "b").merge(tmp_path / "a").render(tmp_path / "back", verify=False)
    cut(tmp_path / "back").delete([1]).render(tmp_path / "out", verify=False)
    assert_exact(tmp_path / "out")


def test_what_was_trimmed_is_approximate_until_it_is_asked_for(counted, tmp_path):
    trimmed = cut(counted["small_files"]).trim(1, 2 / 30, 9 / 30)
    trimmed.render(tmp_path / "out", verify=False)
    assert set(noted(tmp_path / "out" / "meta")[CAMERA]) == KINDS
    reader = opened(tmp_path / "out").reader
    known = [
        not episode_approximate(reader, position, episode_stats(reader, position))
        for position in range(4)
    ]
    assert known == [True, False, True, True]
    trimmed.render(tmp_path / "exact", verify=False, recompute_stats=True)
    assert_exact(tmp_path / "exact")
    done = recompute(tmp_path / "out", numbers=False, pictures="missing")
    assert done.cameras == {CAMERA: 7}  # the rest was known
    assert_exact(tmp_path / "out")


def test_sources_without_histograms_are_approximate(sources, counted, tmp_path):
    cut(counted["small_files"]).merge(sources["b_frames"]).render(tmp_path / "out", verify=False)
    assert set(noted(tmp_path / "out" / "meta")[CAMERA]) == KINDS
    assert {each.episode for each in read_histograms(tmp_path / "out" / "meta")} == {0, 1, 2, 3}
    cut(sources["b_frames"]).render(tmp_path / "none", verify=False)
    assert not histogram_files(tmp_path / "none" / "meta")
    assert noted(tmp_path / "none" / "meta").keys() == {CAMERA}


def test_a_renamed_camera_keeps_its_histograms(counted, tmp_path):
    cut(counted["small_files"]).rename({CAMERA: "observation.images.eye"}).render(
        tmp_path / "out", verify=False
    )
    assert noted(tmp_path / "out" / "meta") == {}
    assert {h.camera for h in read_histograms(tmp_path / "out" / "meta")} == {
        "observation.images.eye"
    }


def swapped(path: Path) -> None:
    """What a program does that knows nothing of histograms: two episodes change places."""
    file = next((path / "meta" / "episodes").glob("*/*.parquet"))
    table = pq.read_table(file)
    numbers = table.column("episode_index").to_pylist()
    numbers[0], numbers[1] = numbers[1], numbers[0]
    at = table.schema.get_field_index("episode_index")
    pq.write_table(table.set_column(at, table.field(at), pa.array(numbers)), file)


def test_histograms_of_other_episodes_are_never_used(counted, tmp_path):
    edited = tmp_path / "edited"
    shutil.copytree(counted["b_frames"], edited)
    swapped(edited)
    reader = opened(edited).reader
    for position in range(2):
        stats = episode_stats(reader, position)
        assert set(episode_approximate(reader, position, stats)[CAMERA]) == KINDS


def test_histograms_of_re_encoded_statistics_are_never_used(counted, tmp_path):
    edited = tmp_path / "edited"
    shutil.copytree(counted["v2.1"], edited)
    lines = (edited / "meta" / "episodes_stats.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    first["stats"][CAMERA]["mean"][0][0][0] += 1e-4
    lines[0] = json.dumps(first)
    (edited / "meta" / "episodes_stats.jsonl").write_text("\n".join(lines))
    assert noted(edited / "meta") is None
    cut(edited).render(tmp_path / "out", verify=False)
    assert set(noted(tmp_path / "out" / "meta")[CAMERA]) == KINDS
    assert {each.episode for each in read_histograms(tmp_path / "out" / "meta")} == {1, 2}
    cut(edited).delete([0]).render(tmp_path / "rest", verify=False)
    assert_exact(tmp_path / "rest")
