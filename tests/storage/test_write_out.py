"""Asking for early writes changes nothing that can be seen."""

from __future__ import annotations

import os

from demoreel.storage.local import begin_writing_out


def test_the_file_stays_as_it_is(tmp_path):
    handle = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(handle, b"x" * 10_000)
    begin_writing_out(handle, 0, 10_000)
    begin_writing_out(handle, 5_000, 0)
    begin_writing_out(handle, 50_000, 10)  # behind its end
    os.close(handle)
    begin_writing_out(handle, 0, 10)  # closed: no error
    assert (tmp_path / "file").read_bytes() == b"x" * 10_000
