"""The viewer's web server: who may ask, what is answered, and how errors look.

A stranger's web page must not be able to ask this server anything, also if it lies on the same
machine or its name is made to resolve to it. So every request needs a token (in a cookie after the
first), the name of the host must be one under which the server was started, and requests that
another site makes are refused.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from demoreel.errors import (
    ArgumentError,
    DatasetBusyError,
    DemoreelError,
    MissingExtraError,
    TargetExistsError,
    UnknownKeyError,
)
from demoreel.storage.store import is_uri
from demoreel.view.datasets import Shown, ShownDataset, camera_facts, describe
from demoreel.view.draft import Drafts, cut_of, default_target, idle_ends
from demoreel.view.episodes import columns_message
from demoreel.view.frames import depth_values, frame_image
from demoreel.view.jobs import Jobs, Report
from demoreel.view.packets import packets_message
from demoreel.view.predictions import Predictions

if TYPE_CHECKING:
    from demoreel.edit.render import Rendered

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import RedirectResponse, Response
    from starlette.routing import Route

    from demoreel.view.analysis import Analysis
    from demoreel.view.answers import (
        MOST_SENT,
        answering,
        columns_answer,
        json_answer,
        kept_answer,
        number_of,
        plain_values,
        report_of,
        taking,
        taking_bytes,
    )
except ImportError as error:
    raise MissingExtraError(
        f"The viewer needs {error.name}.", hint="pip install 'demoreel[viewer]'"
    ) from error

_PAGE = Path(__file__).parent / "page"
_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
_LAST_ANSWERS = 3  # seconds for requests under way when the server is told to end
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

Scope = dict[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


class _Guard:
    """Refuses requests of strangers, before anything looks at them.

    Args:
        app: What answers the others.
        token: What each must carry.
        hosts: The names that the server may be called by; None is any.
    """

    def __init__(self, app: App, token: str, hosts: Sequence[str] | None) -> None:
        self._app = app
        self._token = token
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        refusal = self._refusal(request)
        if refusal is not None:
            await refusal(scope, receive, send)
            return

        async def answered(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                known = {name for name, _ in message["headers"]}
                message["headers"] += [
                    (name.lower().encode(), value.encode())
                    for name, value in _HEADERS.items()
                    if name.lower().encode() not in known
                ]
            await send(message)

        await self._app(scope, receive, answered)

    def _refusal(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        try:
            parts = urlsplit(f"//{host}")
            name, _ = parts.hostname or "", parts.port
            asked_from = urlsplit(request.headers.get("origin", "")).netloc
        except ValueError:
            return _text("That is no name of a server.", 400)
        if self._hosts is not None and name not in self._hosts:
            return _text(f"This server is not called {name!r}.", 403)
        origin = request.headers.get("origin")
        if origin is not None and asked_from != host:
            return _text("Requests of other sites are refused.", 403)
        if origin is None and request.method not in ("GET", "HEAD"):
            return _text("A request that changes something must say where it comes from.", 403)
        # A link on another page may lead to the first page; it needs the token as any other.
        is_link = request.headers.get("sec-fetch-mode") == "navigate" and request.method == "GET"
        foreign = request.headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if foreign and not is_link:
            return _text("Requests of other sites are refused.", 403)
        given = parse_qs(request.url.query).get("token", [""])[-1]
        if given and self._fits(given) and request.method == "GET":
            left = "&".join(
                part for part in request.url.query.split("&") if not part.startswith("token=")
            )
            path = "/" + request.url.path.lstrip("/")  # two would begin another host's name
            answer = RedirectResponse(path + (f"?{left}" if left else ""), 303)
            answer.set_cookie(
                self.cookie(request), self._token, httponly=True, samesite="strict", path="/"
            )
            return answer
        if not self._fits(request.cookies.get(self.cookie(request), "")):
            return _text(
                "This page needs the address that demoreel view has printed, with its token.", 401
            )
        return None

    @staticmethod
    def cookie(request: Request) -> str:
        """Return the name of the cookie: cookies do not tell ports apart, so their names do."""
        return f"demoreel-{urlsplit('//' + request.headers.get('host', '')).port or 80}"

    def _fits(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._token.encode())


def _text(text: str, status: int) -> Response:
    return Response(text + "\n", status, media_type="text/plain", headers=_HEADERS)


class Viewer:
    """What the server answers."""

    def __init__(
        self,
        places: Sequence[str],
        options: Mapping[str, Any],
        *,
        read_only: bool = False,
        predictions: Sequence[str] = (),
    ) -> None:
        self.shown = Shown(places, options)
        self.jobs = Jobs()
        self._drafts = Drafts()
        self._read_only = read_only
        self._analysis = Analysis(self.shown, self.jobs, Predictions(predictions), self._drafts)

    def begin(self) -> None:
        """Open the dataset, if it is one, while the browser starts."""
        found = self.shown.list()
        if len(found) == 1:
            threading.Thread(target=_opened, args=(found[0],), daemon=True).start()

    def app(self, token: str, hosts: Sequence[str] | None) -> App:
        """Return the application, as uvicorn runs it."""
        one = "/api/d/{id}"
        routes = [
            Route("/api/datasets", answering(self._datasets)),
            Route(one, answering(self._dataset)),
            Route(f"{one}/state", answering(self._state)),
            Route(one + "/e/{episode:int}", answering(self._episode)),
            Route(one + "/e/{episode:int}/columns", answering(self._columns)),
            Route(one + "/e/{episode:int}/texts", answering(self._texts)),
            Route(one + "/e/{episode:int}/packets", answering(self._packets)),
            Route(one + "/e/{episode:int}/frame", answering(self._frame)),
            Route(one + "/e/{episode:int}/depth", answering(self._depth)),
            Route(one + "/e/{episode:int}/idle", answering(self._idle)),
            Route(one + "/e/{episode:int}/labels", answering(self._labels)),
            Route(f"{one}/draft", answering(self._draft)),
            Route(f"{one}/draft", taking(self._save_draft), methods=["PUT"]),
            Route(f"{one}/cutlist", answering(self._cutlist)),
            Route(f"{one}/annotations", answering(self._annotations)),
            Route(f"{one}/labels", taking_bytes(self._take_labels, MOST_SENT), methods=["POST"]),
            Route(f"{one}/render", taking(self._render), methods=["POST"]),
            Route("/api/jobs/{number:int}", answering(self._job)),
            Route("/api/jobs/{number:int}/cancel", taking(self._cancel), methods=["POST"]),
            *self._analysis.routes(),
            Route("/static/{name}", answering(self._static)),
            Route("/", answering(self._index)),
        ]
        return _Guard(Starlette(routes=routes), token, hosts)

    def _of(self, request: Request) -> ShownDataset:
        return self.shown.get(request.path_params["id"])

    def _datasets(self, request: Request) -> Response:
        found = self.shown.list()
        return json_answer(
            {
                "datasets": [shown.summary() for shown in found],
                "beside": [shown.id for shown in found] if self.shown.is_pair else None,
            }
        )

    def _dataset(self, request: Request) -> Response:
        facts = describe(self._of(request))
        return json_answer({**facts, "read_only": self._read_only})

    def _state(self, request: Request) -> Response:
        shown = self._of(request)
        try:
            episodes: int | None = len(shown.open().episodes)
        except DemoreelError:  # a page waits for the first episode; another request says why
            episodes = None
        return json_answer({"revision": shown.revision, "episodes": episodes})

    def _episode(self, request: Request) -> Response:
        shown, episode = self._of(request), request.path_params["episode"]
        dataset = shown.open()
        position = dataset.reader.episodes.position_of(episode)
        meta = dataset.reader.episodes[position]

        def facts_of(camera: str) -> dict[str, Any]:
            try:
                facts = camera_facts(dataset, position, camera)
            except DemoreelError as error:
                return {"way": "error", "why": report_of(error)}
            return {**facts, "revision": shown.revision}

        # At once: of a dataset in a store, each camera costs requests.
        with ThreadPoolExecutor(max(1, min(8, len(dataset.cameras)))) as pool:
            cameras = dict(zip(dataset.cameras, pool.map(facts_of, dataset.cameras), strict=True))
        return json_answer(
            {
                "index": meta.index,
                "position": position,
                "length": meta.length,
                "tasks": [str(task) for task in meta.tasks],
                "cameras": cameras,
                "revision": shown.revision,
            }
        )

    def _columns(self, request: Request) -> Response:
        dataset = self._of(request).open()
        wanted = [key for key in request.query_params.get("keys", "").split(",") if key]
        known = [f.key for f in dataset.features.values() if f.is_numeric]
        keys = [key for key in known if not wanted or key in wanted]
        points = request.query_params.get("points")
        return columns_answer(
            *columns_message(
                dataset,
                request.path_params["episode"],
                keys,
                None if points is None else number_of(points, 0),
            )
        )

    def _texts(self, request: Request) -> Response:
        dataset = self._of(request).open()
        view = dataset.episode(request.path_params["episode"])
        keys = [f.key for f in dataset.features.values() if not f.is_numeric and not f.is_camera]
        tasks = (
            [
                str(dataset.tasks[int(n)]) if int(n) in dataset.tasks else str(int(n))
                for n in view.column("task_index")
            ]
            if "task_index" in dataset.features
            else []
        )
        return json_answer(
            {"columns": {key: plain_values(view.column(key)) for key in keys}, "task": tasks}
        )

    def _packets(self, request: Request) -> Response:
        dataset, camera = self._of(request).open(), self._camera(request)
        position = dataset.reader.episodes.position_of(request.path_params["episode"])
        length = int(dataset.reader.episodes.length[position])
        first = number_of(request.query_params.get("from"), 0)
        stop = min(length, number_of(request.query_params.get("to"), length))
        return kept_answer(
            dataset.following(
                lambda: packets_message(dataset.reader.clip(position, camera), first, stop)
            ),
            "application/octet-stream",
        )

    def _frame(self, request: Request) -> Response:
        width = request.query_params.get("w")
        data = frame_image(
            self._of(request).open(),
            request.path_params["episode"],
            self._camera(request),
            number_of(request.query_params.get("i"), 0),
            None if width is None else number_of(width, 1),
        )
        return kept_answer(data, "image/jpeg")

    def _depth(self, request: Request) -> Response:
        data, height, width = depth_values(
            self._of(request).open(),
            request.path_params["episode"],
            self._camera(request),
            number_of(request.query_params.get("i"), 0),
        )
        answer = kept_answer(data, "application/octet-stream")
        answer.headers["X-Size"] = f"{height},{width}"
        return answer

    def _idle(self, request: Request) -> Response:
        return json_answer(idle_ends(self._of(request), request.path_params["episode"]))

    def _labels(self, request: Request) -> Response:
        from demoreel.edit.labels import labels_of  # heavy

        labels = labels_of(self._of(request).open(), request.path_params["episode"])
        return json_answer(labels.to_json())

    def _draft(self, request: Request) -> Response:
        shown = self._of(request)
        draft = self._drafts.read(shown)
        return json_answer({**draft, "target": default_target(shown), "read_only": self._read_only})

    def _save_draft(self, request: Request, sent: Any) -> Response:
        self._refuse_writing()
        draft = self._drafts.write(self._of(request), sent.get("revision"), sent.get("episodes"))
        return json_answer(draft)

    def _cutlist(self, request: Request) -> Response:
        shown = self._of(request)
        return json_answer(cut_of(shown, self._drafts.read(shown)).cutlist.to_json())

    def _annotations(self, request: Request) -> Response:
        from demoreel.view.exchange import annotations_in  # heavy

        shown = self._of(request)
        return json_answer(annotations_in(shown.open(), self._drafts.read(shown)))

    def _take_labels(self, request: Request, data: bytes) -> Response:
        """Answer with a file's labels as changes, which the page puts into its draft."""
        from demoreel.view.exchange import changes_in  # heavy

        self._refuse_writing()
        return json_answer({"episodes": changes_in(data, self._of(request).open())})

    def _render(self, request: Request, sent: Any) -> Response:
        """Begin to write a dataset of the draft, or a new version of a Lance dataset."""
        self._refuse_writing()
        shown = self._of(request)
        draft = self._drafts.read(shown)
        if draft["revision"] != sent.get("revision"):
            raise DatasetBusyError(
                "The draft was changed in another window meanwhile.", hint="reload this page"
            )
        made, target = cut_of(shown, draft), sent.get("target")
        if sent.get("in_place") is True:

            def work(report: Report) -> Any:
                rendered = made.render_in_place()
                self._drafts.end(shown, draft["revision"])
                return _rendered(rendered)

        else:
            if not isinstance(target, str) or not target.strip():
                raise ArgumentError("A cut needs a folder to be written to.")
            folder = os.path.expanduser(target.strip())
            if not os.path.isabs(folder) and not is_uri(folder):
                folder = os.path.join(shown.beside, folder)
            if os.path.lexists(folder):
                raise TargetExistsError("There is something already.", path=folder)

            def work(report: Report) -> Any:
                return _rendered(made.render(folder, report=report))

        cancels = (
            sent.get("in_place") is not True
        )  # which ends at a report, and can be gone on with
        return json_answer(self.jobs.start("render", work, cancels=cancels).to_json())

    def _refuse_writing(self) -> None:
        if self._read_only:
            raise ArgumentError("This viewer is read-only.", hint="start it without --read-only")

    def _job(self, request: Request) -> Response:
        return json_answer(self.jobs.get(request.path_params["number"]).to_json())

    def _cancel(self, request: Request, sent: Any) -> Response:
        job = self.jobs.get(request.path_params["number"])
        job.cancel()
        return json_answer(job.to_json())

    def _camera(self, request: Request) -> str:
        camera = request.query_params.get("camera", "")
        dataset = self._of(request).open()
        if camera not in dataset.cameras:
            raise UnknownKeyError(f"There is no camera {camera!r}.")
        return camera

    def _index(self, request: Request) -> Response:
        return _file("index.html")

    def _static(self, request: Request) -> Response:
        return _file(request.path_params["name"])


def _opened(shown: ShownDataset) -> None:
    with contextlib.suppress(Exception):  # the page that asks for it is told
        shown.open()


def _file(name: str) -> Response:
    path = _PAGE / name
    if path.parent != _PAGE or path.suffix not in _TYPES or not path.is_file():
        return _text("There is no such file.", 404)
    headers = {"Cache-Control": "no-cache"}
    return Response(path.read_bytes(), media_type=_TYPES[path.suffix], headers=headers)


def _rendered(rendered: Rendered) -> dict[str, Any]:
    return {
        "path": str(rendered.path),
        "episodes": rendered.episodes,
        "frames": rendered.frames,
        "version": rendered.version,
        "dropped": list(rendered.dropped),
    }


class RunningViewer:
    """A viewer that listens, and serves when it is told to.

    Args:
        places: Datasets, or folders of datasets.
        host: The address to listen on.
        port: The port; 0 is a free one.
        read_only: Whether to refuse all that writes: drafts and rendering.
        predictions: Files of predicted actions, parquet or npz.
        options: More arguments of ``demoreel.open``.
    """

    def __init__(
        self,
        places: Sequence[str],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        read_only: bool = False,
        predictions: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._viewer = viewer = Viewer(
            places, options or {}, read_only=read_only, predictions=predictions
        )
        self.is_local = host in _LOOPBACK
        self.token = secrets.token_urlsafe(24)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
            self._socket.listen(128)  # from now on: a browser may be faster than ``serve``
        except OSError as error:
            self._socket.close()
            raise ArgumentError(
                f"The viewer cannot listen on {host}:{port} ({error.strerror}).",
                hint="give another --port, or none for a free one",
            ) from error
        self.port = int(self._socket.getsockname()[1])
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{self.port}/?token={self.token}"
        viewer.begin()
        app = viewer.app(self.token, _LOOPBACK if self.is_local else None)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_level="warning",
                lifespan="off",
                server_header=False,
                # A client that sends or reads slowly does not keep Ctrl-C waiting.
                timeout_graceful_shutdown=_LAST_ANSWERS,
            )
        )

    def serve(self) -> None:
        """Answer requests until the process is interrupted; work that has begun is ended first."""
        self._server.run(sockets=[self._socket])
        self._viewer.jobs.wait()

    def stop(self) -> None:
        """Have ``serve`` return, from another thread."""
        self._server.should_exit = True
