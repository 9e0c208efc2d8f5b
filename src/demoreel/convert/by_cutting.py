"""Conversions to v3.0 and v2.1 that put episodes together or take them apart: cuts of all of it."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from demoreel.convert.items import verify_items
from demoreel.convert.metadata import carry_other_files
from demoreel.convert.options import Options
from demoreel.convert.plan import refuse_codec
from demoreel.convert.progress import Meter
from demoreel.convert.report import ConvertReport, Verified
from demoreel.convert.source import identity, unchanged
from demoreel.convert.staging import check_target
from demoreel.edit.cut import Cut, cut
from demoreel.edit.plan import Plan, make_plan
from demoreel.edit.recent_rows import remembering
from demoreel.edit.render import made_before, render
from demoreel.edit.statistics.carried import carried_from
from demoreel.edit.statistics.recompute import recompute
from demoreel.edit.target_info import Form
from demoreel.errors import ArgumentError, FrameMismatchError, VideoError
from demoreel.layouts.base import Reader
from demoreel.layouts.detect import open_reader
from demoreel.run.local import LocalEngine
from demoreel.storage.atomic import refuse_overlap
from demoreel.storage.replace import replacing

_WORTH_PROCESSES = 4 << 30  # bytes; each process costs half a second to start
_NAMED = 10  # episodes that a message names
_COMPLETE = {"min", "max", "mean", "std", "count"}


def is_a_cut(source: Path, options: Options) -> bool:
    """Whether files are put together or taken apart, and not copied as they are.

    Raises:
        DemoreelError: The source is not readable.
    """
    if options.to == "v2.1":
        return True
    return options.to == "v3.0" and open_reader(source).layout.startswith("v2")


def convert_by_cutting(source: Path, target: Path, options: Options) -> ConvertReport:
    """Convert to v2.1, or from v2.x to v3.0; see ``run.convert``.

    Raises:
        DemoreelError: See there.
    """
    began = time.monotonic()
    _refuse_options(options)
    reader = open_reader(source)
    refuse_overlap(source, target)
    work = _Work(reader, options)
    made = made_before(target, work.plan, verification="none", besides=work.besides)
    if not made:
        check_target(target, overwrite=options.overwrite)
    if options.dry_run:
        return _report(work, target, began)
    if options.overwrite and target.exists() and not made:
        with replacing(target, keep=None) as new:
            work.write(new)
    else:
        work.write(target)
    return _report(work, target, began)


def _refuse_options(options: Options) -> None:
    refuse_codec(options)
    if options.link:
        raise ArgumentError(f"{options.to} has no videos that could stay where they are (link).")
    if options.table_name is not None:
        raise ArgumentError(f"{options.to} has no table that could be named.", hint="leave it out")


@dataclass
class _Work:
    """One conversion: planned when it is made, done by ``write``."""

    reader: Reader
    options: Options
    plan: Plan = field(init=False)
    notes: list[str] = field(default_factory=list)
    found: Verified | None = None
    parts: int = 0
    resumed: int = 0
    bytes_written: int = 0

    def __post_init__(self) -> None:
        form = Form(layout=self.options.to, exact=self.options.exact)
        self._seen = identity(self.reader.root)
        self._cut = self._whole()
        try:
            self.plan = make_plan(self._cut.cutlist, form=form)
        except FrameMismatchError as error:
            raise self._explained(error) from error
        self._form = form
        self._finished = False
        self._say()
        if self.options.dry_run:
            self._say_missing(_without_stats(self.reader))

    def _whole(self) -> Cut:
        """Return a cut of all episodes whose files are there.

        Raises:
            VideoError: Some are not, and that was not to be passed over.
        """
        made, missing = cut(self.reader.root), _without_files(self.reader)
        if not missing:
            return made
        named = ",".join(map(str, missing[:_NAMED])) + ("..." if len(missing) > _NAMED else "")
        if not self.options.skip_missing:
            raise VideoError(
                f"Files of {len(missing)} of {len(made)} episodes are missing: {named}.",
                hint="fetch them, or leave those episodes out: skip_missing (--skip-missing)",
                dataset=self.reader.root,
            )
        self.notes.append(f"files of {len(missing)} episodes are missing; left out: {named}")
        return made.delete(missing)

    def _explained(self, error: FrameMismatchError) -> FrameMismatchError:
        if self.options.to != "v2.1" or self.options.exact or "cut out alone" not in error.what:
            return error
        return FrameMismatchError(
            error.what,
            hint="exact (--exact) encodes the group of pictures that it begins in anew",
            **error.where,
        )

    def _say(self) -> None:
        numbers = [clip.episode for clip in self.plan.clips]
        if numbers != list(range(len(numbers))):
            self.notes.append("episodes are numbered anew, from 0: there were gaps")
        encoded = sum(video.encoded for video in self.plan.videos)
        if encoded:
            self.notes.append(f"{encoded} frames had to be encoded anew")

    def _say_missing(self, cameras: list[str]) -> None:
        if cameras:
            names = ", ".join(cameras)
            did = "computed from all pictures" if self.options.picture_stats else "missing still"
            self.notes.append(f"statistics of {names} were missing, and are {did}")

    @property
    def besides(self) -> str:
        """What a conversion adds to a cut: neither is content with the other's result."""
        return f"converted, picture statistics: {self.options.picture_stats}"

    @property
    def video_bytes(self) -> int:
        """Bytes of video to be written."""
        return sum(video.size for video in self.plan.videos)

    def write(self, target: Path) -> None:
        """Write, verify and commit; an error, Ctrl-C and a full disk leave nothing behind."""
        plan = self.plan
        self._meter = Meter(
            self.options.progress, frames=int(plan.start[-1]), video_bytes=self.video_bytes
        )
        with remembering(plan.readers[0]):
            done = render(
                self._cut.cutlist,
                target,
                form=self._form,
                engine=LocalEngine(self._jobs),
                verification="none",
                report=self._meter.reach,
                plan=plan,
                check=self._finish,
                besides=self.besides,
                resumable=False,
            )
        self.parts, self.resumed = done.tasks, done.resumed
        if not self._finished:  # an earlier attempt had, and was killed just after
            self._say_missing(_without_stats(open_reader(target)))
            self._look(target)

    @property
    def _jobs(self) -> int:
        if self.options.jobs is not None:
            return self.options.jobs
        return (os.cpu_count() or 1) if self.plan.size > _WORTH_PROCESSES else 1

    def _finish(self, dataset: Path) -> None:
        """Add what the source lacks, compare, and say that all is well by returning."""
        meter = self._meter
        meter.begin("finish")
        carry_other_files(self.reader, dataset)
        lacking = _without_stats(open_reader(dataset))
        self._say_missing(lacking)
        if lacking and self.options.picture_stats:
            recompute(
                dataset,
                numbers=False,
                cameras=lacking,
                threads=self.options.jobs,
                report=meter.reach,
            )
        self._finished = True
        self._look(dataset)
        meter.begin("commit")

    def _look(self, dataset: Path) -> None:
        """Compare a result with the source, item by item."""
        meter = self._meter
        if self.options.verify != "none":
            meter.begin("verify")
            with ThreadPoolExecutor(os.cpu_count(), "demoreel-verify") as pool:
                full = self.options.verify == "full"
                try:
                    self.found = verify_items(self.plan, dataset, meter, pool, full=full)
                except BaseException:
                    meter.stop()
                    raise
            unchanged(self.reader.root, self._seen)
        files = (path for path in dataset.rglob("*") if path.is_file())
        self.bytes_written = sum(path.stat().st_size for path in files)


def _without_stats(reader: Reader) -> list[str]:
    """Return the cameras whose pictures have no statistics by episode.

    Cost: reads the metadata of all episodes.
    """
    known = carried_from(reader, reader.info.cameras).pictures
    return [key for key in reader.info.cameras if not known.get(key, {}).keys() >= _COMPLETE]


def _without_files(reader: Reader) -> list[int]:
    """Return the episodes of v2.x that have no table, or lack a video.

    Cost: a stat for each file.
    """
    if not reader.layout.startswith("v2"):
        return []
    found = []
    for position, number in enumerate(reader.episodes.episode_index.tolist()):
        names = [reader.data_file(position)]
        names += [reader.video_file(position, camera) for camera in reader.info.video_keys]
        if not all(os.path.exists(reader.root / name) for name in names):
            found.append(int(number))
    return found


def _report(work: _Work, target: Path, began: float) -> ConvertReport:
    plan = work.plan
    return ConvertReport(
        source=work.reader.root,
        target=target,
        source_layout=work.reader.layout,
        to=work.options.to,
        table=None,
        episodes=len(plan.clips),
        frames=int(plan.start[-1]),
        videos=len(plan.videos),
        video_bytes=work.video_bytes,
        linked=False,
        image_codec=None,
        parts=work.parts,
        resumed_parts=work.resumed,
        bytes_written=work.bytes_written,
        seconds=round(time.monotonic() - began, 3),
        verified=work.found,
        dry_run=work.options.dry_run,
        notes=tuple(work.notes),
    )
