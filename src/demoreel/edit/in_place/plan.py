"""Plans an edit in place: rows and metadata are written again, videos stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from demoreel.edit.clips import Clip, CutList
from demoreel.edit.features import View
from demoreel.edit.form import Layout
from demoreel.edit.video_plan import CameraClip, VideoPlan
from demoreel.errors import ArgumentError
from demoreel.layouts.base import Reader
from demoreel.layouts.lance.reader import LanceReader
from demoreel.layouts.lance.tables import newest_version
from demoreel.model import Info

_ON_THE_CLOCK = 1e-4  # seconds; the tolerance of lerobot


@dataclass(slots=True)
class KeptVideoPlan(VideoPlan):
    """One camera whose videos stay as they are.

    Attributes:
        seconds: Second of its video at which each clip begins.
    """

    seconds: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @property
    def begin(self) -> np.ndarray:
        """Second of its video at which each clip begins (``from_timestamp``)."""
        return self.seconds


def kept_videos(
    camera_clips: Sequence[CameraClip], reader: Reader, view: View, info: Info
) -> dict[str, VideoPlan]:
    """Return for each camera where clips are in the videos that are there.

    Cost: reads the table of packets of every video that clips are in.
    """
    return {
        key: _kept(camera_clips, reader, str(view.origin[key]), info) for key in info.video_keys
    }


def _kept(
    camera_clips: Sequence[CameraClip], reader: Reader, key: str, info: Info
) -> KeptVideoPlan:
    positions = np.array([camera_clip.position for camera_clip in camera_clips])
    columns = reader.episode_columns()
    said = columns[f"videos/{key}/from_timestamp"][positions]
    first, seconds = np.empty(len(camera_clips), np.int64), np.empty(len(camera_clips))
    rate = np.empty(len(camera_clips))
    for number, camera_clip in enumerate(camera_clips):
        place = reader.clip(camera_clip.position, key)
        first[number] = place.frames(np.array([camera_clip.frames[0]]))[0]
        rate[number] = info.fps * place.step
        clock = float(place.video.index.seconds[first[number]])
        as_said = float(said[number]) + camera_clip.frames[0] / info.fps
        # Where neighbours are gone, only the clock can tell where an episode begins.
        seconds[number] = as_said if abs(as_said - clock) < _ON_THE_CLOCK else clock
    return KeptVideoPlan(
        videos=[],
        chunk=columns[f"videos/{key}/chunk_index"][positions],
        file=columns[f"videos/{key}/file_index"][positions],
        first=first,
        rate=rate,
        seconds=seconds,
    )


def lance_layout(cutlist: CutList, reader: Reader) -> Layout:
    """Return the layout of the only source of a cut that is to be made in place."""
    if len(cutlist.sources) != 1:
        raise ArgumentError(
            "Only one dataset can be edited in place.", hint="merge into a new folder"
        )
    if not isinstance(reader, LanceReader):
        raise ArgumentError(
            f"A dataset in the layout {reader.layout} cannot be edited in place: it has no "
            "versions to go back to.",
            hint="write a new dataset, or convert this one: "
            f"demoreel convert {reader.root} TARGET --to lance-video",
            dataset=reader.root,
        )
    wanted, newest = cutlist.sources[0].version, newest_version(reader.root / reader.data_file(0))
    if wanted is not None and wanted != newest:
        raise ArgumentError(
            f"Version {wanted} is not the newest one, and older ones never change.",
            hint=f"demoreel checkout {reader.root} {wanted}, then edit",
        )
    return cast(Layout, reader.layout)


def refuse_in_place(cutlist: CutList, reader: Reader, view: View) -> None:
    """Refuse what an edit in place cannot do, because videos stay as they are."""
    twice = _claimed_twice(cutlist.clips)
    if twice is not None:
        raise ArgumentError(
            f"Frames of episode {twice} would be in two episodes, and videos are not copied.",
            hint="write a new dataset",
            dataset=reader.root,
        )
    for key, origin in view.origin.items():
        if origin not in (None, key) and view.features[key].is_video:
            raise ArgumentError(
                f"The camera {origin!r} cannot be renamed in place: its videos have that name.",
                hint="write a new dataset",
                dataset=reader.root,
            )


def _claimed_twice(clips: Sequence[Clip]) -> int | None:
    ends: dict[int, int] = {}
    for clip in sorted(clips, key=lambda clip: (clip.episode, clip.start)):
        if clip.start < ends.get(clip.episode, 0):
            return clip.episode
        ends[clip.episode] = clip.stop
    return None
