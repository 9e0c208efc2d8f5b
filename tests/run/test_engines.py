"""The same tasks, wherever they run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
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


def children() -> set[int]:
    return {process.pid for process in psutil.Process().children()}


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
    # No other process could do it: there is one, and it has the first, which waits for these.
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
    waiting = children() & others
    assert waiting
    del engine
    until = time.monotonic() + 60
    while any(map(psutil.pid_exists, waiting)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(map(psutil.pid_exists, waiting))


def test_no_more_processes_are_started_than_can_work(tmp_path):
    before = children()
    engine = LocalEngine(2)
    # This process does the lightest, which waits until the other has done four, one by one.
    own = Task("own", wait_for, (str(tmp_path / "t3"),), weight=0)
    assert len(list(engine.run([*tasks_in(tmp_path, 4), own]))) == 5
    started = children() - before
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
    before = children()
    engine = LocalEngine(3)
    assert len(list(engine.run(tasks_in(tmp_path, 8)))) == 8  # by two, and this one
    few = children() - before
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


def stand(folder: str, name: str) -> dict[str, int]:
    Path(folder, name).touch()
    time.sleep(60)
    return {}


def test_tasks_are_interrupted_after_an_error(tmp_path):
    # The error comes when the other task has begun; nothing waits for its minute.
    bad = Task("bad", fail_after, (str(tmp_path), "begun"), long=True)
    before = children()
    with pytest.raises(ArgumentError, match="cannot be done"):
        list(LocalEngine(2).run([bad, Task("stand", stand, (str(tmp_path), "begun"), long=True)]))
    assert children() <= before


def fail_after(folder: str, name: str) -> dict[str, int]:
    wait_for(str(Path(folder, name)))
    return fail(folder)


def leave_out(folder: str) -> dict[str, int]:
    raise BrokenPipeError(folder)


def test_an_error_about_a_pipe_of_its_own_is_a_tasks_error(tmp_path):
    bad = Task("bad", leave_out, (str(tmp_path),), long=True)
    with pytest.raises(BrokenPipeError, match=tmp_path.name):
        list(LocalEngine(2).run([bad, *tasks_in(tmp_path, 1, long=True)]))


def print_much(folder: str) -> dict[str, int]:
    os.write(1, b"\0" * 100)
    print("text")
    return {"read": len(os.read(0, 1))}


def test_what_a_task_prints_is_not_its_result(tmp_path):
    done = [
        result for _, result in LocalEngine(2).run([Task("a", print_much, ("",), long=True)] * 2)
    ]
    assert done == [{"read": 0}] * 2


class TwoPartsError(Exception):
    """Can be pickled, and not be read again."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what)
        self.why = why


def fail_in_two_parts() -> dict[str, int]:
    raise TwoPartsError("the camera fell", "gravity")


def test_an_error_that_no_pickle_holds_says_what_it_was(tmp_path):
    tasks = [Task("bad", fail_in_two_parts, (), long=True), *tasks_in(tmp_path, 1, long=True)]
    with pytest.raises(RuntimeError, match="the camera fell"):
        list(LocalEngine(jobs=2).run(tasks))


def stay(folder: str, name: str) -> dict[str, int]:
    Path(folder, name).write_text(str(os.getpid()))
    time.sleep(120)
    return {}


_KILLED = """
import sys
from demoreel.run.local import LocalEngine
from demoreel.run.task import Task
sys.path.insert(0, sys.argv[2])
from test_engines import stay

list(LocalEngine(jobs=2).run([Task(n, stay, (sys.argv[1], n), long=True) for n in "ab"]))
"""


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_workers_end_with_a_process_that_was_killed(tmp_path):
    """Else they would write where the same command, given again, writes."""
    running = subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(tmp_path), str(Path(__file__).parent)]
    )
    notes = [tmp_path / "a", tmp_path / "b"]
    while not all(note.exists() and note.read_text() for note in notes):
        assert running.poll() is None
        time.sleep(0.05)
    running.kill()
    running.wait()
    pids = [int(note.read_text()) for note in notes]
    give_up = time.monotonic() + 30
    while any(map(is_alive, pids)) and time.monotonic() < give_up:
        time.sleep(0.05)
    assert not any(map(is_alive, pids))
