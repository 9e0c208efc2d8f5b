"""From a plan to tasks: one for each file or, where files are small and many, for some of them.

For results in the Lance layouts tasks write fragments, and the end makes tables of them. Fragments
are data files that no reader sees before a table names them, so tasks may run anywhere, twice, or
in vain. Videos go straight from their sources' packets into the table of videos.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import unquote, urlsplit

from demoreel.edit.compare import compare_copy
from demoreel.edit.form import Form
from demoreel.edit.plan import Plan, TableOut
from demoreel.edit.tables import TableJob, numbered_pieces, verbatim_rows, write_facts, write_tables
from demoreel.edit.video_plan import VideoOut
from demoreel.edit.videos import (
    VideoJob,
    heard_in,
    packets_of,
    refuse_other_length,
    whole_video,
    write_videos,
)
from demoreel.errors import ArgumentError
from demoreel.layouts.lance import write as lance_write
from demoreel.layouts.lance.schemas import (
    BYTES_COLUMN,
    FiledVideo,
    LanceSchema,
    named_after,
    rows_batch,
    schema_of,
)
from demoreel.layouts.lance.tables import LanceTable
from demoreel.media.mp4_write import SplicedVideo
from demoreel.media.video import index_video
from demoreel.model import Info
from demoreel.run.task import Task
from demoreel.stats.columns import Facts
from demoreel.storage.commit.staging import Staging
from demoreel.storage.local import LocalFile

_BYTES = (64 << 20, 1 << 30)  # of the small files that one task writes, least and most
_MOST_TASKS = 64  # for a camera, unless they would write more than that
_FILES = 256

File = TypeVar("File", TableOut, VideoOut)


def tasks_of(
    plan: Plan, stage: Staging, *, compare: bool = False, threads: int | None = None
) -> list[Task]:
    """Return the tasks of a plan; every machine gets the same ones, by the same names.

    Args:
        plan: The plan.
        stage: Where they write.
        compare: Whether whole videos are compared with their source when they are copied.
        threads: How many of them encode in one task; None is every core for images in rows, and one
            for videos.
    """
    return [*_table_tasks(plan, stage, threads), *_video_tasks(plan, stage, compare, threads or 1)]


def lance_tables(plan: Plan, stage: Staging) -> LanceSchema | None:
    """Return the Lance tables of a result; None if it has none."""
    return tables_for(plan.form, stage.target.name, plan.info)


def parts_of(plan: Plan, stage: Staging) -> list[Path]:
    """Return where the tasks that write tables put what they found out, in order."""
    return [stage.parts / f"{name}.parquet" for name in _table_task_names(plan)]


def fragments_of(plan: Plan, stage: Staging, kind: Literal["rows", "videos"]) -> list[str]:
    """Return what tasks that have all ended noted of the fragments that they wrote, in order."""
    names = _table_task_names(plan) if kind == "rows" else _video_task_names(plan)
    found = [stage.done(name) for name in names]
    assert all(note is not None for note in found)
    return [text for note in found if note is not None for text in note["fragments"]]


def task_names(plan: Plan) -> list[str]:
    """Return the names of a plan's tasks."""
    return [*_table_task_names(plan), *_video_task_names(plan)]


def copied_by(plan: Plan) -> Iterator[tuple[str, VideoOut]]:
    """Yield every video, with the name of the task that makes it."""
    for name, _, videos in _video_groups(plan):
        for video in videos:
            yield name, video


def _table_task_names(plan: Plan) -> list[str]:
    return [_table_task(number) for number, _ in enumerate(_table_groups(plan))]


def _video_task_names(plan: Plan) -> list[str]:
    return [name for name, _, _ in _video_groups(plan)]


def _table_task(number: int) -> str:
    return f"tables-{number:05d}"


def _video_task(camera: int, number: int) -> str:
    return f"videos-{camera:03d}-{number:05d}"


def _table_groups(plan: Plan) -> Iterator[list[TableOut]]:
    if plan.verbatim is not None:  # planned in parts that are worth a task
        return ([table] for table in plan.tables)
    return _groups(plan.tables, one_each=plan.layout == "v3.0")


def _video_groups(plan: Plan) -> Iterator[tuple[str, Sequence[str | None], list[VideoOut]]]:
    """Yield the name of each task, its camera's key in every source, and its videos."""
    if plan.verbatim is not None:  # any cameras go together: they keep their keys
        for number, videos in enumerate(_groups(plan.videos, one_each=False)):
            yield _video_task(0, number), (), videos
        return
    one_each = plan.layout == "v3.0"
    for place, (camera, of_camera) in enumerate(plan.video_plans.items()):
        keys = [view.origin.get(camera) for view in plan.views]
        for number, videos in enumerate(_groups(of_camera.videos, one_each=one_each)):
            yield _video_task(place, number), keys, videos


def _groups(files: Sequence[File], *, one_each: bool) -> Iterator[list[File]]:
    """Yield the files of one task after the other: v3.0's are large, others' need not be."""
    group: list[File] = []
    size = 0
    least, most = _BYTES
    limit = min(max(sum(file.size for file in files) // _MOST_TASKS, least), most)
    for file in files:
        if group and (one_each or size + file.size > limit or len(group) == _FILES):
            yield group
            group, size = [], 0
        group.append(file)
        size += file.size
    if group:
        yield group


def _table_tasks(plan: Plan, stage: Staging, threads: int | None) -> Iterator[Task]:
    lance = lance_tables(plan, stage)
    numbers = {text: number for number, text in enumerate(plan.tasks)}
    for number, tables in enumerate(_table_groups(plan)):
        first = tables[0].first
        clips = [clip for table in tables for clip in table.numbers]
        job = TableJob(
            folder=str(stage.folder),
            name=_table_task(number),
            tables=[(table.path(plan.info), len(table.numbers)) for table in tables],
            sources=plan.cutlist.sources,
            views=plan.views,
            missing=plan.missing,
            features=plan.info.features,
            clips=[plan.clips[clip] for clip in clips],
            positions=plan.positions[clips].tolist(),
            episode=first,
            start=int(plan.start[first]),
            tasks=numbers,
            fps=plan.info.fps,
            verbatim=plan.verbatim is not None,
            images_as=plan.form.images_as if plan.layout == "lance-frames" else None,
            threads=threads,
        )
        size = sum(table.size for table in tables)
        if lance is None:
            yield Task(job.name, write_tables, (job,), size)
        else:
            yield Task(job.name, write_lance_rows, (job, lance, plan.info), size)


def _video_tasks(plan: Plan, stage: Staging, compare: bool, threads: int) -> Iterator[Task]:
    lance = lance_tables(plan, stage)
    for name, keys, videos in _video_groups(plan):
        job = VideoJob(
            folder=str(stage.folder),
            sources=plan.cutlist.sources,
            keys=keys,
            videos=[(video.path(plan.info), video) for video in videos],
            compare=compare,
            threads=threads,
        )
        size = sum(video.size for video in videos if video.whole != "linked")
        copies = all(video.is_copied for video in videos)
        kind = {"copies": copies, "long": not copies}
        if lance is None:
            yield Task(name, write_videos, (job,), size, **kind)
        else:
            yield Task(name, write_lance_videos, (job, lance), size, **kind)


def tables_for(form: Form, name: str, info: Info) -> LanceSchema | None:
    """Return the tables of a result; None where it does not lie in Lance.

    Args:
        form: How it is to lie on disk.
        name: The name of its folder, which tables are named after.
        info: What it will be.
    """
    if not form.layout.startswith("lance"):
        return None
    return schema_of(form.layout, form.table or named_after(name), info)


def write_lance_rows(job: TableJob, tables: LanceSchema, info: Info) -> dict[str, Any]:
    """Write rows as fragments, and beside them what the commit must know of their episodes.

    Memory: the numbers of 65,536 rows or, where they are many, of an episode; 32 MB of images.
    """
    folder = Path(job.folder)
    facts = Facts(job.features, list(job.tasks))
    schema = tables.rows(info, job.images_as)
    rows = verbatim_rows(job, by_episode=False) if job.verbatim else numbered_pieces(job, facts)
    pieces = itertools.chain.from_iterable(rows)
    # Closed at once if something fails: threads that encode images wait to be told.
    with closing(rows_batch(schema, columns) for columns in pieces) as batches:
        fragments = lance_write.write_rows(folder / "dataset" / tables.frames, schema, batches)
    files = {name: os.path.getsize(folder / name) for name in write_facts(job, facts)}
    return {"files": files | _files(folder, tables.frames, fragments), "fragments": fragments}


def write_lance_videos(job: VideoJob, tables: LanceSchema) -> dict[str, Any]:
    """Write videos into a fragment of the table of videos.

    Cost: a copy of their bytes; what is encoded takes the time of its codec.
    """
    assert tables.videos is not None
    folder = Path(job.folder)
    table = folder / "dataset" / tables.videos
    if all(video.whole == "linked" for _, video in job.videos):
        fragments = _link(job, tables, table)
        return {"files": _files(folder, tables.videos, fragments), "fragments": fragments}
    check = compare_copy if job.compare else None
    blobs = lance_write.BlobPart(table, BYTES_COLUMN, check=check)
    try:
        filed = []
        with closing(packets_of(job)) as packets:
            for name, video in job.videos:
                if video.whole is not None:
                    made = whole_video(job, video)
                    blobs.add(made.file)
                else:
                    runs, description = next(packets)
                    audio = heard_in(video, job)
                    mp4 = SplicedVideo(runs, description=description, fps=video.fps, audio=audio)
                    refuse_other_length(video, mp4.frames)
                    blobs.add(mp4)
                    made = index_video(mp4, name)
                filed.append(FiledVideo(video.camera, video.chunk, video.file, made))
        fragments = blobs.finish(tables.video_rows(filed))
    except BaseException:
        blobs.abandon()
        raise
    return {"files": _files(folder, tables.videos, fragments), "fragments": fragments}


def _link(job: VideoJob, tables: LanceSchema, table: Path) -> list[str]:
    """Write rows that point at videos where they are."""
    filed = [
        FiledVideo(video.camera, video.chunk, video.file, whole_video(job, video))
        for _, video in job.videos
    ]
    uris = [_linkable(entry).as_uri() for entry in filed]
    return lance_write.write_links(table, BYTES_COLUMN, tables.video_rows(filed), uris)


def _linkable(entry: FiledVideo) -> Path:
    file = entry.video.file
    path = Path(file.path).resolve() if isinstance(file, LocalFile) else None
    if path is None or any(part.endswith(".lance") for part in path.parts):
        raise ArgumentError(
            "A video lies inside a Lance table, and cannot be pointed at from another.",
            hint="leave link out, or link the dataset that this one was made from",
            camera=entry.camera,
        )
    return path


def linked_folders(plan: Plan, table: Path) -> list[str]:
    """Return the folders of the videos that a table of videos points at."""
    root = plan.readers[0].root.resolve()
    found = LanceTable(str(table)).named_outside()
    files = (Path(unquote(urlsplit(uri).path)) for uri in found)
    inside = (root if file.is_relative_to(root) else file.parent for file in files)
    return sorted({str(place) for place in inside})


def _files(folder: Path, table: str, fragments: Sequence[str]) -> dict[str, int]:
    """Return the files of fragments, with their blobs, and their sizes."""
    names = [file["path"] for text in fragments for file in json.loads(text)["files"]]
    data = folder / "dataset" / table / "data"
    found = [data / name for name in names]
    for name in names:
        found += sorted((data / name.removesuffix(".lance")).glob("*.blob"))
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in found}
