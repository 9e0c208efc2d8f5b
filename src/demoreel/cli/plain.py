"""Command lines that hold nothing unusual, read without typer.

Typer builds a validator for each option, for which it imports a library that takes longer than
``demoreel info`` does its work. So a line of known options, with values of the declared types, is
read here, from the same declarations. All others are left to typer: help, mistakes, abbreviations,
several short options in one word.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from typer.models import ArgumentInfo, OptionInfo

_KINDS = (str, int, float, bool, Path)


class NotPlain(Exception):
    """The line holds something that is left to typer."""


def arguments_of(function: Callable[..., Any], line: Sequence[str]) -> dict[str, Any]:
    """Return what a function is to be called with.

    Args:
        function: A command, whose parameters are declared for typer.
        line: What stands behind the command's name.
    """
    declared = [
        _Declared(parameter) for parameter in inspect.signature(function).parameters.values()
    ]
    options = {name: one for one in declared if one.is_option for name in one.names}
    given: dict[str, list[Any]] = {}
    rest: list[str] = []
    words = iter(line)
    for word in words:
        if not word.startswith("-") or word == "-":
            rest.append(word)
            continue
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        option = options.get(name)
        if option is None or (equals and option.kind is bool):
            raise NotPlain
        if option.kind is bool:
            given[option.key] = [not option.names[name]]
            continue
        if not equals:
            value = next(words, "--")
            if value.startswith("-") and value != "-":  # an option without its value, perhaps
                raise NotPlain
        given.setdefault(option.key, []).append(option.read(value))
    given |= _places([one for one in declared if not one.is_option], rest)
    return {one.key: one.value(given.get(one.key)) for one in declared}


def _places(arguments: list[_Declared], words: list[str]) -> dict[str, list[Any]]:
    """Share the words that are no options out, to the arguments in their order."""
    found: dict[str, list[Any]] = {}
    for number, argument in enumerate(arguments):
        if argument.is_list:
            if number != len(arguments) - 1:
                raise NotPlain
            taken, words = words, []
        else:
            taken, words = words[:1], words[1:]
        if taken:
            found[argument.key] = [argument.read(word) for word in taken]
    if words:
        raise NotPlain
    return found


class _Declared:
    """A parameter of a command."""

    def __init__(self, parameter: inspect.Parameter) -> None:
        kind, info = _declaration(parameter.annotation)
        self.key = parameter.name
        self.info = info
        self.is_option = isinstance(info, OptionInfo)
        self.default = parameter.default
        kind = _without_none(kind)
        self.is_list = get_origin(kind) is list
        if self.is_list:
            (kind,) = get_args(kind)
        self.choices = get_args(kind) if get_origin(kind) is Literal else None
        self.kind = str if self.choices is not None else kind
        if self.kind not in _KINDS or info.envvar is not None or not _all_texts(self.choices):
            raise NotPlain
        self.names = dict(self._names())

    def _names(self) -> list[tuple[str, bool]]:
        """Return what an option is called; and of flags, whether the name says no."""
        if not self.is_option:
            return []
        # In an annotation, what typer calls the default is the first name.
        said = [text for text in (self.info.default, *(self.info.param_decls or ())) if text != ...]
        if not said or not all(isinstance(text, str) and text.startswith("-") for text in said):
            raise NotPlain
        pairs = [text.split("/") for text in said]
        return [(name.strip(), number > 0) for pair in pairs for number, name in enumerate(pair)]

    def read(self, word: str) -> Any:
        """Return a word as a value of the declared type."""
        if self.choices is not None and word not in self.choices:
            raise NotPlain
        try:
            value = (self.info.parser or self.kind)(word)
        except ValueError:
            raise NotPlain from None
        least, most = self.info.min, self.info.max
        if (least is not None and not value >= least) or (most is not None and not value <= most):
            raise NotPlain
        return value

    def value(self, given: list[Any] | None) -> Any:
        """Return what the function gets for all that was given."""
        if given is None:
            if self.default is inspect.Parameter.empty:
                raise NotPlain
            found = self.default
        elif self.is_list:
            found = given
        else:
            found = given[-1]
        return found if self.info.callback is None else self.info.callback(found)


def _declaration(annotation: Any) -> tuple[Any, Any]:
    if get_origin(annotation) is Annotated:
        kind, *infos = get_args(annotation)
        if len(infos) == 1 and isinstance(infos[0], (OptionInfo, ArgumentInfo)):
            return kind, infos[0]
    raise NotPlain


def _without_none(kind: Any) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        kinds = [one for one in get_args(kind) if one is not type(None)]
        return kinds[0] if len(kinds) == 1 else None
    return kind


def _all_texts(choices: Sequence[Any] | None) -> bool:
    return choices is None or all(isinstance(choice, str) for choice in choices)
