"""What the pages ask about many episodes: the table, its plots, what ``check`` finds."""

from __future__ import annotations

from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from demoreel.errors import ArgumentError
from demoreel.view.answers import answering, json_answer, number_of, taking
from demoreel.view.datasets import Shown, ShownDataset
from demoreel.view.episodes import KNOWN_AT_ONCE, EpisodeFilter, EpisodePages, Range
from demoreel.view.findings import Checks
from demoreel.view.jobs import Jobs
from demoreel.view.measures import EpisodeMeasures

_MOST_RANGES = 20


class Analysis:
    """Answers about the episodes of the viewer's datasets.

    Args:
        shown: The datasets.
        jobs: Where work runs that takes longer than a request.
    """

    def __init__(self, shown: Shown, jobs: Jobs) -> None:
        self._shown = shown
        self._measured = EpisodeMeasures(jobs)
        self._checks = Checks(jobs)
        self._pages: dict[str, tuple[int, EpisodePages]] = {}

    def routes(self) -> list[Route]:
        """Return what it answers."""
        one = "/api/d/{id}"
        return [
            Route(f"{one}/episodes", answering(self._episodes)),
            Route(f"{one}/motion", answering(self._motion)),
            Route(f"{one}/measures", answering(self._measures)),
            Route(f"{one}/check", answering(self._check)),
            Route(f"{one}/check", taking(self._start_check), methods=["POST"]),
        ]

    def _of(self, request: Request) -> ShownDataset:
        return self._shown.get(request.path_params["id"])

    def _table(self, request: Request) -> EpisodePages:
        shown = self._of(request)
        dataset = shown.open()
        revision, pages = self._pages.get(shown.id, (-1, None))
        if pages is None or revision != shown.revision:
            pages = EpisodePages(
                dataset, lambda: self._measured.known(shown.id), lambda: self._checks.of(shown)
            )
            self._pages[shown.id] = shown.revision, pages
        return pages

    def _episodes(self, request: Request) -> Response:
        asked, sort = request.query_params, request.query_params.get("sort", "index")
        chosen, pages = _filter_of(asked), self._table(request)
        if chosen.ranges or chosen.only or sort not in KNOWN_AT_ONCE:
            shown = self._of(request)
            self._measured.of(shown.id, shown.open())  # else the first rows wait for nothing
        return json_answer(
            pages.page(
                number_of(asked.get("from"), 0),
                number_of(asked.get("n"), 100),
                sort=sort,
                descending=asked.get("desc") == "1",
                chosen=chosen,
            )
        )

    def _motion(self, request: Request) -> Response:
        return json_answer(self._table(request).motion(_numbers(request.query_params, "episodes")))

    def _measures(self, request: Request) -> Response:
        """Answer with the plots of all measures, and how far they are known."""
        shown, pages = self._of(request), self._table(request)
        dataset = shown.open()
        table, job = self._measured.of(shown.id, dataset)
        chosen = _filter_of(request.query_params)
        return json_answer(
            {
                "done": table.done,
                "of": len(dataset.episodes),
                "job": None if job is None else job.to_json(),
                "plots": pages.plots(chosen),
                "tasks": pages.tasks(chosen),
                "outliers": int((table.outliers() > 0).sum()),
                "problems": table.problems,
            }
        )

    def _check(self, request: Request) -> Response:
        return json_answer(self._checks.to_json(self._of(request)))

    def _start_check(self, request: Request, sent: Any) -> Response:
        shown = self._of(request)
        self._checks.start(shown, deep=sent.get("deep") is True)
        return json_answer(self._checks.to_json(shown))


def _numbers(asked: QueryParams, name: str) -> list[int]:
    return [number_of(text, 0) for text in asked.get(name, "").split(",") if text]


def _filter_of(asked: QueryParams) -> EpisodeFilter:
    """Return which episodes a request is about; a range is ``r=MEASURE:LEAST:LARGEST``."""
    ranges: list[Range] = []
    for text in asked.getlist("r")[:_MOST_RANGES]:
        key, *ends = text.rsplit(":", 2)
        try:
            low, high = map(float, ends)
        except ValueError:
            raise ArgumentError(f"{text[:80]!r} is not a measure and its range.") from None
        ranges.append((key, low, high))
    return EpisodeFilter(
        text=asked.get("q", "").strip(),
        where=asked.get("where", "").strip(),
        task=asked.get("task"),
        ranges=tuple(ranges),
        only=asked.get("only", ""),
        numbers=tuple(_numbers(asked, "numbers")) if "numbers" in asked else None,
    )
