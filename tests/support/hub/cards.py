"""Dataset cards: the YAML at the head of README.md, and the tags that the Hub makes of it."""

from __future__ import annotations

import re
from typing import Any

from support.hub.answers import Answer, Request, as_json
from support.hub.repos import Commit
from support.hub.storage import Storage

_FRONT = re.compile(r"\A\s*---\r?\n(.*?)^---\s*$", re.DOTALL | re.MULTILINE)
_TAGGED = ("task_categories", "language", "license", "size_categories")


def front_matter(text: str) -> dict[str, Any] | None:
    """The YAML block of a card, or None without one. ``ValueError`` where it is no mapping."""
    import yaml  # comes with the client

    found = _FRONT.match(text)
    if not found:
        return None
    try:
        card = yaml.safe_load(found.group(1))
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    if not isinstance(card, dict):
        raise ValueError("the metadata is no mapping")
    return card


def read_card(storage: Storage, commit: Commit) -> dict[str, Any]:
    """The metadata in a commit's README.md; empty where there is none that can be read."""
    readme = commit.files.get("README.md")
    if readme is None:
        return {}
    try:
        return front_matter(storage.read(readme).decode(errors="replace")) or {}
    except ValueError:
        return {}


def tags_of(card: dict[str, Any]) -> list[str]:
    """The tags the Hub shows: its own kinds of tag with a prefix, then the card's."""
    tags = []
    for kind in _TAGGED:
        values = card.get(kind, [])
        for value in values if isinstance(values, list) else [values]:
            tags.append(f"{kind}:{value}")
    return [*tags, "region:us", *card.get("tags", [])]


def validate(request: Request) -> Answer:
    """Say what is wrong with a card before it is committed."""
    try:
        card = front_matter(request.json().get("content", ""))
    except ValueError as error:
        return as_json({"errors": [{"message": str(error)}], "warnings": []}, status=400)
    warnings = [] if card else [{"message": "empty or missing yaml metadata in repo card"}]
    return as_json({"errors": [], "warnings": warnings})
