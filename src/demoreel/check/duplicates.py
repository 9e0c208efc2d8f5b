"""Episodes that are there twice, in one dataset or in several, by their fingerprints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from demoreel.check.fingerprints import (
    LEAST_ROWS_CHANGING,
    LEAST_SHARED_ROWS,
    Fingerprints,
    alike_pairs,
    appearances_of,
    episode_packets,
    equal_groups,
    largest_kept,
    overlapping,
    same_packets,
)
from demoreel.check.look import Look
from demoreel.check.report import Findings

_ReportLeak = Callable[[str, str, int], None]


def check_duplicates(look: Look) -> None:
    """Look for episodes that are there twice in one dataset.

    Cost: some sorts of the fingerprints, and a look at the videos' tables of packets.
    """
    if look.fingerprints is None:
        return
    own = look.fingerprints
    twins: set[tuple[int, int]] = set()
    for first, others in _same_rows(own, own.combined(own.keys)):
        for other in others:
            twins.add((first, other))
            look.found(
                "episode-duplicate",
                f"All its {own.length[other]} rows are those of episode "
                f"{own.episode[first]}; only their numbers and times may differ.",
                episode=own.episode[other],
            )
    _near(look, own, twins)
    for camera in look.video_cameras:
        _same_videos(look, own, camera, twins)
    _alike(look, own, twins)


def _same_rows(own: Fingerprints, hashes: np.ndarray) -> Iterator[tuple[int, list[int]]]:
    """Yield the first of each group of episodes with the same rows, and the others."""
    for group in equal_groups(hashes):
        if own.changes[group[0]] >= LEAST_ROWS_CHANGING:
            first, *others = group.tolist()
            yield first, others


def _near(look: Look, own: Fingerprints, twins: set[tuple[int, int]]) -> None:
    least = look.thresholds["near_share"]
    known = {second for _, second in twins}
    pairs = overlapping(own.shingles, own.shingle_of, len(own.episode))
    for one, other, share in zip(*(values.tolist() for values in pairs), strict=True):
        if share < least or one in known or other in known:
            continue
        shorter, longer = sorted((one, other), key=lambda place: (own.length[place], -place))
        if share * own.length[shorter] >= LEAST_SHARED_ROWS:
            look.found(
                "episode-near-duplicate",
                f"About {share:.0%} of its {own.length[shorter]} rows are in episode "
                f"{own.episode[longer]} (from {least:.0%} on).",
                episode=own.episode[shorter],
            )


def _same_videos(look: Look, own: Fingerprints, camera: str, twins: set[tuple[int, int]]) -> None:
    for first, other in same_packets(episode_packets(look, camera)):
        if (first, other) in twins or _are_twins(own, first, other):
            continue
        look.found(
            "pictures-duplicate",
            f"Its frames are those of episode {own.episode[first]}, but its rows are not.",
            episode=own.episode[other],
            camera=camera,
        )


def _are_twins(own: Fingerprints, one: int, other: int) -> bool:
    return bool((own.hashes[one] == own.hashes[other]).all())


def _alike(look: Look, own: Fingerprints, twins: set[tuple[int, int]]) -> None:
    """Compare what a deep check saw."""
    most = look.thresholds["alike_levels"]
    reported = set(twins)
    for camera in look.appearances:
        for first, second in alike_pairs(appearances_of(look, camera), most):
            if (first, second) in reported or _are_twins(own, first, second):
                continue
            reported.add((first, second))
            look.found(
                "pictures-alike",
                f"At every moment that was compared it looks like episode "
                f"{own.episode[first]}: within {most:g} of 255 levels.",
                episode=own.episode[second],
                camera=camera,
            )


def check_leaks(looks: list[Look], findings: Findings) -> None:
    """Look for episodes that are in several datasets; each is reported for the later one.

    Args:
        looks: The datasets, after their rows have been seen.
        findings: Where to report.
    """
    seen = [look for look in looks if look.fingerprints is not None]
    for number, later in enumerate(seen):
        for earlier in seen[:number]:
            _leaks_between(earlier, later, findings)


def _leaks_between(earlier: Look, later: Look, findings: Findings) -> None:
    one, other = earlier.fingerprints, later.fingerprints
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
    cameras = set(later.video_cameras) & set(earlier.video_cameras)
    if not shared and not cameras:
        findings.add(
            "leak-unknown",
            f"{later.root} and {earlier.root} have no numbers and no camera in common.",
            dataset=str(later.root),
        )


def _rows_in_both(
    one: Fingerprints, other: Fingerprints, keys: tuple[str, ...], earlier: Look, found: _ReportLeak
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


def _videos_in_both(earlier: Look, later: Look, leaked: set[int], found: _ReportLeak) -> set[int]:
    """Report episodes with the very same frames, although rows differ or cannot be compared."""
    assert earlier.fingerprints is not None
    assert later.fingerprints is not None
    fresh: set[int] = set()
    for camera in later.video_cameras:
        if camera not in earlier.video_cameras:
            continue
        offset = len(earlier.fingerprints.episode)
        packets = list(episode_packets(earlier, camera))
        for one in episode_packets(later, camera):
            packets.append(replace(one, place=one.place + offset))
        for first, second in same_packets(packets):
            place = second - offset
            if first < offset <= second and place not in leaked | fresh:
                fresh.add(place)
                found(
                    "leak-episode",
                    f"Its frames of {camera} are those of episode "
                    f"{earlier.fingerprints.episode[first]} of {earlier.root}.",
                    place,
                )
    return fresh


def _looks_in_both(earlier: Look, later: Look, leaked: set[int], found: _ReportLeak) -> None:
    """Report episodes that a deep check saw to look the same: copies that were encoded again."""
    assert earlier.fingerprints is not None
    offset = len(earlier.fingerprints.episode)
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
                    f"On {camera} it looks like episode {earlier.fingerprints.episode[first]} of "
                    f"{earlier.root} at every moment that was compared.",
                    place,
                )


def _parts_in_both(
    one: Fingerprints, other: Fingerprints, leaked: set[int], earlier: Look, found: _ReportLeak
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
