"""A cut of one dataset in words: what its history says of it."""

from __future__ import annotations

from demoreel.edit.plan import Plan


def said_of(plan: Plan) -> str:
    """Return what a cut of one dataset does to it."""
    reader, source = plan.readers[0], plan.cutlist.sources[0]
    lengths = reader.episodes.length[plan.positions]
    kept = set(plan.positions.tolist())
    gone = len(reader.episodes) - len(kept)
    cut = sum(
        clip.length < length for clip, length in zip(plan.clips, lengths.tolist(), strict=True)
    )
    order = plan.positions.tolist()
    retasked = source.tasks or any(clip.task is not None for clip in plan.clips)
    said = [
        f"deleted {_episodes(gone)}" if gone else "",
        f"trimmed {_episodes(cut)}" if cut else "",
        "changed the order" if order != sorted(order) else "",
        "changed tasks" if retasked else "",
        _listed("removed", source.remove),
        _listed("renamed", tuple(f"{old} to {new}" for old, new in source.rename.items())),
        _listed("added", tuple(source.add)),
    ]
    return "; ".join(text for text in said if text) or "changed nothing"


def _episodes(number: int) -> str:
    return "1 episode" if number == 1 else f"{number:,} episodes"


def _listed(what: str, names: tuple[str, ...]) -> str:
    return f"{what} {', '.join(names)}" if names else ""
