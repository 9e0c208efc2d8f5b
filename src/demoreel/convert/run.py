"""``demoreel.convert``: plan, write, finish, verify, commit."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from demoreel.convert.lance_target import LanceTarget, row_schema
from demoreel.convert.plan import Plan, To, make_plan
from demoreel.convert.progress import Meter, Report, Stopped
from demoreel.convert.report import ConvertReport, Verified
from demoreel.convert.source import identity
from demoreel.convert.staging import Staging, check_target, staging
from demoreel.convert.v3_target import V3Target
from demoreel.convert.verify import verify as verified
from demoreel.errors import ArgumentError, ConversionError, DiskFullError
from demoreel.media.picture_encode import CodecName, Subsampling
from demoreel.storage.no_room import NO_ROOM

_TELL_EVERY = 0.1  # seconds
_MOST_COPIES = 4  # at a time: more only make a disk seek
_TERMINATED = 128 + signal.SIGTERM


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    to: To,
    table_name: str | None = None,
    overwrite: bool = False,
    link: bool = False,
    image_codec: CodecName | None = None,
    jpeg_quality: int = 95,
    jpeg_subsampling: Subsampling = 2,
    verify: bool = True,
    dry_run: bool = False,
    jobs: int | None = None,
    progress: Report | None = None,
) -> ConvertReport:
    """Convert a dataset to another layout. The source is only read.

    The target appears whole, when everything is written, forced to disk and verified, or not
    at all: an error, Ctrl-C or SIGTERM leaves nothing behind. After ``kill -9`` or a power cut
    the same call goes on from what was written.

    Cost: videos are copied at the speed of the disk, without a look at their pictures; for
    lance-frames every picture is decoded and encoded, on all cores. Memory stays below 1 GB.
    Verification reads everything once more.

    Args:
        source: A dataset of any layout that demoreel reads.
        target: The folder to make; there may be an empty one.
        to: ``lance-video`` (numbers in one table, the videos as they are in another),
            ``lance-frames`` (a table with an encoded picture per camera in every row),
            ``lance-native`` (what lerobot reads itself) or ``v3.0``.
        table_name: Of lance-video and lance-frames, the table's name; the source folder's by
            default.
        overwrite: Replace a dataset that is there. It stays until the new one is whole.
        link: Of lance-video and lance-native: leave the videos where they are, and point at
            them. Takes seconds, whatever their size; the source must stay then.
        image_codec: Of lance-frames: ``jpeg``; ``png`` or ``webp-lossless``, bit-exact; or
            ``source``, which keeps the bytes of pictures that are encoded already. By default
            ``source`` if no camera is a video, else ``jpeg``.
        jpeg_quality: 1 to 100.
        jpeg_subsampling: 0 is 4:4:4, 1 is 4:2:2, 2 is 4:2:0.
        verify: Compare what was written with the source before it is shown.
        dry_run: Check everything and say what would be done; write nothing.
        jobs: Threads; every core by default.
        progress: Called now and then with a ``Progress``, in the calling thread.

    Returns:
        What was done.

    Raises:
        ArgumentError: The source cannot become that, or options do not go together.
        TargetExistsError: There is something at ``target``.
        MetadataError: Two features would share a column in Lance.
        ConversionError: What was written is not what the source holds.
        DiskFullError: There is no room.
        DatasetBusyError: Another conversion to the same folder is running.
        DemoreelError: The source is not readable.
    """
    began = time.monotonic()
    if jobs is not None and (not isinstance(jobs, int) or jobs < 1):
        raise ArgumentError(f"jobs must be at least 1, not {jobs!r}.")
    here, there = Path(source), Path(os.path.abspath(target))
    plan = make_plan(
        here,
        there,
        to=to,
        table_name=table_name,
        link=link,
        image_codec=image_codec,
        jpeg_quality=jpeg_quality,
        jpeg_subsampling=jpeg_subsampling,
    )
    if plan.to != "v3.0":
        row_schema(plan)  # refuses features that Lance cannot hold before anything is made
    check_target(there, overwrite=overwrite)
    if dry_run:
        return _report(plan, began, dry_run=True)
    with (
        _room_on_disk(there),
        _terminable(),
        staging(there, plan.fingerprint, overwrite=overwrite) as stage,
    ):
        meter = Meter(progress, frames=plan.frames, video_bytes=plan.video_bytes)
        resumed = len(stage.done)
        work = _Work(plan, stage, meter, jobs or os.cpu_count() or 1)
        work.write()
        found = work.verify() if verify else None
        meter.begin("commit")
        size = _size_on_disk(stage.dataset)
        stage.commit()
    return _report(plan, began, resumed=resumed, size=size, found=found)


class _Work:
    """The threads of one conversion."""

    def __init__(self, plan: Plan, stage: Staging, meter: Meter, jobs: int) -> None:
        self._plan = plan
        self._stage = stage
        self._meter = meter
        self._jobs = jobs
        self._target: LanceTarget | V3Target = (
            V3Target(plan, stage.dataset, meter)
            if plan.to == "v3.0"
            else LanceTarget(plan, stage.dataset, meter, threads=jobs)
        )

    def write(self) -> None:
        """Write the parts that are not there yet, then tables and metadata."""
        done, plan = self._stage.done, self._plan
        self._target.clear_unfinished(done)
        rows = [part for part in plan.row_parts if part.name not in done]
        videos = [part for part in plan.video_parts if part.name not in done]
        with self._pools() as (copies, single):
            work = [single.submit(self._part, self._target.write_rows, part) for part in rows]
            work += [copies.submit(self._part, self._target.write_videos, p) for p in videos]
            self._wait(work)
        self._meter.begin("finish")
        self._target.finish(done)

    def _part(self, write: Callable[[Any], list[str]], part: Any) -> None:
        self._meter.check()
        self._stage.note(part.name, write(part))

    def verify(self) -> Verified:
        """Read everything back and compare it with the source.

        Raises:
            ConversionError: Something is not the same, or the source has changed meanwhile.
        """
        self._meter.begin("verify")
        with self._pools() as (copies, single):
            work: Future[Verified] = single.submit(
                verified, self._plan, self._stage.dataset, self._meter, copies
            )
            self._wait([work])
        if identity(self._plan.reader.root) != self._plan.source_identity:
            raise ConversionError(
                "The source has changed while it was converted.",
                hint="convert it again when nobody writes to it",
                dataset=self._plan.reader.root,
            )
        return work.result()

    @contextmanager
    def _pools(self) -> Iterator[tuple[ThreadPoolExecutor, ThreadPoolExecutor]]:
        """Yield threads that copy, and one for what happens in order; all stop if one fails."""
        with (
            ThreadPoolExecutor(min(self._jobs, _MOST_COPIES), "demoreel-copy") as copies,
            ThreadPoolExecutor(1, "demoreel-rows") as single,
        ):
            try:
                yield copies, single
            except BaseException:
                self._meter.stop()
                for pool in (single, copies):
                    pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _wait(self, work: list[Future[Any]]) -> None:
        """Wait for threads, and tell the caller now and then how far they are."""
        pending = set(work)
        while pending:
            done, pending = wait(pending, timeout=_TELL_EVERY, return_when=FIRST_COMPLETED)
            failed = [error for future in done if (error := future.exception())]
            if failed:
                # One that was stopped because another failed is not the one to tell of.
                raise next((e for e in failed if not isinstance(e, Stopped)), failed[0])
            self._meter.tell()


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
    """Let SIGTERM end the conversion as Ctrl-C does, where nobody else has a say in it."""
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


def _size_on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _report(
    plan: Plan,
    began: float,
    *,
    dry_run: bool = False,
    resumed: int = 0,
    size: int = 0,
    found: Verified | None = None,
) -> ConvertReport:
    return ConvertReport(
        source=plan.reader.root,
        target=plan.target,
        source_layout=plan.reader.layout,
        to=plan.to,
        table=plan.table or None,
        episodes=len(plan.reader.episodes),
        frames=plan.frames,
        videos=len(plan.videos),
        video_bytes=sum(part.size for part in plan.video_parts),
        linked=plan.link,
        image_codec=None if plan.codec is None else str(plan.codec),
        parts=len(plan.row_parts) + len(plan.video_parts),
        resumed_parts=resumed,
        bytes_written=size,
        seconds=round(time.monotonic() - began, 3),
        verified=found,
        dry_run=dry_run,
    )
