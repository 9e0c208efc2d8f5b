"""Copies: in one dataset, in two, in other layouts, as parts, and many of them."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import demoreel
from demoreel.check.fingerprints import alike_in_order, equal_groups, overlapping, row_hashes
from demoreel.testing import make_dataset
from support.moving import film, make_moving, movements, view

from .conftest import defects_of

ONLY = ["duplicate"]


def leaks(*roots, **options):
    return demoreel.check(*roots, leaks=True, only=ONLY, **options)


def pairs(report, code="leak-episode"):
    return sorted(finding.where.episode for finding in report.of(code))


@pytest.mark.parametrize("name", defects_of("duplicate"))
def test_finds(name, assert_found):
    assert_found(name)


FIXTURES = ("g1_v21", "g1_v30", "g1_lance_native", "g1_lance_video")


@pytest.mark.parametrize("name", [*FIXTURES, "kitchen_v30", "kitchen_lance_frames"])
def test_nothing_is_twice_in_real_datasets(name, fixtures):
    assert demoreel.check(fixtures / name, only=ONLY).counts == {}


@pytest.mark.parametrize("other", FIXTURES[1:])
def test_the_same_episodes_in_any_layout(other, fixtures):
    report = leaks(fixtures / "g1_v21", fixtures / other)
    assert pairs(report) == [0, 1, 2, 3]
    assert report.counts == {"leak-episode": 4}
    assert {finding.where.dataset for finding in report.findings} == {str(fixtures / other)}


def test_the_same_episodes_with_numbers_turned_into_floats(fixtures):
    report = leaks(fixtures / "kitchen_images_v30", fixtures / "kitchen_lance_frames")
    assert pairs(report) == [0, 1, 2, 3, 4]


def test_nothing_leaks_between_strangers(fixtures, base):
    assert leaks(fixtures / "g1_v21", fixtures / "kitchen_v30").counts == {}
    assert leaks(base("v3-moves"), base("v3")).counts == {}


def test_reordered_and_renumbered_episodes_leak(base, tmp_path):
    demoreel.cut(base("v3-film")).select("episode_index <> 1", order_by="-episode_index").render(
        tmp_path / "cut"
    )
    report = leaks(base("v3-film"), tmp_path / "cut")
    assert pairs(report) == [0, 1]
    said = [finding.what for finding in report.of("leak-episode")]
    assert ["episode 2 of" in said[0], "episode 0 of" in said[1]] == [True, True]


def test_a_trim_leaks_in_part(base, tmp_path):
    demoreel.cut(base("v3-film")).trim(1, start=4, stop=36).render(tmp_path / "cut")
    report = leaks(base("v3-film"), tmp_path / "cut")
    assert pairs(report) == [0, 2]
    assert pairs(report, "leak-near") == [1]


def test_three_datasets(base, tmp_path):
    shutil.copytree(base("v3-moves"), tmp_path / "again")
    other = make_moving(tmp_path / "other", seed=7)
    report = leaks(base("v3-moves"), other, tmp_path / "again")
    assert pairs(report) == list(range(10))
    assert {finding.where.dataset for finding in report.findings} == {str(tmp_path / "again")}


def test_episodes_without_movement_are_no_copies(tmp_path):
    def rest(episode, columns):
        return {key: np.zeros_like(values) for key, values in columns.items()}

    root = make_moving(tmp_path / "still", lengths=[30, 30, 30], change=rest, capture_times=False)
    assert demoreel.check(root, only=ONLY).counts == {}


def test_five_copies_are_four_findings(tmp_path):
    def copies(episode, columns):

        action, state = movements(0, 40)
        return {**columns, "action": action, "observation.state": state}

    root = make_moving(tmp_path / "copies", lengths=[40] * 5, change=copies)
    report = demoreel.check(root, only=ONLY)
    assert report.counts == {"episode-duplicate": 4}
    assert pairs(report, "episode-duplicate") == [1, 2, 3, 4]


def test_a_command_finds_leaks(base, tmp_path):
    from typer.testing import CliRunner

    from demoreel.cli.app import make_app

    shutil.copytree(base("v3-moves"), tmp_path / "val")
    result = CliRunner().invoke(
        make_app(), ["check", str(base("v3-moves")), str(tmp_path / "val"), "--leaks"]
    )
    assert result.exit_code == 2
    assert "leak-episode" in result.output


def test_many_episodes_cost_sorts_and_not_squares():
    random = np.random.default_rng(0)
    episodes, windows = 100_000, 20
    shingles = random.integers(0, 1 << 63, episodes * windows).astype(np.uint64)
    owner = np.repeat(np.arange(episodes), windows)
    shingles[owner == 99_999] = shingles[owner == 5]
    shingles[::windows] = 42  # one window that everybody has
    one, other, share = overlapping(shingles, owner, episodes)
    assert len(one) < 3 * episodes
    near = share >= 0.5
    assert list(zip(one[near], other[near], strict=True)) == [(5, 99_999)]


def test_equal_groups_ascend():
    found = [group.tolist() for group in equal_groups(np.array([7, 3, 7, 9, 3, 7], np.uint64))]
    assert found == [[1, 4], [0, 2, 5]]
    assert list(equal_groups(np.zeros(0, np.uint64))) == []


def test_overlap_of_nothing():
    nothing = np.zeros(0, np.uint64)
    assert [len(part) for part in overlapping(nothing, nothing.astype(int), 0)] == [0, 0, 0]


def test_alike_rows_are_found_by_their_means():
    rows = np.array([[10.0, 20.0], [200.0, 9.0], [11.0, 19.0], [30.0, 0.0]])
    assert list(alike_in_order(rows, most_apart=2)) == [(0, 2)]


@pytest.mark.parametrize("width", [1, 2, 7])
def test_rows_hash_by_their_bits(width):
    values = np.random.default_rng(1).normal(size=(1000, width)).astype(np.float32)
    hashes = row_hashes(values)
    assert len(np.unique(hashes)) == 1000
    assert (row_hashes(values[::-1].copy()) == hashes[::-1]).all()


def test_columns_that_are_gone_do_not_hide_a_copy(tmp_path):
    one = make_dataset(tmp_path / "one", episodes=[30, 40], cameras=0)
    more = {"next.reward": {"dtype": "float32", "shape": [1]}}
    two = make_dataset(tmp_path / "two", episodes=[30, 40], cameras=0, features=more)
    assert pairs(leaks(one, two)) == [0, 1]


def test_films_that_were_encoded_again_are_found_when_decoded(base, tmp_path):
    def other_rows(episode, columns):
        return {key: -v if v.dtype.kind == "f" else v for key, v in columns.items()}

    def same_film(episode, frame, image):
        return view(movements(episode, 40)[1][frame], episode)

    again = make_moving(
        tmp_path / "again", lengths=(40, 40, 40), films=True, change=other_rows, image=same_film
    )
    for video in again.rglob("*.mp4"):
        images = demoreel.open(again)  # decoded as they are, encoded as they never were
        number = int(video.stem[-3:])
        shown = [images[40 * number + frame]["observation.images.front"] for frame in range(40)]
        film(video, [image.transpose(1, 2, 0) for image in shown], fps=10, crf=28, gop=4)
    assert leaks(base("v3-film"), again).counts == {}
    report = demoreel.check(
        base("v3-film"), again, leaks=True, deep=True, only=["deep", "duplicate"]
    )
    assert pairs(report, "leak-near") == [0, 1, 2]
