"""The plots of a report, as SVG that stands in the page itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from demoreel.check.codes import SEVERITIES, Severity
from demoreel.check.findings import Finding

_WIDTH = 720
_LEFT = 150  # for labels
_ROW = 18
_MOST_COLUMNS = 300
_MOST_DIMENSIONS = 64


def lengths_plot(facts: Mapping[str, Any]) -> str:
    """Draw how many episodes are how long: a histogram."""
    counts, edges = facts["counts"], facts["edges"]
    height, bottom = 140, 24
    tallest = max(counts) or 1
    wide = (_WIDTH - 20) / len(counts)
    bars = []
    for number, count in enumerate(counts):
        tall = (height - bottom - 14) * count / tallest
        said = f"{count} episodes of {edges[number]:.0f} to {edges[number + 1]:.0f} frames"
        bars.append(
            _bar(10 + number * wide, height - bottom - tall, max(wide - 1, 0.5), tall, "bar", said)
        )
    labels = [
        _text(10, height - 8, f"{facts['shortest']} frames"),
        _text(_WIDTH / 2, height - 8, f"median {facts['median']:g}", "middle"),
        _text(_WIDTH - 10, height - 8, f"{facts['longest']}", "end"),
        _text(10, 11, f"{facts['episodes']} episodes, up to {tallest} in a bar"),
    ]
    return _svg(height, [*bars, *labels], "Episode lengths")


def ranges_plot(facts: Mapping[str, Any]) -> str:
    """Draw each dimension's range: all values, the middle 98 %, the middle half, the median.

    Every dimension has a scale of its own, from its smallest to its largest value; what lies far
    outside the middle 98 % is drawn as an outlier.
    """
    drawn = []
    shown = facts["dimensions"][:_MOST_DIMENSIONS]
    for row, dimension in enumerate(shown):
        drawn += _range_row(dimension, 8 + row * _ROW)
    return _svg(12 + _ROW * len(shown), drawn, f"Ranges of {facts['feature']}")


def _range_row(dimension: Mapping[str, Any], top: float) -> list[str]:
    name = str(dimension["name"])
    label = _text(_LEFT - 8, top + 11, name if len(name) <= 22 else f"{name[:21]}…", "end")
    low, high, marks = dimension["low"], dimension["high"], dimension.get("quantiles")
    if low is None or high is None or not marks or None in marks:
        return [label, _text(_LEFT, top + 11, "not a number somewhere")]
    span = (high - low) or 1.0
    wide = _WIDTH - _LEFT - 90

    def across(value: float) -> float:
        return float(_LEFT + wide * (value - low) / span)

    one, quarter, half, three, most = marks
    said = f"{name}: {low:.4g} to {high:.4g}, median {half:.4g}, 98 % in {one:.4g} to {most:.4g}"
    parts = [
        label,
        _bar(_LEFT, top + 7, wide, 1, "axis", said),
        _bar(across(one), top + 4, max(across(most) - across(one), 1), 7, "most", said),
        _bar(across(quarter), top + 2, max(across(three) - across(quarter), 1), 11, "bar", said),
        _bar(across(half) - 1, top + 1, 2, 13, "mark", said),
        _text(_LEFT + wide + 6, top + 11, f"{low:.3g} … {high:.3g}"),
    ]
    room = max(most - one, 1e-12)
    for value, far in ((low, one - low), (high, high - most)):
        if far > room:
            parts.append(_dot(across(value), top + 7.5, f"{name}: an outlier at {value:.4g}"))
    return parts


def episodes_plot(findings: Iterable[Finding], first: int, last: int) -> str:
    """Draw which episodes have findings: a strip a severity, the worst on top."""
    found: dict[Severity, Counter[int]] = {severity: Counter() for severity in SEVERITIES}
    columns = min(_MOST_COLUMNS, last - first + 1)
    for finding in findings:
        episode = finding.where.episode
        if episode is not None and first <= episode <= last:
            column = (episode - first) * columns // (last - first + 1)
            found[finding.severity][column] += finding.count
    wide = (_WIDTH - 90) / columns
    drawn = []
    for row, severity in enumerate(reversed(SEVERITIES)):
        top = 6 + row * 22
        drawn.append(_text(70, top + 13, f"{severity}s", "end"))
        drawn.append(_bar(80, top, _WIDTH - 90, 18, "empty", f"no {severity}"))
        for column, count in sorted(found[severity].items()):
            begin = first + -(-column * (last - first + 1) // columns)
            said = f"episode {begin} on: {count} {severity}s"
            drawn.append(_bar(80 + column * wide, top, max(wide, 1.5), 18, severity, said))
    drawn.append(_text(80, 84, f"episode {first}"))
    drawn.append(_text(_WIDTH - 10, 84, f"{last}", "end"))
    return _svg(90, drawn, "Findings by episode")


def _svg(height: float, parts: Sequence[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}">'
        + "".join(parts)
        + "</svg>"
    )


def _bar(x: float, y: float, wide: float, tall: float, kind: str, said: str) -> str:
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}">'
        f"<title>{escape(said)}</title></rect>"
    )


def _dot(x: float, y: float, said: str) -> str:
    return (
        f'<circle class="outlier" cx="{x:.1f}" cy="{y:.1f}" r="3.5">'
        f"<title>{escape(said)}</title></circle>"
    )


def _text(x: float, y: float, said: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(said)}</text>'
