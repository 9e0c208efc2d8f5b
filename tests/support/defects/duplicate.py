"""Episodes that are there twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from support.defects.bases import FILM_LENGTHS
from support.defects.registry import defect
from support.moving import (
    LENGTHS,
    Change,
    Columns,
    film,
    make_anew,
    movements,
    view,
)

_VIDEO = "videos/observation.images.front/chunk-000/file-{number:03d}.mp4"


def _copy_of(number: int, *, into: int, first: int = 0, stop: int | None = None) -> Change:
    """Put an episode's rows, or some of them, into another one; its capture times stay."""

    def change(episode: int, columns: Columns) -> Columns:
        if episode != into:
            return columns
        action, state = (values[first:stop] for values in movements(number, LENGTHS[number]))
        begin, step = columns["capture_time_ns"][0], np.diff(columns["capture_time_ns"][:2])
        times = begin + step * np.arange(len(action))
        return {"action": action, "observation.state": state, "capture_time_ns": times}

    return change


@defect("episode-duplicate", on="v3-moves")
def episode_saved_twice(root: Path) -> None:
    make_anew(root, change=_copy_of(1, into=7))


@defect("episode-near-duplicate", on="v3-moves")
def episode_and_a_part_of_it(root: Path) -> None:
    make_anew(root, change=_copy_of(2, into=7, first=10, stop=58))


@defect("pictures-duplicate", on="v3-film", also=("stats-differ",))
def video_of_another_episode(root: Path) -> None:
    shutil.copy(root / _VIDEO.format(number=0), root / _VIDEO.format(number=2))


@defect("pictures-alike", on="v3-film", deep=True)
def video_of_another_episode_encoded_again(root: Path) -> None:
    _, state = movements(0, FILM_LENGTHS[0])
    images = [view(row, 0) for row in state]
    film(root / _VIDEO.format(number=2), images, fps=10, crf=26, gop=5)


@defect("leak-episode", on="v3-moves", leaks=True)
def the_same_dataset_again(root: Path) -> None:
    make_anew(root, lengths=LENGTHS[:3])


@defect("leak-episode", on="v3-film", leaks=True)
def the_same_films_with_other_rows(root: Path) -> None:
    def halved(episode: int, columns: Columns) -> Columns:
        return {key: v / 2 if v.dtype.kind == "f" else v for key, v in columns.items()}

    def same(episode: int, frame: int, image: np.ndarray) -> np.ndarray:
        return view(movements(episode, FILM_LENGTHS[episode])[1][frame], episode)

    make_anew(root, lengths=FILM_LENGTHS, films=True, change=halved, image=same)


@defect("leak-near", on="v3-moves", leaks=True)
def parts_of_the_same_episodes(root: Path) -> None:
    def part(episode: int, columns: Columns) -> Columns:
        return {key: values[8:44] for key, values in columns.items()}

    make_anew(root, lengths=LENGTHS[:3], change=part)


@defect("leak-unknown", on="v3-moves", leaks=True)
def nothing_to_compare(root: Path) -> None:
    make_anew(root, names=("told", "seen"))
