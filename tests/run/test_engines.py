"""The same tasks, wherever they run."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import psutil
import pytest

from demoreel.errors import ArgumentError, DemoreelError
from demoreel.run.local import LocalEngine
from demoreel.run.task import Task, share


def note(folder: str, name: str) -> dict[str, int]:
    Path(folder, name).write_text(str(os.getpid()))
    return {"pid": os.getpid()}


def fail(folder: str) -> dict[str, int]:
    raise ArgumentError("This task cannot be done.", hint="nothing helps", folder=folder)


def die(folder: str) -> dict[str, int]:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def tasks_in(folder: Path, count: int, **options) -> list[Task]:
    return [Task(f"t{n}", note, (str(folder), f"t{n}"), **options) for n in range(count)]


@pytest.mark.parametrize(("jobs", "copies"), [(1, False), (1, True), (2, False)])
def test_every_task_is_done_once(tmp_path, jobs, copies):
    tasks = tasks_in(tmp_path, 5, copies=copies)
    done = {task.name: result for task, result in LocalEngine(jobs).run(tasks)}
    assert sorted(done) == [f"t{n}" for n in range(5)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(done)
    elsewhere = {result["pid"] for result in done.values()} - {os.getpid()}
    assert bool(elsewhere) == (jobs > 1)


def wait_for(path: str) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise TimeoutError(path)
        time.sleep(0.001)
    return {}


def test_copies_go_on_while_others_calculate(tmp_path):
    copy = Task("copy", note, (str(tmp_path), "copy"), copies=True)
    waiting = Task("wait", wait_for, (str(tmp_path / "copy"),))
    names = [task.name for task, _ in LocalEngine().run([waiting, copy])]
    assert sorted(names) == ["copy", "wait"]


def test_a_copy_that_fails_is_raised(tmp_path):
    tasks = [Task("bad", fail, (str(tmp_path),), copies=True), *tasks_in(tmp_path, 2)]
    with pytest.raises(ArgumentError, match="cannot be done"):
        list(LocalEngine().run(tasks))


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_comes_out_as_it_is(tmp_path, jobs):
    tasks = [Task("bad", fail, (str(tmp_path),), weight=9), *tasks_in(tmp_path, 2)]
    with pytest.raises(ArgumentError, match="cannot be done") as caught:
        list(LocalEngine(jobs).run(tasks))
    assert caught.value.hint == "nothing helps"
    assert caught.value.where == {"folder": str(tmp_path)}


def test_a_killed_worker_is_an_error(tmp_path):
    tasks = [Task("bad", die, (str(tmp_path),), weight=9), *tasks_in(tmp_path, 2)]
    with pytest.raises(DemoreelError, match="was killed"):
        list(LocalEngine(2).run(tasks))


def test_long_tasks_are_left_to_others(tmp_path):
    tasks = tasks_in(tmp_path, 4, long=True)
    done = [result["pid"] for _, result in LocalEngine(2).run(tasks)]
    assert len(done) == 4
    assert os.getpid() not in done


def test_this_process_works_while_others_start(tmp_path):
    # Nobody else could do it: there is one other, and it has the first, which waits for these.
    first = Task("first", wait_for, (str(tmp_path / "t3"),), weight=9)
    done = dict(LocalEngine(2).run([first, *tasks_in(tmp_path, 4)]))
    assert {result.get("pid") for result in done.values()} == {None, os.getpid()}


def test_processes_stay_for_other_runs_and_go_with_the_engine(tmp_path):
    engine = LocalEngine(2)
    seen = set()
    for _, result in engine.run(tasks_in(tmp_path, 3, long=True)):
        seen.add(result["pid"])
        seen |= {found["pid"] for _, found in engine.run(tasks_in(tmp_path, 3))}
    seen |= {found["pid"] for _, found in engine.run(tasks_in(tmp_path, 3, long=True))}
    others = seen - {os.getpid()}
    assert 1 <= len(others) <= 2
    waiting = [process.pid for process in active_children() if process.pid in others]
    assert waiting
    del engine
    # Not by joining: the executor's own thread does, and of two only one learns how it ended.
    until = time.monotonic() + 60
    while any(map(psutil.pid_exists, waiting)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(map(psutil.pid_exists, waiting))


def test_no_more_processes_are_started_than_can_work(tmp_path):
    before = {process.pid for process in active_children()}
    engine = LocalEngine(2)
    # This process does the lightest, which waits until the other has done four, one by one.
    own = Task("own", wait_for, (str(tmp_path / "t3"),), weight=0)
    assert len(list(engine.run([*tasks_in(tmp_path, 4), own]))) == 5
    started = {process.pid for process in active_children()} - before
    assert len(started) == 1  # this process is the other one


def test_a_run_that_needs_more_leaves_the_processes_of_another_alone(tmp_path):
    engine = LocalEngine(2)
    done = set()
    for task, _ in engine.run(tasks_in(tmp_path, 6)):
        done.add(task.name)
        found = [result["pid"] for _, result in engine.run(tasks_in(tmp_path, 4, long=True))]
        assert os.getpid() not in found
    assert len(done) == 6


def test_processes_that_were_too_few_go_when_nobody_uses_them(tmp_path):
    before = {process.pid for process in active_children()}
    engine = LocalEngine(3)
    assert len(list(engine.run(tasks_in(tmp_path, 8)))) == 8  # by two, and this one
    few = {process.pid for process in active_children()} - before
    assert len(list(engine.run(tasks_in(tmp_path, 8, long=True)))) == 8
    until = time.monotonic() + 60
    while any(map(psutil.pid_exists, few)) and time.monotonic() < until:
        time.sleep(0.01)
    assert few
    assert not any(map(psutil.pid_exists, few))


def test_an_engine_serves_again_after_an_error(tmp_path):
    engine = LocalEngine(2)
    with pytest.raises(DemoreelError, match="was killed"):
        list(engine.run([Task("bad", die, (str(tmp_path),), weight=9), *tasks_in(tmp_path, 2)]))
    assert len(list(engine.run(tasks_in(tmp_path, 3)))) == 3


def test_no_tasks_and_no_jobs():
    assert list(LocalEngine(4).run([])) == []
    with pytest.raises(ArgumentError):
        LocalEngine(0)


def test_shares_are_alike_and_everyone_agrees(tmp_path):
    tasks = [Task(f"t{n}", note, (), weight=n * n) for n in range(30)]
    for of in (1, 2, 7, 40):
        parts = [share(tasks, number, of) for number in range(of)]
        assert sorted(t.name for part in parts for t in part) == sorted(t.name for t in tasks)
        assert parts == [share(list(reversed(tasks)), number, of) for number in range(of)]
        loads = [sum(task.weight for task in part) for part in parts]
        assert max(loads) - min(loads) <= 29 * 29
