"""The same episodes in several datasets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from demoreel.check.film_prints import alike_pairs, appearances_of, filmed_episodes, same_packets
from demoreel.check.findings import Findings
from demoreel.check.fingerprints import Prints, largest_kept
from demoreel.check.look import Look
from demoreel.check.matching import LEAST_ROWS_CHANGING, LEAST_SHARED_ROWS, overlapping

Said = Callable[[str, str, int], None]


def check_leaks(looks: list[Look], findings: Findings) -> None:
    """Look for episodes that are in several datasets; each is reported for the later one.

    Args:
        looks: The datasets, after their rows have been seen.
        findings: Where to report.
    """
    seen = [look for look in looks if look.prints is not None]
    for number, later in enumerate(seen):
        for earlier in seen[:number]:
            _leaks_between(earlier, later, findings)


def _leaks_between(earlier: Look, later: Look, findings: Findings) -> None:
    one, other = earlier.prints, later.prints
    assert one is not None
    assert other is not None

    def found(code: str, what: str, place: int) -> None:
        findings.add(code, what, dataset=str(later.root), episode=other.episode[place])

    shared = tuple(key for key in one.keys if key in other.keys)
    leaked: set[int] = set()
    if shared:
        leaked |= _rows_in_both(one, other, shared, earlier, found)
    leaked |= _videos_in_both(earlier, later, leaked, found)
    leaked |= _parts_in_both(one, other, leaked, earlier, found)
    _looks_in_both(earlier, later, leaked, found)
    filmed = [camera for camera in later.filmed if camera in earlier.filmed]
    if not shared and not filmed:
        findings.add(
            "leak-unknown",
            f"{later.root} and {earlier.root} have no numbers and no camera in common.",
            dataset=str(later.root),
        )


def _rows_in_both(
    one: Prints, other: Prints, keys: tuple[str, ...], earlier: Look, found: Said
) -> set[int]:
    hashes, firsts = np.unique(one.combined(keys), return_index=True)
    wanted = other.combined(keys)
    places = np.minimum(np.searchsorted(hashes, wanted), len(hashes) - 1)
    same = (hashes[places] == wanted) & (other.changes >= LEAST_ROWS_CHANGING)
    for place in np.flatnonzero(same).tolist():
        twin = one.episode[firsts[places[place]]]
        found(
            "leak-episode",
            f"All its {other.length[place]} rows are those of episode {twin} of {earlier.root}.",
            place,
        )
    return set(np.flatnonzero(same).tolist())


def _videos_in_both(earlier: Look, later: Look, leaked: set[int], found: Said) -> set[int]:
    """Report episodes with the very same pictures, although rows differ or cannot be compared."""
    assert earlier.prints is not None
    assert later.prints is not None
    fresh: set[int] = set()
    for camera in later.filmed:
        if camera not in earlier.filmed:
            continue
        offset = len(earlier.prints.episode)
        filmed = list(filmed_episodes(earlier, earlier.prints, camera))
        for one in filmed_episodes(later, later.prints, camera):
            filmed.append(replace(one, place=one.place + offset))
        for first, second in same_packets(filmed):
            place = second - offset
            if first < offset <= second and place not in leaked | fresh:
                fresh.add(place)
                found(
                    "leak-episode",
                    f"Its pictures of {camera} are those of episode "
                    f"{earlier.prints.episode[first]} of {earlier.root}.",
                    place,
                )
    return fresh


def _looks_in_both(earlier: Look, later: Look, leaked: set[int], found: Said) -> None:
    """Report episodes that a deep check saw to look the same: copies that were encoded again."""
    assert earlier.prints is not None
    offset = len(earlier.prints.episode)
    most = earlier.thresholds["alike_levels"]
    reported = set(leaked)
    for camera in later.appearances:
        both = appearances_of(earlier, camera) + appearances_of(later, camera, offset)
        for first, second in alike_pairs(both, most):
            place = second - offset
            if first < offset <= second and place not in reported:
                reported.add(place)
                found(
                    "leak-near",
                    f"On {camera} it looks like episode {earlier.prints.episode[first]} of "
                    f"{earlier.root} at every moment that was compared.",
                    place,
                )


def _parts_in_both(
    one: Prints, other: Prints, leaked: set[int], earlier: Look, found: Said
) -> set[int]:
    """Report episodes of which much is in another one; return which."""
    least = earlier.thresholds["near_share"]
    bound = largest_kept(min(one.share, other.share))
    ours, theirs = one.shingles <= bound, other.shingles <= bound
    offset = len(one.episode)
    firsts, seconds, shares = overlapping(
        np.concatenate([one.shingles[ours], other.shingles[theirs]]),
        np.concatenate([one.shingle_of[ours], other.shingle_of[theirs] + offset]),
        offset + len(other.episode),
    )
    length = np.concatenate([one.length, other.length])
    reported: set[int] = set()
    for first, second, part in zip(firsts.tolist(), seconds.tolist(), shares.tolist(), strict=True):
        place = second - offset
        if not first < offset <= second or part < least or place in leaked | reported:
            continue
        rows = min(length[first], length[second])
        if part * rows >= LEAST_SHARED_ROWS:
            reported.add(place)
            found(
                "leak-near",
                f"About {part:.0%} of {rows} rows are those of episode {one.episode[first]} of "
                f"{earlier.root} (from {least:.0%} on).",
                place,
            )
    return reported
