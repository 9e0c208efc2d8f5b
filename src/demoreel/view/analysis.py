"""What the pages ask about many episodes: the table, its plots, what ``check`` finds."""

from __future__ import annotations

from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from demoreel.errors import ArgumentError, UnknownKeyError
from demoreel.view.answers import (
    answering,
    columns_answer,
    json_answer,
    kept_answer,
    number_of,
    taking,
    taking_bytes,
)
from demoreel.view.datasets import Shown, ShownDataset
from demoreel.view.draft import Drafts
from demoreel.view.episodes import (
    KNOWN_AT_ONCE,
    EpisodeFilter,
    EpisodePages,
    Range,
    packed_columns,
)
from demoreel.view.findings import Checks
from demoreel.view.frames import frame_image
from demoreel.view.jobs import Jobs
from demoreel.view.measures import EpisodeMeasures
from demoreel.view.predictions import MOST_SENT, Predictions
from demoreel.view.samples import Samples, Windows, asked_size, asked_windows

_MOST_RANGES = 20


class Analysis:
    """Answers about the episodes of the viewer's datasets.

    Args:
        shown: The datasets.
        jobs: Where work runs that takes longer than a request.
        predictions: Files of predicted actions.
        drafts: What was changed on the pages.
    """

    def __init__(self, shown: Shown, jobs: Jobs, predictions: Predictions, drafts: Drafts) -> None:
        self._shown = shown
        self._measured = EpisodeMeasures(jobs)
        self._checks = Checks(jobs)
        self._predictions = predictions
        self._drafts = drafts
        self._samples = Samples()
        self._sizes: dict[str, tuple[int, dict[str, Any]]] = {}
        self._pages: dict[str, tuple[int, EpisodePages]] = {}

    def routes(self) -> list[Route]:
        """Return what it answers."""
        one = "/api/d/{id}"
        return [
            Route(f"{one}/episodes", answering(self._episodes)),
            Route(f"{one}/motion", answering(self._motion)),
            Route(f"{one}/measures", answering(self._measures)),
            Route(f"{one}/size", answering(self._size)),
            Route(f"{one}/cover", answering(self._cover)),
            Route(one + "/e/{episode:int}/sample", answering(self._sample)),
            Route(one + "/e/{episode:int}/sample/image", answering(self._sample_image)),
            Route(one + "/e/{episode:int}/predictions/{number:int}", answering(self._predicted)),
            Route("/api/predictions", answering(self._list_predictions)),
            Route("/api/predictions", taking_bytes(self._add, MOST_SENT), methods=["POST"]),
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
                dataset,
                lambda: self._measured.known(shown.id),
                lambda: self._checks.of(shown),
                lambda: self._drafts.read(shown)["episodes"],
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
                "problems": table.told_problems(),
            }
        )

    def _check(self, request: Request) -> Response:
        return json_answer(self._checks.to_json(self._of(request)))

    def _start_check(self, request: Request, sent: Any) -> Response:
        shown = self._of(request)
        self._checks.start(shown, deep=sent.get("deep") is True)
        return json_answer(self._checks.to_json(shown))

    def _size(self, request: Request) -> Response:
        """Answer with how many bytes a dataset has: a list of its files, once for each state."""
        shown = self._of(request)
        dataset = shown.open()
        revision, told = self._sizes.get(shown.id, (-1, {}))
        if revision != shown.revision:
            files, is_whole = dataset.folder.every_file()
            told = {"bytes": sum(max(0, size) for _, size in files), "is_whole": is_whole}
            self._sizes[shown.id] = shown.revision, told
        return json_answer(told)

    def _cover(self, request: Request) -> Response:
        """Answer with the first frame of a dataset's first episode, small."""
        dataset = self._of(request).open()
        cameras = [key for key in dataset.cameras if not dataset.features[key].is_depth]
        if not cameras or not len(dataset.episodes):
            raise UnknownKeyError("The dataset has no camera.")
        episode = int(dataset.reader.episodes.episode_index[0])
        return kept_answer(frame_image(dataset, episode, cameras[0], 0, 160), "image/jpeg")

    def _asked_sample(self, request: Request) -> tuple[ShownDataset, int, int, Windows, Any]:
        asked = request.query_params
        windows, size = asked_windows(asked.get("windows", "")), asked_size(asked.get("size", ""))
        episode = request.path_params["episode"]
        return self._of(request), episode, number_of(asked.get("i"), 0), windows, size

    def _sample(self, request: Request) -> Response:
        return json_answer(self._samples.told(*self._asked_sample(request)))

    def _sample_image(self, request: Request) -> Response:
        asked = request.query_params
        shown, camera = self._of(request), asked.get("camera", "")
        if camera not in shown.open().cameras:
            raise UnknownKeyError(f"There is no camera {camera!r}.")
        data = self._samples.image(
            *self._asked_sample(request), camera, number_of(asked.get("k"), 0)
        )
        return kept_answer(data, "image/jpeg")

    def _list_predictions(self, request: Request) -> Response:
        return json_answer({"files": self._predictions.listed()})

    def _add(self, request: Request, sent: bytes) -> Response:
        name = request.query_params.get("name", "predictions")
        return json_answer({"number": self._predictions.add(name, sent)})

    def _predicted(self, request: Request) -> Response:
        """Answer with what a file predicts for an episode, as the episode's columns are sent."""
        episode, number = request.path_params["episode"], request.path_params["number"]
        length = len(self._of(request).open().episode(episode))
        columns = self._predictions.columns(number, episode, length)
        facts, data = packed_columns(columns, length)
        return columns_answer({**facts, "frames": None, "of": length}, data)


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
