"""What a repair changes: one sentence for each kind of change, with its places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_SHOWN = 3
_SINGULAR = {
    "{n} rows": "{n} row",
    "{n} texts": "{n} text",
    "{n} frames": "{n} frame",
    " have ": " has ",
    " were ": " was ",
    " are ": " is ",
}


@dataclass
class _Kind:
    places: dict[str, None] = field(default_factory=dict)
    amount: int = 0


class Changes:
    """Changes by kind, in the order in which the kinds first occurred."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}

    def add(self, what: str, place: str = "", *, amount: int = 0) -> None:
        """Note a change.

        Args:
            what: Its kind in words; ``{n}`` stands for the amount, summed over all places.
            place: Where: a file, an episode, a feature; empty where the words say it.
            amount: How much of it was changed there.
        """
        kind = self._kinds.setdefault(what, _Kind())
        kind.amount += amount
        if place:
            kind.places[place] = None

    def extend(self, others: Changes) -> None:
        """Add all changes that others have noted."""
        for what, kind in others._kinds.items():
            own = self._kinds.setdefault(what, _Kind())
            own.amount += kind.amount
            own.places |= kind.places

    def sentences(self) -> tuple[str, ...]:
        """Return one sentence for each kind, with the number of places and the first of them."""
        return tuple(_sentence(what, kind) for what, kind in self._kinds.items())


def _sentence(what: str, kind: _Kind) -> str:
    if kind.amount == 1 and "{n}" in what:
        for many, one in _SINGULAR.items():
            what = what.replace(many, one)
    said = what.replace("{n}", str(kind.amount))
    places = list(kind.places)
    if not places:
        return said
    if len(places) == 1:
        return f"{places[0]}: {said}"
    return f"{said}, in {len(places)} {_called(places)} ({examples(places)})"


def _called(places: Sequence[str]) -> str:
    if all(place.startswith("episode ") for place in places):
        return "episodes"
    return "files" if all(place.endswith((".parquet", ".mp4")) for place in places) else "places"


def examples(names: Sequence[str]) -> str:
    """Return the first of some names, and a mark that there are more."""
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
