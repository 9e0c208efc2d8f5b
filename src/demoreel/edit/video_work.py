"""Making videos of the result: packets of its clips, copied."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from demoreel.edit.clips import Source
from demoreel.edit.footage import VideoOut, run_of
from demoreel.edit.sources import open_source
from demoreel.errors import VideoError
from demoreel.media.mp4_write import write_packets
from demoreel.run.staging import write_whole


@dataclass(frozen=True, slots=True)
class VideoJob:
    """All that is needed to make some videos of one camera, in any process.

    Attributes:
        folder: The staging folder.
        sources: The cut list's sources.
        keys: The camera's key in each of them.
        videos: What they are made of, and where each goes, relative to the dataset.
        fps: Frames per second.
    """

    folder: str
    sources: Sequence[Source]
    keys: Sequence[str]
    videos: Sequence[tuple[str, VideoOut]]
    fps: float


def write_videos(job: VideoJob) -> dict[str, Any]:
    """Write videos.

    Cost: a copy of their bytes.

    Raises:
        VideoError: A source's video is missing, broken, or not what it was when planned.
    """
    dataset = Path(job.folder) / "dataset"
    for name, video in job.videos:
        write_whole(dataset / name, partial(_write, job, video))
    return {"files": {f"dataset/{name}": os.path.getsize(dataset / name) for name, _ in job.videos}}


def _write(job: VideoJob, video: VideoOut, path: Path) -> None:
    runs = [
        run_of(run, open_source(job.sources[run.source]), job.keys[run.source])
        for run in video.runs
    ]
    frames = write_packets(path, runs, description=video.description, fps=job.fps)
    if frames != video.frames:
        raise VideoError(
            f"A video has {frames} frames; {video.frames} were planned.",
            hint="a source was changed in the meantime; run the command again",
            camera=video.camera,
        )
