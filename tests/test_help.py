"""``help()`` of every public function documents each of its parameters."""

from __future__ import annotations

import inspect
import re

import pytest

import demoreel
from demoreel.check import report
from demoreel.edit.cut import Cut

FUNCTIONS = [name for name in demoreel.__all__ if inspect.isfunction(getattr(demoreel, name))]
VERBS = {"check", "checkout", "clean", "convert", "create", "cut", "diff", "finish", "open", "pull",
         "push", "recompute_stats", "repair", "resume", "tag", "versions"}  # fmt: skip


def documented(doc: str) -> list[str]:
    """Return the names in the section ``Args`` of a Google docstring."""
    section = re.search(r"^Args:\n((?:[ ].*\n|\n)*)", inspect.cleandoc(doc) + "\n", re.M)
    return re.findall(r"^    (\*{0,2}\w+)(?: \(.*\))?: \S", section[1], re.M) if section else []


def parameters(function) -> list[str]:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    found = inspect.signature(function).parameters.values()
    return [stars.get(each.kind, "") + each.name for each in found]


def test_verbs_are_functions():
    assert set(FUNCTIONS) >= VERBS


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_documents_every_parameter(name):
    function = getattr(demoreel, name)
    assert documented(function.__doc__) == parameters(function)


CLASSES = [
    Cut,
    *(each for each in (getattr(demoreel, n) for n in demoreel.__all__) if inspect.isclass(each)),
]


@pytest.mark.parametrize("public", CLASSES, ids=lambda public: public.__name__)
def test_help_documents_the_parameters_of_every_method(public):
    for name, member in vars(public).items():
        method = getattr(member, "__func__", member)  # of a classmethod
        if not name.startswith("_") and inspect.isfunction(method):
            wanted = [each for each in parameters(method) if each not in ("self", "cls")]
            assert documented(method.__doc__ or "") == wanted, name


def test_a_package_that_is_a_function_has_its_modules():
    assert demoreel.check.report is report
    assert demoreel.check.__name__ == "check"
