"""Secrets stay in the family: known to processes that are started later, not to pickles."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest

from demoreel.errors import ArgumentError
from demoreel.storage.lance_places import remote_place
from demoreel.storage.secrets import keep_secrets, recall_secrets


def test_by_name():
    name = keep_secrets({"key": "of silence", "other": "☃"})
    assert "silence" not in name
    assert recall_secrets(name) == {"key": "of silence", "other": "☃"}
    assert keep_secrets({"other": "☃", "key": "of silence"}) == name
    with pytest.raises(ArgumentError, match="do not travel"):
        recall_secrets("unknown")


def test_processes_that_are_started_before_anything_is_pickled():
    place = remote_place("s3://b/x", {"aws_secret_access_key": "hush-hush", "aws_region": "x"})
    program = "import pickle, sys; print(dict(pickle.load(sys.stdin.buffer).options))"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        data = pickle.dumps(place)  # after the child has its environment
        said, _ = child.communicate(data)
    assert b"hush" not in data
    assert b"hush-hush" in said
    assert any("hush-hush" in value for value in os.environ.values())
