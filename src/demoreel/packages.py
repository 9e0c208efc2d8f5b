"""Packages: those that are named like a public function, and those that are loaded when used."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable
from typing import Any, cast


def stand_for(package: str, function: Callable[..., Any]) -> None:
    """Put a function in the place of its package; the package calls this when it is imported.

    ``demoreel.check`` is then the function, with its signature and its help, and
    ``from demoreel.check.report import Report`` finds modules of the package as before: importing
    them asks what stands in ``sys.modules`` for ``__path__``, and notes them there as attributes.
    """
    module = sys.modules[package]
    for name, value in vars(module).items():
        if name in ("__path__", "__spec__", "__file__") or isinstance(value, types.ModuleType):
            setattr(function, name, value)
    sys.modules[package] = cast(types.ModuleType, function)


def load_late(name: str) -> Any:
    """Return a module that is imported when one of its names is used first.

    For large packages that most commands need nothing of: PyAV alone takes longer to import than
    ``demoreel info`` does its work. After that, names are found as in the module itself.

    Args:
        name: Its name; submodules that it does not import by itself need an object of their own.
    """
    return _Late(name)


class _Late(types.ModuleType):
    """Stands for a module until it is used."""

    def __getattr__(self, name: str) -> Any:
        module = importlib.import_module(self.__name__)
        found = getattr(module, name)
        # Kept here, so that the next look takes as long as in the module itself.
        if not name.startswith("__"):
            self.__dict__[name] = found
        return found
