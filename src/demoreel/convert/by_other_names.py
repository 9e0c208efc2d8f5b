"""The two converters of lerobot-lancedb, by their names and arguments."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demoreel.convert.progress import Report, shown_progress
from demoreel.convert.report import ConvertReport
from demoreel.convert.run import convert
from demoreel.errors import ArgumentError
from demoreel.media.images import Subsampling

log = logging.getLogger(__name__)


def convert_to_lance_video(
    repo_id: str,
    output: str | os.PathLike[str],
    *,
    src_root: str | os.PathLike[str] | None = None,
    revision: str | None = None,
    table_name: str | None = None,
    tolerance_s: float = 1e-4,
    overwrite: bool = False,
    progress: bool | Report = True,
) -> Path:
    """Convert a dataset to lance-video: its videos as they are, its rows in a table.

    The same as ``demoreel.convert(..., to="lance-video")``, with the arguments of lerobot-lancedb's
    function.

    Args:
        repo_id: The dataset's name under ``$HF_LEROBOT_HOME``, or its folder. Nothing is fetched.
        output: The folder to make.
        src_root: The dataset's folder, if it is elsewhere.
        revision: Not supported: datasets are read as they lie.
        table_name: The table's name; by default the last part of ``repo_id``.
        tolerance_s: Of no effect: frames are found by their number, not by their time.
        overwrite: Replace a dataset that is there.
        progress: True shows a bar: share, frames, bytes and the time left; without a terminal,
            a line for each tenth. A function is called with a ``Progress``.

    Returns:
        The folder that was made.

    Raises:
        DemoreelError: As ``demoreel.convert``.
    """
    with _shown(progress) as show:
        report = convert(
            _source(repo_id, src_root, revision),
            output,
            to="lance-video",
            table_name=table_name or _last_part(repo_id),
            overwrite=overwrite,
            progress=show,
        )
    _warn(report)
    return Path(output)


def convert_to_lance(
    repo_id: str,
    output: str | os.PathLike[str],
    *,
    src_root: str | os.PathLike[str] | None = None,
    revision: str | None = None,
    table_name: str | None = None,
    jpeg_quality: int = 95,
    chroma_subsampling: Subsampling = 2,
    tolerance_s: float = 1e-4,
    overwrite: bool = False,
    progress: bool | Report = True,
    push_to_hub: str | None = None,
    drop_audio: bool = False,
) -> Path:
    """Convert a dataset to lance-frames: a JPEG per camera in every row.

    The same as ``demoreel.convert(..., to="lance-frames", image_codec="jpeg")``, with the arguments
    of lerobot-lancedb's function. Numbers keep their types here.

    Args:
        repo_id: The dataset's name under ``$HF_LEROBOT_HOME``, or its folder. Nothing is fetched.
        output: The folder to make.
        src_root: The dataset's folder, if it is elsewhere.
        revision: Not supported: datasets are read as they lie.
        table_name: The table's name; by default the last part of ``repo_id``.
        jpeg_quality: 1 to 100.
        chroma_subsampling: 0 is 4:4:4, 1 is 4:2:2, 2 is 4:2:0.
        tolerance_s: Of no effect: frames are found by their number, not by their time.
        overwrite: Replace a dataset that is there.
        progress: True shows a bar: share, frames, bytes and the time left; without a terminal,
            a line for each tenth. A function is called with a ``Progress``.
        push_to_hub: Not supported here.
        drop_audio: Leave the audio of videos out, which is refused otherwise.

    Returns:
        The folder that was made.

    Raises:
        DemoreelError: As ``demoreel.convert``.
    """
    if push_to_hub is not None:
        raise ArgumentError(
            "push_to_hub is not supported.", hint="push the result: demoreel.push(output, repo_id)"
        )
    with _shown(progress) as show:
        report = convert(
            _source(repo_id, src_root, revision),
            output,
            to="lance-frames",
            drop_audio=drop_audio,
            table_name=table_name or _last_part(repo_id),
            image_codec="jpeg",
            jpeg_quality=jpeg_quality,
            jpeg_subsampling=chroma_subsampling,
            overwrite=overwrite,
            progress=show,
        )
    _warn(report)
    return Path(output)


def _warn(report: ConvertReport) -> None:
    for what in report.dropped:
        log.warning("%s: dropped: %s", report.target, what)


def _source(repo_id: str, root: str | os.PathLike[str] | None, revision: str | None) -> Path:
    if revision is not None:
        raise ArgumentError(
            "revision= is not supported: datasets are read as they lie.",
            hint="fetch that revision, and give its folder as src_root",
        )
    if root is not None:
        return Path(root)
    if (Path(repo_id) / "meta" / "info.json").is_file():
        return Path(repo_id)
    cache = os.environ.get("HF_HOME", "~/.cache/huggingface")
    home = os.environ.get("HF_LEROBOT_HOME") or os.path.join(cache, "lerobot")
    return Path(home).expanduser() / repo_id


def _last_part(repo_id: str) -> str:
    return repo_id.rstrip("/").split("/")[-1]


@contextmanager
def _shown(progress: bool | Report) -> Iterator[Report | None]:
    if not isinstance(progress, bool):
        yield progress
        return
    with shown_progress(enabled=progress) as show:
        yield show
