"""Remote files as a file system of Arrow, for queries that scan tables."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, NoReturn

import pyarrow as pa
from pyarrow import fs

from demoreel.storage.remote.files import RemoteFile
from demoreel.storage.seekable import Seekable


def arrow_files(file: Callable[[str], RemoteFile]) -> fs.FileSystem:
    """Return a file system for reading; nothing is asked for before a file is read.

    Args:
        file: Gives the file of a name.
    """
    return fs.PyFileSystem(_Files(file))


class _Files(fs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """What Arrow asks of a file system, as far as reading needs it."""

    def __init__(self, file: Callable[[str], RemoteFile]) -> None:
        self._file = file

    def get_type_name(self) -> str:
        return "demoreel"

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        return [fs.FileInfo(path, fs.FileType.File) for path in paths]

    def normalize_path(self, path: str) -> str:
        return path

    def open_input_file(self, path: str) -> pa.PythonFile:
        return pa.PythonFile(Seekable(self._file(path)), mode="r")

    open_input_stream = open_input_file

    def _refuse(self, *_: Any) -> NoReturn:
        raise OSError(errno.EROFS, "Remote tables are only read")

    get_file_info_selector = create_dir = delete_dir = delete_dir_contents = _refuse
    delete_root_dir_contents = delete_file = move = copy_file = _refuse
    open_output_stream = open_append_stream = _refuse
