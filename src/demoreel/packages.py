"""Packages that are named like a public function: ``demoreel.check`` is the function."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any, cast


def stand_for(package: str, function: Callable[..., Any]) -> None:
    """Put a function in the place of its package; the package calls this when it is imported.

    ``demoreel.check`` is then the function, with its signature and its help, and
    ``from demoreel.check.report import Report`` finds modules of the package as before: importing
    them asks what stands in ``sys.modules`` for ``__path__``, and notes them there as attributes.

    Args:
        package: The package's name.
        function: The function.
    """
    module = sys.modules[package]
    for name, value in vars(module).items():
        if name in ("__path__", "__spec__", "__file__") or isinstance(value, types.ModuleType):
            setattr(function, name, value)
    sys.modules[package] = cast(types.ModuleType, function)
