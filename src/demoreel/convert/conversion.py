"""A conversion is a cut of all episodes, rendered to a layout.

To a Lance layout, and from one to v3.0, the result is verbatim (``edit/verbatim.py``). Between v2.x
and v3.0 episodes are put together or taken apart, as in any other cut.
"""

from __future__ import annotations

import logging
import math
import os
import re
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from demoreel.convert.report import ConvertReport, Meter, Report
from demoreel.edit.clips import Clip, CutList, Source
from demoreel.edit.cut import Cut, cut
from demoreel.edit.form import Form
from demoreel.edit.plan import Plan, make_plan
from demoreel.edit.render import Target, render
from demoreel.edit.sources import open_unchanged, remembering
from demoreel.edit.tasks import linked_folders, tables_for, task_names
from demoreel.edit.verbatim import refuse_changed
from demoreel.edit.verify import Verified, verify_items
from demoreel.errors import ArgumentError, TargetExistsError, VideoError, count
from demoreel.layouts.base import Reader
from demoreel.layouts.detect import open_reader
from demoreel.layouts.lance.schemas import named_after
from demoreel.media.images import CodecName, Subsampling
from demoreel.media.settings import ENCODERS
from demoreel.run.anywhere import folder_state
from demoreel.run.local import LocalEngine
from demoreel.run.task import Engine
from demoreel.stats.inherited import inherited_from
from demoreel.stats.recompute import recompute
from demoreel.storage.commit.files import refuse_existing, refuse_overlap
from demoreel.storage.commit.hidden_folder import claim_dead, remove_hidden, remove_outdated
from demoreel.storage.commit.replace import replacing
from demoreel.storage.external import allow_external, remember_links

log = logging.getLogger(__name__)

_WORTH_PROCESSES = 4 << 30  # bytes; each process costs half a second to start
_NAMED = 10  # episodes that a message names
_COMPLETE = {"min", "max", "mean", "std", "count"}
_PLAIN_NAME = re.compile(r"[\w][\w.-]*")


To = Literal["lance-video", "lance-frames", "lance-native", "v3.0", "v2.1"]
"""The layouts that are written."""

Verify = Literal["full", "sample", "none"]
"""How much is compared: all rows and images, some of them, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a caller asks for; ``run.convert`` says what each means."""

    to: To
    table_name: str | None = None
    overwrite: bool = False
    link: bool = False
    image_codec: CodecName | None = None
    jpeg_quality: int = 95
    jpeg_subsampling: Subsampling = 2
    exact: bool = False
    picture_stats: bool = True
    skip_missing: bool = False
    drop_audio: bool = False
    data_files_size_in_mb: float | None = None
    video_files_size_in_mb: float | None = None
    codec: str | None = None
    gop: int | None = None
    crf: int | None = None
    preset: int | str | None = None
    image_size: tuple[int, int] | None = None
    cameras: tuple[str, ...] | None = None
    verify: Verify = "full"
    dry_run: bool = False
    jobs: int | None = None
    engine: Engine | None = None
    progress: Report | None = None

    def __post_init__(self) -> None:
        if self.to not in get_args(To):
            known = ", ".join(get_args(To))
            raise ArgumentError(
                f"There is no layout {self.to!r} to convert to.", hint=f"one of {known}"
            )
        if self.jobs is not None and (not isinstance(self.jobs, int) or self.jobs < 1):
            raise ArgumentError(f"jobs must be at least 1, not {self.jobs!r}.")
        sizes = (self.data_files_size_in_mb, self.video_files_size_in_mb)
        if self.packs_anew and self.to != "v3.0":
            raise ArgumentError(
                f"Sizes of files are chosen for v3.0; {self.to} has its own.", hint="leave them out"
            )
        if any(size is not None and not 0 < size < math.inf for size in sizes):
            raise ArgumentError(f"Sizes of files must be positive, not {sizes}.")

    @property
    def encodes_anew(self) -> bool:
        """Whether cameras are encoded in another way that was asked for."""
        asked = (self.codec, self.gop, self.crf, self.preset, self.image_size, self.cameras)
        return any(option is not None for option in asked)

    @property
    def packs_anew(self) -> bool:
        """Whether episodes are gathered in files of a size that was asked for."""
        return self.data_files_size_in_mb is not None or self.video_files_size_in_mb is not None


def verification(verify: Verify | bool) -> Verify:
    """Return how much to compare; True is all of it."""
    if isinstance(verify, bool):
        return "full" if verify else "none"
    if verify not in get_args(Verify):
        known = ", ".join(get_args(Verify))
        raise ArgumentError(f"verify must be one of {known}, not {verify!r}.")
    return verify


def convert_folder(source: Path, target: Path, options: Options) -> ConvertReport:
    """Convert a folder to a folder; see ``run.convert``."""
    began = time.monotonic()
    reader = open_unchanged([_as_source(source)])[0]
    refuse_overlap(source, target)
    _put_back(target)
    work = _Conversion(reader, target, options)
    made = work.made_before()
    if not made:
        _refuse_existing(target, overwrite=options.overwrite)
    if not options.dry_run:
        if options.overwrite and target.exists() and not made:
            with replacing(target, keep=None) as new:
                work.write(new)
            remove_outdated(target)
        else:
            work.write(target)
    return work.report(began)


def _as_source(folder: Path) -> Source:
    return Source(os.path.abspath(folder), "")


def _put_back(target: Path) -> None:
    """Undo a replacement in which a process of an earlier version was killed.

    It was under way only where two folders cannot be exchanged as one step.
    """
    folder = target.with_name(f".{target.name}.convert")
    lock = claim_dead(folder) if (folder / "before").is_dir() else None
    if lock is not None:
        if not target.exists():
            os.rename(folder / "before", target)
            remove_hidden(folder)
        os.close(lock)


def _refuse_existing(target: Path, *, overwrite: bool) -> None:
    if not (overwrite and target.is_dir() and any(target.iterdir())):
        options = "choose another folder, or pass overwrite (--overwrite) to replace a dataset"
        refuse_existing(target, hint=options)
    elif not (target / "meta" / "info.json").is_file():
        raise TargetExistsError(
            "What is in the folder to be overwritten is not a dataset.",
            hint="choose another folder, or delete this one yourself",
            path=target,
        )


def form_of(reader: Reader, options: Options) -> Form:
    """Return how a conversion is stored; refuse options that do not go together."""
    to, is_v2 = options.to, reader.layout.startswith("v2")
    codec = None
    video_cameras = [key for key in reader.info.cameras if not reader.in_tables(key)]
    if to == "lance-frames":
        codec = options.image_codec or ("jpeg" if video_cameras else "source")
        if codec == "source" and video_cameras:
            raise ArgumentError(
                f"The images of {video_cameras[0]!r} are in videos: there are no images to keep.",
                hint="choose jpeg, png or webp-lossless; or lance-video, which keeps the videos",
                dataset=reader.root,
            )
    elif options.image_codec is not None:
        raise ArgumentError(
            f"image_codec is for lance-frames; {to} keeps images and videos as they are.",
            hint="leave it out",
        )
    if to == "lance-video" and reader.info.cameras and not video_cameras:
        raise ArgumentError(
            "This dataset's images are in its tables; it has no videos for lance-video to keep.",
            hint="convert it to lance-frames",
            dataset=reader.root,
        )
    if options.link and to not in ("lance-video", "lance-native"):
        raise ArgumentError(f"{to} has no videos that could stay where they are (link).")
    if options.encodes_anew:
        _refuse_encoding(reader, options)
    if options.link and not video_cameras:
        raise ArgumentError("This dataset has no videos that could be linked.", dataset=reader.root)
    form = Form(
        layout=to,
        exact=options.exact,
        drop_audio=options.drop_audio,
        data_files_size_in_mb=options.data_files_size_in_mb,
        video_files_size_in_mb=options.video_files_size_in_mb,
        verbatim=not options.encodes_anew
        and (to.startswith("lance") or (to == "v3.0" and not is_v2 and not options.packs_anew)),
        vcodec=(options.codec or _codec_of(reader)) if options.encodes_anew else None,
        gop=options.gop,
        crf=options.crf,
        preset=options.preset,
        image_size=options.image_size,
        cameras=options.cameras,
        images="video" if options.encodes_anew and _films(reader, options) else "keep",
        link=options.link,
        table=_table_name(reader.root, options),
        image_codec=codec,
        jpeg_quality=options.jpeg_quality,
        jpeg_subsampling=options.jpeg_subsampling,
    )
    _ = form.images_as  # refuses a quality that there is none of
    return form


def _refuse_encoding(reader: Reader, options: Options) -> None:
    """Refuse what encoding cameras again does not go together with."""
    cameras = [key for key in reader.info.cameras if not reader.info.features[key].is_depth]
    if options.to == "lance-frames":
        raise ArgumentError(
            "lance-frames has images and no videos that codec, gop, crf and image_size speak of.",
            hint="encode videos first, with to='v3.0', then convert those to lance-frames",
            dataset=reader.root,
        )
    if options.link or options.exact:
        raise ArgumentError(
            "Videos that are re-encoded are neither linked nor kept exact.",
            hint="leave link and exact out",
        )
    if not cameras:
        raise ArgumentError(
            "This dataset has no camera to be encoded; depth is kept as it is.", dataset=reader.root
        )


def _films(reader: Reader, options: Options) -> bool:
    """Whether cameras whose images are in tables become videos: those that are named, or all."""
    chosen = reader.info.image_keys if options.cameras is None else options.cameras
    return any(key in reader.info.image_keys for key in chosen)


def _codec_of(reader: Reader) -> str:
    """Return the codec that most of a dataset's cameras have, to be encoded with again."""
    features = reader.info.features
    named = [str(features[key].info.get("video.codec")) for key in reader.info.video_keys]
    known = [name for name in named if name in ENCODERS and name not in ("mpeg4", "ffv1")]
    return max(known, key=known.count) if known else "av1"


def _table_name(source: Path, options: Options) -> str | None:
    to, wanted = options.to, options.table_name
    if to not in ("lance-video", "lance-frames"):
        if wanted is not None:
            raise ArgumentError(f"{to} has no table that could be named.", hint="leave it out")
        return None
    if wanted is None:
        return named_after(Path(os.path.realpath(source)).name)
    if not _PLAIN_NAME.fullmatch(wanted) or wanted.endswith(("_videos", ".lance")):
        raise ArgumentError(
            f"A table cannot be named {wanted!r}.",
            hint="letters, digits, '_', '-' and '.'; not ending in _videos or .lance",
        )
    return wanted


@dataclass
class _Conversion:
    """One conversion: planned when it is made, done by ``write``."""

    reader: Reader
    target: Path
    options: Options
    plan: Plan = field(init=False)
    notes: list[str] = field(default_factory=list)
    found: Verified | None = None
    resumed: int = 0
    bytes_written: int = 0
    dropped: Sequence[str] = ()

    def __post_init__(self) -> None:
        form = form_of(self.reader, self.options)
        self._seen = "" if form.verbatim else folder_state(self.reader.root)
        cutlist = self._all() if form.verbatim else self._whole().cutlist
        readers = [self.reader] if form.verbatim else None
        self.plan = make_plan(cutlist, form=form, readers=readers)
        self._lance = tables_for(form, self.target.name, self.plan.info)
        if self._lance is not None:
            self._lance.rows(self.plan.info)  # refuses what no table can hold
        self._finished = False
        self.dropped = self.plan.dropped
        self._say()
        if self.plan.verbatim is not None:
            self._seen = self.plan.verbatim.identity
        elif self.options.dry_run:
            self._say_missing(_without_stats(self.reader))

    def _all(self) -> CutList:
        """Return the cut list of all episodes; the plan says what changes when the source does."""
        episodes = self.reader.episodes
        pairs = zip(episodes.episode_index.tolist(), episodes.length.tolist(), strict=True)
        clips = tuple(Clip(0, number, 0, length) for number, length in pairs)
        return CutList((_as_source(self.reader.root),), clips)

    def _whole(self) -> Cut:
        """Return a cut of all episodes whose files are there."""
        made, missing = cut(self.reader.root), _without_files(self.reader)
        if not missing:
            return made
        named = ",".join(map(str, missing[:_NAMED])) + ("..." if len(missing) > _NAMED else "")
        if not self.options.skip_missing:
            raise VideoError(
                f"Files of {len(missing)} of {count(len(made), 'episode')} are missing: {named}.",
                hint="fetch them, or leave those episodes out: skip_missing (--skip-missing)",
                dataset=self.reader.root,
            )
        self.notes.append(
            f"files of {count(len(missing), 'episode')} are missing; left out: {named}"
        )
        return made.delete(missing)

    def _say(self) -> None:
        numbers = [clip.episode for clip in self.plan.clips]
        if self.plan.verbatim is None and numbers != list(range(len(numbers))):
            self.notes.append("episodes are renumbered from 0: there were gaps")
        encoded = sum(video.encoded for video in self.plan.videos)
        if encoded and not self.options.encodes_anew:
            self.notes.append(f"{count(encoded, 'frame')} had to be re-encoded")

    def _say_missing(self, cameras: list[str]) -> None:
        if cameras:
            names = ", ".join(cameras)
            did = "computed from all images" if self.options.picture_stats else "missing still"
            self.notes.append(f"statistics of {names} were missing, and are {did}")

    def made_before(self) -> bool:
        """Whether the target is the result of the same call, which was killed just after."""
        return self._rendered_to(self.target).made_before(self.plan)

    def _rendered_to(self, folder: Path) -> Target:
        # Whole videos are compared while they are copied, all else at the end.
        verification = self.options.verify if self.plan.verbatim is not None else "none"
        return _ConversionTarget(
            folder=folder, verification=verification, resumable=False, conversion=self
        )

    def write(self, target: Path) -> None:
        """Write, verify and commit; an error, Ctrl-C and a full disk leave nothing behind."""
        plan = self.plan
        linked = plan.form.link
        size = 0 if linked else sum(video.size for video in plan.videos)
        self._meter = Meter(self.options.progress, frames=int(plan.start[-1]), video_bytes=size)
        with remembering(plan.readers[0]):
            done = render(
                plan,
                self._rendered_to(target),
                engine=self._engine(),
                report=self._meter.reach,
            )
            self.resumed, self.dropped = done.resumed, done.dropped
            if not self._finished:  # an earlier attempt had, and was killed just after
                if plan.verbatim is None:
                    self._say_missing(_without_stats(open_reader(target)))
                self._look(target, ())

    def _engine(self) -> Engine:
        if self.options.engine is not None:
            return self.options.engine
        jobs = self.options.jobs
        cores = os.cpu_count() or 1
        if self.plan.verbatim is not None or self.options.encodes_anew:
            return LocalEngine(threads=jobs or cores)
        return LocalEngine(jobs or (cores if self.plan.size > _WORTH_PROCESSES else 1))

    def finish(self, dataset: Path, written: Collection[str]) -> None:
        """Add what the source lacks, compare, and say that all is well by returning."""
        meter = self._meter
        meter.begin("finish")
        if self.plan.verbatim is None:
            lacking = _without_stats(open_reader(dataset))
            self._say_missing(lacking)
            if self.options.encodes_anew:  # of other pixels
                anew = {key for key, camera in self.plan.video_plans.items() if camera.encoded}
                lacking = [key for key in self.plan.info.cameras if key in {*lacking, *anew}]
            if lacking and self.options.picture_stats:
                recompute(
                    dataset,
                    numbers=False,
                    cameras=lacking,
                    threads=self.options.jobs,
                    report=meter.reach,
                )
        self._finished = True
        self._look(dataset, written)
        meter.begin("commit")
        self._note_links(dataset)

    def _look(self, dataset: Path, written: Collection[str]) -> None:
        """Compare a result with the source, item by item."""
        meter = self._meter
        if self.plan.form.link:  # in this process, the new table may name what it was linked to
            linked = self._linked(dataset)
            if any(Path(folder).is_relative_to(self.target.resolve()) for folder in linked):
                raise ArgumentError(
                    "A video to be linked is in the folder to be replaced.", path=self.target
                )
            allow_external(dataset, linked)
        if self.options.verify != "none":
            meter.begin("verify")
            with ThreadPoolExecutor(max(4, os.cpu_count() or 1), "demoreel-verify") as pool:
                full = self.options.verify == "full"
                try:
                    self.found = verify_items(self.plan, dataset, meter, pool, written, full=full)
                except BaseException:
                    meter.stop()
                    raise
            refuse_changed(self.reader.root, self._seen)
        files = (path for path in dataset.rglob("*") if path.is_file())
        self.bytes_written = sum(path.stat().st_size for path in files)

    def _linked(self, dataset: Path) -> list[str]:
        assert self._lance is not None
        assert self._lance.videos is not None
        return linked_folders(self.plan, dataset / self._lance.videos)

    def _note_links(self, dataset: Path) -> None:
        """Note where the videos stayed, so that this user opens the result without more ado."""
        if not self.plan.form.link:
            return
        assert self._lance is not None
        assert self._lance.videos is not None
        name = self._lance.videos
        try:
            remember_links(self.target / name, self._linked(dataset), made_in=dataset / name)
        except OSError as error:
            log.warning(
                "%s: where its videos are could not be noted (%s); open it with allow_external=",
                self.target,
                error,
            )

    def report(self, began: float) -> ConvertReport:
        """Return what was done, or would be."""
        plan, form = self.plan, self.plan.form
        return ConvertReport(
            source=self.reader.root,
            target=self.target,
            source_layout=self.reader.layout,
            to=form.layout,
            table=form.table,
            episodes=len(plan.clips),
            frames=int(plan.start[-1]),
            videos=len(plan.videos),
            video_bytes=sum(video.size for video in plan.videos),
            linked=form.link,
            image_codec=None if form.image_codec is None else str(form.images_as),
            parts=len(task_names(plan)),
            resumed_parts=self.resumed,
            bytes_written=self.bytes_written,
            seconds=round(time.monotonic() - began, 3),
            verified=self.found,
            dry_run=self.options.dry_run,
            notes=tuple(self.notes),
            dropped=tuple(self.dropped),
        )


@dataclass(frozen=True, kw_only=True)
class _ConversionTarget(Target):
    """A target that is compared with the source item by item before it appears."""

    conversion: _Conversion

    @property
    def work(self) -> str:
        """What a conversion adds to a cut: neither's result is taken for the other's."""
        stats = self.conversion.options.picture_stats
        return f"verified {self.verification} converted, image statistics: {stats}"

    def look_at_all(self, plan: Plan, dataset: Path, written: Collection[str]) -> None:
        """Add what the source lacks, and compare."""
        self.conversion.finish(dataset, written)


def _without_stats(reader: Reader) -> list[str]:
    """Return the cameras whose images have no statistics by episode.

    Cost: reads the metadata of all episodes.
    """
    known = inherited_from(reader, reader.info.cameras).cameras
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
