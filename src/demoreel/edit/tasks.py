"""From a plan to tasks: one for each file or, where files are small and many, for some of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from demoreel.edit.lance_result import tables_for, write_lance_rows, write_lance_videos
from demoreel.edit.plan import Plan, TableOut
from demoreel.edit.table_work import TableJob, write_tables
from demoreel.edit.video_plan import VideoOut
from demoreel.edit.video_work import VideoJob, write_videos
from demoreel.layouts.lance.schemas import LanceSchema
from demoreel.run.task import Task
from demoreel.storage.commit.staging import Staging

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
        threads: How many of them encode images in one task; None is every core.
    """
    return [*_table_tasks(plan, stage, threads), *_video_tasks(plan, stage, compare=compare)]


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


def _video_tasks(plan: Plan, stage: Staging, *, compare: bool) -> Iterator[Task]:
    lance = lance_tables(plan, stage)
    for name, keys, videos in _video_groups(plan):
        job = VideoJob(
            folder=str(stage.folder),
            sources=plan.cutlist.sources,
            keys=keys,
            videos=[(video.path(plan.info), video) for video in videos],
            compare=compare,
        )
        size = sum(video.size for video in videos if video.whole != "linked")
        copies = all(video.is_copied for video in videos)
        kind = {"copies": copies, "long": not copies}
        if lance is None:
            yield Task(name, write_videos, (job,), size, **kind)
        else:
            yield Task(name, write_lance_videos, (job, lance), size, **kind)
