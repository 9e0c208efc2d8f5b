"""``demoreel.convert``: checks its arguments, chooses the target, and reports full disks.

At the end, the two converters of lerobot-lancedb, by their names and arguments.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from demoreel.convert.conversion import Options, To, Verify, convert_folder, verification
from demoreel.convert.report import ConvertReport, Progress, Report, Stage, shown_progress
from demoreel.errors import ArgumentError, DiskFullError
from demoreel.layouts.detect import open_reader
from demoreel.layouts.pending import refuse_waiting
from demoreel.media.images import CodecName, Subsampling
from demoreel.run.anywhere import is_here, made_anywhere, refuse_remote
from demoreel.run.task import Engine
from demoreel.storage.commit.files import NO_ROOM
from demoreel.storage.commit.replace import place_of_old, replacing_dataset
from demoreel.storage.external import AllowExternal
from demoreel.storage.external import allow_external as allow

log = logging.getLogger(__name__)

_TERMINATED = 128 + signal.SIGTERM
_STEPS = 1000
_NOT_WRITTEN = ("overwrite", "dry_run", "jobs", "engine", "progress")  # options that change no byte


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    to: To,
    in_place: bool = False,
    table_name: str | None = None,
    overwrite: bool = False,
    link: bool = False,
    image_codec: CodecName | None = None,
    jpeg_quality: int = 95,
    jpeg_subsampling: Subsampling = 2,
    exact: bool = False,
    picture_stats: bool = True,
    skip_missing: bool = False,
    drop_audio: bool = False,
    data_files_size_in_mb: float | None = None,
    video_files_size_in_mb: float | None = None,
    codec: str | None = None,
    gop: int | None = None,
    crf: int | None = None,
    preset: int | str | None = None,
    image_size: tuple[int, int] | None = None,
    cameras: Sequence[str] | None = None,
    verify: Verify | bool = "full",
    dry_run: bool = False,
    jobs: int | None = None,
    engine: Engine | None = None,
    storage_options: Mapping[str, Any] | None = None,
    allow_external: AllowExternal | None = None,
    progress: Report | None = None,
) -> ConvertReport:
    """Convert a dataset to another layout. The source is only read.

    The target appears whole, when everything is written, synced to disk and verified, or not
    at all: an error, Ctrl-C or SIGTERM leaves nothing behind. After ``kill -9`` or a power cut
    the same call continues from what was written.

    A remote source is fetched first, into a folder beside the user's cache
    (``DEMOREEL_STAGING``) that is removed again. A remote target is made there, too, and sent
    when it is whole, ``meta/info.json`` last: there is no dataset before. What is overwritten loses
    its ``meta/info.json`` first. After an interruption the same call continues.

    Cost: videos are copied at the speed of the disk, without a look at their images; for
    lance-frames every image is decoded and encoded, on all cores. Memory stays below 1 GB.
    Verification reads everything once more, most of it while the disk writes.

    Args:
        source: A dataset of any layout that demoreel reads; its folder or its URI.
        target: The folder to make; there may be an empty one. Or ``s3://bucket/path``, ``gs://``
            or ``az://``.
        to: ``lance-video`` (numbers in one table, the videos as they are in another),
            ``lance-frames`` (a table with an encoded image per camera in every row),
            ``lance-native`` (LeRobot's own form of Lance), ``v3.0`` or ``v2.1``.
        in_place: Instead of ``target``: put the result in the source's place, when it is verified.
            The source is called ``NAME_old`` then.
        table_name: Of lance-video and lance-frames, the table's name; the source folder's by
            default.
        overwrite: Replace a dataset that is there. It stays until the new one is whole.
        link: Of lance-video and lance-native: leave the videos where they are, and point at
            them. Takes seconds, whatever their size; the source must stay then.
        image_codec: Of lance-frames: ``jpeg``; ``png`` or ``webp-lossless``, bit-exact; or
            ``source``, which keeps the bytes of images that are encoded already. By default
            ``source`` if no camera is a video, else ``jpeg``.
        jpeg_quality: 1 to 100.
        jpeg_subsampling: 0 is 4:4:4, 1 is 4:2:2, 2 is 4:2:0.
        exact: Of v2.1: where an episode begins inside a GOP, encode that group again,
            so that its video has its own frames and no more. Such episodes are refused otherwise.
        picture_stats: Of v3.0 and v2.1 made of v2.x: where statistics of images are missing,
            decode all images of that camera and compute them. False leaves them out.
        skip_missing: Of v3.0 and v2.1 made of v2.x: leave episodes out whose files are missing.
        drop_audio: Leave the audio of videos out, and say so in ``info.json``. It is copied
            otherwise; lance-frames has no place for it, and refuses videos that have some.
        data_files_size_in_mb: Of v3.0: size at which a new table is begun; None is the source's, or
            100. Given one of the two, episodes of a v3.0 source are gathered again.
        video_files_size_in_mb: Of v3.0: size at which a new video is begun; None is the source's,
            or 200.
        codec: Encode cameras again, with this codec (``h264``, ``av1``, ``hevc``) or encoder
            (``libx264``); given one of the next five alone, the codec that the cameras have. Images
            that are in tables become videos. Depth is kept as it is. Every frame is decoded and
            encoded, on all cores, and statistics of images are computed again.
        gop: Frames from keyframe to keyframe; 2 by default. Longer ones are smaller on disk, and a
            random frame costs half of them.
        crf: Constant quality, 30 by default; less is better.
        preset: The encoder's own speed.
        image_size: Height and width to scale to, even numbers.
        cameras: Encode only these; the others are kept as they are. None is all but depth.
        verify: Compare what was written with the source before it is shown: all rows and all bytes
            of images (``full``, True), some of them (``sample``) or nothing (``none``, False).
        dry_run: Check everything and say what would be done; write nothing.
        jobs: Threads, or for v3.0 and v2.1 processes; by default as many as it pays to use.
        engine: Another engine to run the tasks on, such as ``RayEngine()``; ``jobs`` has no effect
            then. All machines see source and target under the same paths.
        storage_options: Of sources and remote targets: as for ``demoreel.open``.
        allow_external: Folders or URIs outside the dataset that its Lance tables may point into; as
            for ``demoreel.open``.
        progress: Called now and then with a ``Progress``, in the calling thread.

    Returns:
        What was done.

    Raises:
        ArgumentError: The source cannot become that, a link leads out of it, audio would be lost,
            or options do not go together.
        TargetExistsError: There is something at ``target``, or at ``NAME_old``.
        MetadataError: Two features would share a column in Lance.
        VideoError: A video is missing or broken.
        FrameMismatchError: An episode begins inside a GOP, and v2.1 is wanted.
        ConversionError: What was written is not what the source holds.
        DiskFullError: There is no room.
        DatasetBusyError: Another conversion to the same folder is running; or, in place, the
            dataset is being recorded to.
        UnfinishedError: Saved episodes of the source wait to be encoded, or a commit to be
            completed.
        StoreError: A store does not answer; the same call continues from there.
        DemoreelError: The source is not readable.
    """
    options = Options(
        to=to,
        table_name=table_name,
        overwrite=overwrite,
        link=link,
        image_codec=image_codec,
        jpeg_quality=jpeg_quality,
        jpeg_subsampling=jpeg_subsampling,
        exact=exact,
        picture_stats=picture_stats,
        skip_missing=skip_missing,
        drop_audio=drop_audio,
        data_files_size_in_mb=data_files_size_in_mb,
        video_files_size_in_mb=video_files_size_in_mb,
        codec=codec,
        gop=gop,
        crf=crf,
        preset=preset,
        image_size=None if image_size is None else (image_size[0], image_size[1]),
        cameras=None if cameras is None else tuple(cameras),
        verify=verification(verify),
        dry_run=dry_run,
        jobs=jobs,
        engine=engine,
        progress=progress,
    )
    allow(source, allow_external)
    if in_place:
        refuse_remote(
            [source],
            "A remote dataset cannot be converted in place.",
            hint="give a target, which may be a URI, too",
        )
        if target is not None or overwrite or link:
            raise ArgumentError(
                "A conversion in place has no target, overwrites nothing and links nothing.",
                hint="leave target, overwrite and link out",
            )
        return _in_place(Path(source), options)
    if target is None:
        raise ArgumentError(
            "Where is the result to be written?",
            hint="give a target"
            + (", or in_place=True (--in-place)" if is_here(source) and not link else ""),
        )
    if storage_options and is_here(source, target):
        raise ArgumentError("storage_options= is for remote datasets.", hint="leave it out")
    if link and not is_here(source, target):
        raise ArgumentError(
            "Videos can be linked only where source and target are folders.", hint="leave link out"
        )
    # A remote dataset is replaced when the new one is sent.
    folders = options if is_here(target) else replace(options, overwrite=False)

    def make(sources: list[Path], place: Path | None) -> ConvertReport:
        assert place is not None
        return _convert(sources[0], Path(os.path.abspath(place)), folders)

    wanted = asdict(replace(options, progress=None, engine=None))
    report, sent = made_anywhere(
        [source],
        target,
        make,
        work=("convert", {n: v for n, v in wanted.items() if n not in _NOT_WRITTEN}),
        note=ConvertReport.to_json,
        noted=ConvertReport.from_json,
        overwrite=overwrite,
        dry_run=dry_run,
        storage_options=storage_options,
        fetching=_steps(progress, "fetch"),
        sending=_steps(progress, "send"),
    )
    return report if sent is None else replace(report, bytes_written=sent.bytes)


def _steps(report: Report | None, stage: Stage) -> Callable[[float], None] | None:
    if report is None:
        return None
    since = time.monotonic()
    return lambda share: report(
        Progress(stage, 0, 0, round(_STEPS * share), _STEPS, time.monotonic() - since)
    )


def _convert(source: Path, target: Path, options: Options) -> ConvertReport:
    refuse_waiting(source, "converted")
    with _room_on_disk(target), _terminable():
        return convert_folder(source, target, options)


def _in_place(source: Path, options: Options) -> ConvertReport:
    root = Path(os.path.abspath(source))
    old = place_of_old(root, dry_run=options.dry_run)
    open_reader(root)  # refuses what a dead writer has left in the middle of a commit
    refuse_waiting(root, "converted")
    if options.dry_run:
        beside = root.with_name(f".{root.name}.replace") / "new"
        return replace(_convert(root, beside, options), target=root, kept=old)
    with replacing_dataset(root, old) as new:
        report = _convert(root, new, options)
    return replace(report, target=root, kept=old)


@contextmanager
def _room_on_disk(target: Path) -> Iterator[None]:
    """Say what a full disk means here: nothing was written, and the source is as it was."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise DiskFullError(
            f"There is no room for the converted dataset ({error.strerror}).",
            hint="nothing was kept; make room, or choose a folder on another disk",
            path=target,
        ) from error


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end the conversion as Ctrl-C does, unless the program handles it already."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return

    def stop(*_: object) -> None:
        raise SystemExit(_TERMINATED)

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


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
        revision: Not supported: datasets are read as they are.
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
        revision: Not supported: datasets are read as they are.
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
            "revision= is not supported: datasets are read as they are.",
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
