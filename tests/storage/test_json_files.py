"""JSON from untrusted sources: whatever it is, it is read or it is a MetadataError."""

from __future__ import annotations

import os

import pytest

from demoreel.errors import DatasetNotFoundError, MetadataError
from demoreel.storage.json_files import read_json, read_json_lines, read_json_table

DEEP = 100_000


def test_what_is_there_is_read(tmp_path):
    path = tmp_path / "x"
    path.write_text('{"a": 1}\n\n{"a": 2}\n')
    assert read_json_lines(path) == [{"a": 1}, {"a": 2}]
    assert read_json_table(path).to_pydict() == {"a": [1, 2]}
    path.write_text('{"a": 1}')
    assert read_json(path) == {"a": 1}
    with pytest.raises(DatasetNotFoundError):
        read_json(tmp_path / "nothing")


@pytest.mark.parametrize("text", ["[" * DEEP, "[" * DEEP + "]" * DEEP, '{"a":' * DEEP, "{", "\xff"])
def test_json_that_cannot_be_parsed(tmp_path, text):
    path = tmp_path / "x"
    path.write_text(text)
    with pytest.raises(MetadataError):
        read_json(path)
    with pytest.raises(MetadataError):
        read_json_lines(path)
    assert read_json_table(path) is None


def test_json_that_would_take_all_memory(tmp_path, monkeypatch):
    path = tmp_path / "x"
    monkeypatch.setenv("DEMOREEL_LIMIT_JSON_BYTES", "1MiB")
    for text in ('{"a": [' + "[]," * 20_000 + "[]]}", '{"a": "' + "x" * 600_000 + '"}'):
        path.write_text(text)
        for read in (read_json, read_json_lines):
            with pytest.raises(MetadataError, match="the limit JSON_BYTES"):
                read(path)
    monkeypatch.setenv("DEMOREEL_LIMIT_JSON_LINES_BYTES", "10KiB")
    path.write_text('{"a": 1}\n' * 1000)
    with pytest.raises(MetadataError, match="the limit JSON_LINES_BYTES"):
        read_json_lines(path)


def test_half_a_character_in_a_line(tmp_path):
    path = tmp_path / "x"
    for line in (b'{"a": "\\ud800"}', b'{"a": "\xed\xa0\x80"}'):
        path.write_bytes(line + b"\n")
        with pytest.raises(MetadataError):
            read_json_lines(path)
    path.write_bytes(b'{"a": "\\ud83d\\ude00"}\n')
    assert read_json_lines(path) == [{"a": "\U0001f600"}]


def test_a_pipe_or_an_endless_file(tmp_path):
    pipe, endless = tmp_path / "pipe", tmp_path / "endless"
    os.mkfifo(pipe)
    endless.symlink_to("/dev/zero")
    for path in (pipe, endless):
        with pytest.raises(MetadataError, match="no regular file"):
            read_json(path)
        with pytest.raises(MetadataError, match="no regular file"):
            read_json_lines(path)
        assert read_json_table(path) is None
