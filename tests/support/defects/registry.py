"""The list of defects, and how one gets onto it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

Damage = Callable[[Path], None]

_NO_DEFECTS = ("bases", "registry", "tools")
_known: dict[str, Defect] = {}


@dataclass(frozen=True, slots=True)
class Defect:
    """Something that can be wrong with a dataset.

    Attributes:
        name: What to call it.
        on: The base that it damages, by its name in ``BASES``.
        codes: What a check must find.
        also: What may follow from it; anything else that is no hint would be a false alarm.
        damage: Damages the copy of the base in a folder.
        deep: Whether only a check that decodes images can find it.
        leaks: Whether only a check for leaks can find it, of the base and the copy side by side.
    """

    name: str
    on: str
    codes: tuple[str, ...]
    also: tuple[str, ...]
    damage: Damage
    deep: bool = False
    leaks: bool = False


def defect(
    *codes: str,
    on: str = "v3",
    also: tuple[str, ...] = (),
    deep: bool = False,
    leaks: bool = False,
) -> Callable[[Damage], Damage]:
    """Put a function that damages a dataset onto the list.

    Args:
        *codes: What a check must find.
        on: The base to damage.
        also: What may follow from it.
        deep: Whether only a check that decodes images can find it.
        leaks: Whether only a check for leaks can find it, beside the base.
    """

    def register(damage: Damage) -> Damage:
        name = damage.__name__
        assert name not in _known, f"two defects are called {name}"
        _known[name] = Defect(name, on, codes, also, damage, deep, leaks)
        return damage

    return register


def collected() -> Mapping[str, Defect]:
    """Return the defects of all modules of this package."""
    package = __package__ or ""
    folder = Path(__file__).parent
    for module in pkgutil.iter_modules([str(folder)]):
        if module.name not in _NO_DEFECTS:
            importlib.import_module(f"{package}.{module.name}")
    return dict(_known)
