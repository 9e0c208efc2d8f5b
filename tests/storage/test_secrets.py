"""Secrets stay with this process and its own workers: in no environment, and in no pickle."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

import demoreel
from demoreel.errors import ArgumentError
from demoreel.storage.helper_process import HelperProcess
from demoreel.storage.place import RemotePlace, remote_place
from demoreel.storage.secrets import hand_over, keep_secrets, recall_secrets
from demoreel.testing import make_dataset

HUSH = "hush-hush-9a7c"
OPTIONS = {"aws_secret_access_key": HUSH, "aws_role_arn": f"{HUSH}-2", "aws_region": "x"}
PROC = sys.platform == "linux"


@pytest.fixture
def place() -> RemotePlace:
    return remote_place("s3://b/x", OPTIONS)


def visible(pid: int) -> bytes:
    """Return what others may read of a process."""
    if not PROC:
        return b""
    return b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "cmdline"))


def test_by_name():
    name = keep_secrets({"key": "of silence", "other": "☃"})
    assert "silence" not in name
    assert recall_secrets(name) == {"key": "of silence", "other": "☃"}
    assert keep_secrets({"other": "☃", "key": "of silence"}) == name
    with pytest.raises(ArgumentError, match="do not travel"):
        recall_secrets("unknown")


def test_environment_repr_and_pickles_hold_none(place):
    before = dict(os.environ)
    again = remote_place("s3://b/y", {**OPTIONS, "aws_endpoint": "http://me:hush-hush@host"})
    data = pickle.dumps((place, again))
    assert b"hush" not in data
    assert b"aws_region" in data  # what is no secret travels
    assert "hush" not in repr((place, again))
    assert dict(os.environ) == before
    assert not any("hush" in value for value in os.environ.values())
    assert pickle.loads(data) == (place, again)  # in this process the name is known


def test_another_program_does_not_know_them(place):
    program = "import pickle, sys; pickle.load(sys.stdin.buffer).storage_options()"
    done = subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(place), capture_output=True, check=False
    )
    assert b"do not travel in pickles" in done.stderr
    assert b"hush" not in done.stderr


def _tell(place, queue):
    queue.put((dict(place.options), visible(os.getpid()), pickle.dumps(place)))
    # What comes later carries a name, which is known since the process began.
    queue.put(dict(pickle.loads(queue.get()).options))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_know_them(place, method):
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    child = context.Process(target=_tell, args=(place, queue))
    child.start()
    options, seen, data = queue.get()
    assert options == OPTIONS
    assert b"hush" not in seen + data + visible(child.pid)
    assert pickle.loads(data) == place  # by the same name
    queue.put(pickle.dumps(place))
    child.join(60)
    assert queue.get() == OPTIONS
    assert child.exitcode == 0


def _options(place):
    return dict((place / "x.lance").options)


def test_a_pool_that_was_started_before_says_what_is_missing(tmp_path, s3, monkeypatch):
    monkeypatch.setattr("demoreel.storage.secrets._known", {})  # those of other tests' servers
    root = make_dataset(tmp_path / "made", episodes=[3])
    uri = s3.upload(root, "before/data")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(len, "abc").result() == 3  # its worker has begun
        place = remote_place("s3://b/x", {**OPTIONS, "aws_token": "hush later"})
        dataset = demoreel.open(
            uri, storage_options=s3.storage_options, cache_dir=tmp_path / "cache"
        )
        for work, given in ((_options, place), (_first, dataset)):
            for _ in range(2):
                with pytest.raises(ArgumentError, match="after the dataset was opened"):
                    pool.submit(work, given).result(60)
        assert pool.submit(len, "abc").result() == 3


def _first(dataset):
    return dataset[0]["episode_index"]


_PROGRAM = (
    "from demoreel.storage.helper_process import answer_calls;"
    "answer_calls(lambda call, given: (given[0].options, __import__('os').getpid()))"
)


def test_a_helper_is_told_over_its_pipe(place):
    helper = HelperProcess(_PROGRAM)
    try:
        options, pid = helper.ask("options", (place,))
        assert dict(options) == OPTIONS
        assert b"hush" not in visible(pid)
    finally:
        helper.kill()
    assert b"hush" not in pickle.dumps(place)  # the pipe was an exception


def test_handing_over_ends(place):
    with hand_over():
        assert b"hush" in pickle.dumps(place)
    assert b"hush" not in pickle.dumps(place)
