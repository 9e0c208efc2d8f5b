"""Conversions that keep every video and picture as it is, or encode pictures anew for a table."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from demoreel.convert.lance_target import LanceTarget, row_schema
from demoreel.convert.options import Options
from demoreel.convert.plan import Plan, make_plan
from demoreel.convert.progress import Meter, Stopped
from demoreel.convert.report import ConvertReport, Verified
from demoreel.convert.source import unchanged
from demoreel.convert.staging import Staging, check_target, made_before, staging
from demoreel.convert.v3_target import V3Target
from demoreel.convert.verify import verify as verified
from demoreel.edit.recent_rows import remembering

_TELL_EVERY = 0.1  # seconds
_MOST_COPIES = 4  # at a time: more only make a disk seek


def convert_by_copying(source: Path, target: Path, options: Options) -> ConvertReport:
    """Convert to a Lance layout, or from one to v3.0; see ``run.convert``.

    Raises:
        DemoreelError: See there.
    """
    began = time.monotonic()
    plan = make_plan(source, target, options)
    if plan.to != "v3.0":
        row_schema(plan)  # refuses features that Lance cannot hold before anything is made
    if options.dry_run:
        if not made_before(target, plan.fingerprint):
            check_target(target, overwrite=options.overwrite)
        return _report(plan, began, dry_run=True)
    with (
        staging(target, plan.fingerprint, overwrite=options.overwrite) as stage,
        remembering(plan.reader),
    ):
        meter = Meter(options.progress, frames=plan.frames, video_bytes=plan.video_bytes)
        resumed = len(stage.done)
        work = _Work(plan, stage, meter, options.jobs or os.cpu_count() or 1)
        if stage.committed:
            resumed = plan.parts
            found, size = work.look_again(target), _size_on_disk(target)
        else:
            work.write()
            found = work.finish()
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
        self._written: set[str] = set()
        self._target: LanceTarget | V3Target = (
            V3Target(plan, stage.dataset, meter)
            if plan.to == "v3.0"
            else LanceTarget(plan, stage.dataset, meter, threads=jobs)
        )

    def write(self) -> None:
        """Write the parts that are not there yet."""
        done, plan = self._stage.done, self._plan
        self._target.clear_unfinished(done)
        rows = [part for part in plan.row_parts if part.name not in done]
        videos = [part for part in plan.video_parts if part.name not in done]
        self._written = {part.name for part in videos}
        with self._pools() as (copies, single):
            work = [single.submit(self._part, self._target.write_rows, part) for part in rows]
            work += [copies.submit(self._part, self._target.write_videos, p) for p in videos]
            self._wait(work)

    def _part(self, write: Callable[[Any], list[str]], part: Any) -> None:
        self._meter.check()
        self._stage.note(part.name, write(part))

    def finish(self) -> Verified | None:
        """Make tables and metadata of the parts, and read everything back.

        Returns:
            What was compared with the source; None if nothing was to be.

        Raises:
            ConversionError: Something is not the same, or the source has changed meanwhile.
        """
        self._meter.begin("finish")
        self._target.finish(self._stage.done)
        if self._plan.verify == "none":
            self._target.add_indices()
            return None
        # Tables are whole without their indices, so that both can go on at the same time.
        return self._look(self._stage.dataset, meanwhile=self._target.add_indices)

    def look_again(self, dataset: Path) -> Verified | None:
        """Read back what an earlier attempt has made and put in its place.

        Raises:
            ConversionError: Something is not the same, or the source has changed meanwhile.
        """
        return None if self._plan.verify == "none" else self._look(dataset)

    def _look(self, dataset: Path, *, meanwhile: Callable[[], None] = lambda: None) -> Verified:
        plan, meter = self._plan, self._meter
        meter.begin("verify")
        with self._pools() as (copies, single):
            other = copies.submit(meanwhile)
            work = single.submit(verified, plan, dataset, meter, copies, self._written)
            self._wait([other, work])
        unchanged(plan.reader.root, plan.source_identity)
        return work.result()

    @contextmanager
    def _pools(self) -> Iterator[tuple[ThreadPoolExecutor, ThreadPoolExecutor]]:
        """Yield threads that copy, and one for what happens in order; all stop if one fails."""
        with (
            # One more than works: somebody always waits for the disk.
            ThreadPoolExecutor(min(self._jobs + 1, _MOST_COPIES), "demoreel-copy") as copies,
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
        parts=plan.parts,
        resumed_parts=resumed,
        bytes_written=size,
        seconds=round(time.monotonic() - began, 3),
        verified=found,
        dry_run=dry_run,
    )
