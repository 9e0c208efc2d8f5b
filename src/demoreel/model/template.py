"""Path templates of ``info.json``, checked before a path is built from them.

A dataset's metadata comes from untrusted sources. Its templates are ``str.format`` strings, and
``str.format`` can read attributes, follow ``..`` and start at the root of the disk.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from pathlib import PurePosixPath
from typing import Any

from demoreel.errors import MetadataError, UnsafePathError

_INTEGER_SPEC = re.compile(r"0?[0-9]{0,2}d?")
_TEXT_FIELDS = frozenset({"video_key"})


class PathTemplate:
    """A relative path with integer fields and perhaps ``{video_key}``.

    Args:
        text: The template as it stands in ``info.json``.
        fields: Names that may appear in braces; anything else is refused.
        where: What to call the template in an error, e.g. ``data_path``.
        file: The file it came from, for errors.

    Attributes:
        format: Returns the path for the values of the fields, given by name.
    """

    __slots__ = ("fields", "file", "format", "text", "where")

    format: Callable[..., str]

    def __init__(
        self, text: str, *, fields: Iterable[str], where: str, file: str | None = None
    ) -> None:
        self.text = text
        self.file = file
        self.fields = tuple(fields)
        self.where = where
        self.format = lru_cache(maxsize=65536)(self._formatted)  # a batch asks for a few, often
        self._check()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(PathTemplate, fields=self.fields, where=self.where, file=self.file), (
            self.text,
        )

    def _check(self) -> None:
        try:
            parts = list(string.Formatter().parse(self.text))
        except ValueError as error:
            raise self._wrong(f"is not a template ({error})") from error
        for _, field, spec, conversion in parts:
            if field is None:
                continue
            if field not in self.fields:
                what = f"uses {{{field[:60]}}}; its fields are {', '.join(self.fields)}"
                is_name = not field.startswith("__") and field.isidentifier()
                is_wrong = is_name or not field or field.isdecimal()
                raise self._wrong(what) if is_wrong else self._refused(what)
            allowed = not spec if field in _TEXT_FIELDS else _INTEGER_SPEC.fullmatch(spec or "")
            if conversion or not allowed:
                raise self._refused(f"formats {{{field}}} in a way that is not plain")
        literal = self.text.format(**dict.fromkeys(self.fields, 0))
        _check_relative(literal, self)

    def _wrong(self, reason: str) -> MetadataError:
        _check_relative(self.text, self)  # what leads outside besides is worse
        return MetadataError(
            f"The template {self.where} {reason}.",
            hint="correct it in info.json, or let demoreel repair write the usual one",
            code="template-wrong",
            file=self.file,
            template=repr(self.text),
        )

    def _refused(self, reason: str) -> UnsafePathError:
        return UnsafePathError(
            f"The template {self.where} {reason}.",
            hint="look at its info.json before you use this dataset",
            file=self.file,
            template=repr(self.text),
        )

    def _formatted(self, **values: int | str) -> str:
        path = self.text.format(**values)
        _check_relative(path, self)
        return path

    def __repr__(self) -> str:
        return f"PathTemplate({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PathTemplate) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


def _check_relative(path: str, template: PathTemplate) -> None:
    pure = PurePosixPath(path)
    strange = "\0" in path or "\\" in path or not _is_encodable(path)
    if not path or pure.is_absolute() or ".." in pure.parts or strange:
        raise UnsafePathError(
            f"The template {template.where} leads outside the dataset's folder.",
            hint="look at its info.json before you use this dataset",
            file=template.file,
            template=repr(template.text),
            path=repr(path),
        )


def _is_encodable(path: str) -> bool:
    """Whether a path is text that a file may be named by; JSON can hold halves of characters."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
