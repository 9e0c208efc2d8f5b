"""The local Hub, asked by the real client, which runs in processes of its own."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from textwrap import dedent

import pytest

from demoreel.errors import ArgumentError
from support.hub_server import HubServer

pytestmark = pytest.mark.soak

# Another interpreter, with another client (1.x), may be tried: DEMOREEL_HUB_PYTHON=/path/to/python.
PYTHON = os.environ.get("DEMOREEL_HUB_PYTHON", sys.executable)
VIDEO = bytes(range(256)) * 400
CARD = "---\nlicense: mit\ntags: [LeRobot]\ntask_categories: [robotics]\n---\n# Käfer\n"

PRELUDE = """
import json, os, sys
from pathlib import Path
from huggingface_hub import (CommitOperationAdd, CommitOperationCopy, CommitOperationDelete, HfApi,
                             HfFileSystem, hf_hub_download, snapshot_download)
from huggingface_hub.errors import *
api = HfApi()
def status(call):
    try:
        call()
    except HfHubHTTPError as error:
        return [type(error).__name__, error.response.status_code]
    return None
def say(**facts):
    print(json.dumps(facts))
"""


@pytest.fixture
def hub(tmp_path):
    with HubServer(tmp_path / "hub", page_size=3) as server:
        yield server


@pytest.fixture
def folder(tmp_path) -> Path:
    made = tmp_path / "dataset"
    (made / "meta").mkdir(parents=True)
    (made / "videos").mkdir()
    (made / "README.md").write_text(CARD)
    (made / "meta" / "info.json").write_text('{"codebase_version": "v3.0"}')
    (made / "videos" / "front.mp4").write_bytes(VIDEO)
    return made


def start(hub: HubServer, script: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [PYTHON, "-c", PRELUDE + dedent(script)],
        env={**os.environ, **hub.environment, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=hub.folder,
    )


def client(hub: HubServer, script: str, **environment: str) -> dict:
    """Run a script with the real client; what it says."""
    process = start(hub, script, **environment)
    said, complaints = process.communicate(timeout=120)
    assert process.returncode == 0, complaints
    return json.loads(said.splitlines()[-1]) if said else {}


def routes(hub: HubServer) -> list[str]:
    return [request.route for request in hub.log]


def test_a_push_as_users_do_it(hub, folder):
    said = client(
        hub,
        f"""
        url = api.create_repo("me/pusht", repo_type="dataset", private=True)
        again = status(lambda: api.create_repo("me/pusht", repo_type="dataset"))
        api.create_repo("me/pusht", repo_type="dataset", exist_ok=True)
        made = api.upload_folder(repo_id="me/pusht", repo_type="dataset",
                                 folder_path={str(folder)!r}, commit_message="Upload dataset",
                                 commit_description="all of it")
        api.create_tag("me/pusht", tag="v3.0", revision=made.oid, repo_type="dataset")
        twice = status(lambda: api.create_tag("me/pusht", tag="v3.0", repo_type="dataset"))
        api.create_tag("me/pusht", tag="v3.0", repo_type="dataset", exist_ok=True)
        api.create_branch("me/pusht", branch="try/1", repo_type="dataset")
        refs = api.list_repo_refs("me/pusht", repo_type="dataset", include_pull_requests=True)
        info = api.dataset_info("me/pusht", revision="v3.0", files_metadata=True)
        say(name=api.whoami()["name"], url=str(url), again=again, twice=twice, oid=made.oid,
            branches=[r.name for r in refs.branches], tags=[r.target_commit for r in refs.tags],
            sha=info.sha, card=info.card_data.to_dict(), shown=info.tags, private=info.private,
            sizes={{s.rfilename: s.size for s in info.siblings}},
            titles=[c.title for c in api.list_repo_commits("me/pusht", repo_type="dataset")])
        """,
    )
    assert said["name"] == "me"
    assert said["url"] == f"{hub.endpoint}/datasets/me/pusht"
    assert said["again"] == said["twice"] == ["HfHubHTTPError", 409]
    assert said["branches"] == ["main", "try/1"]
    assert said["tags"] == [said["oid"]] == [said["sha"]] == [hub.refs("me/pusht")["tags"]["v3.0"]]
    assert said["card"]["license"] == "mit"
    assert said["shown"] == ["task_categories:robotics", "license:mit", "region:us", "LeRobot"]
    assert said["private"] is True
    assert said["sizes"]["videos/front.mp4"] == len(VIDEO)
    assert said["titles"] == ["Upload dataset", "initial commit"]

    assert hub.commits("me/pusht")[0].message == "all of it"
    files = hub.files("me/pusht")
    assert set(files) == {".gitattributes", "README.md", "meta/info.json", "videos/front.mp4"}
    assert [path for path, file in files.items() if file.lfs] == ["videos/front.mp4"]
    assert files["videos/front.mp4"].sha256 == hashlib.sha256(VIDEO).hexdigest()
    assert hub.read("me/pusht", "README.md").decode() == CARD
    (upload,) = (request for request in hub.log if request.route == "lfs-upload")
    assert (upload.request_bytes, upload.authorized) == (len(VIDEO), False)


def test_what_did_not_change_is_not_sent_again(hub, folder):
    hub.seed("me/pusht", folder)
    (folder / "new.parquet").write_bytes(b"PAR1")
    (folder / "copy.mp4").write_bytes(VIDEO)
    script = f"""
    made = api.upload_folder(repo_id="me/pusht", repo_type="dataset", folder_path={str(folder)!r})
    say(oid=made.oid)
    """
    first = client(hub, script)
    sent = [request.request_bytes for request in hub.log if request.route == "lfs-upload"]
    assert sent == [4]
    assert hub.files("me/pusht")["copy.mp4"] == hub.files("me/pusht")["videos/front.mp4"]
    hub.reset_log()
    assert client(hub, script) == first
    assert not {"lfs-upload", "commit"} & set(routes(hub))
    assert len(hub.commits("me/pusht")) == 3


def test_operations_of_a_commit(hub, folder):
    first = hub.seed("me/pusht", folder)
    said = client(
        hub,
        f"""
        def commit(*operations, **more):
            return api.create_commit("me/pusht", operations, commit_message="change",
                                     repo_type="dataset", **more)
        oid = commit(CommitOperationAdd("empty.parquet", b""), CommitOperationAdd("a/b.txt", b"x"),
                     CommitOperationCopy("videos/front.mp4", "c.mp4"),
                     CommitOperationCopy("meta/info.json", "i.json"),
                     CommitOperationDelete("videos/"), CommitOperationDelete("README.md"),
                     parent_commit={first!r}).oid
        stale = status(lambda: commit(CommitOperationAdd("z", b"z"), parent_commit={first!r}))
        gone = status(lambda: commit(CommitOperationDelete("README.md")))
        nowhere = status(lambda: commit(CommitOperationAdd("z", b"z"), revision="no-branch"))
        pr = commit(CommitOperationAdd("p.txt", b"p"), create_pr=True).pr_url
        say(oid=oid, stale=stale, gone=gone, nowhere=nowhere, pr=pr,
            tree=[f.path for f in api.list_repo_tree("me/pusht", repo_type="dataset",
                                                      revision="refs/pr/1", recursive=True)])
        """,
    )
    assert set(hub.files("me/pusht")) == {
        *(".gitattributes", "a/b.txt", "c.mp4", "empty.parquet", "i.json", "meta/info.json")
    }
    assert hub.read("me/pusht", "c.mp4") == VIDEO
    assert hub.commits("me/pusht")[0].oid == said["oid"]
    assert hub.commits("me/pusht")[0].parent == first
    assert said["stale"] == ["HfHubHTTPError", 412]
    assert said["gone"] == ["RemoteEntryNotFoundError", 404]
    assert said["nowhere"] == ["RevisionNotFoundError", 404]
    assert said["pr"] == f"{hub.endpoint}/datasets/me/pusht/discussions/1"
    assert "p.txt" in said["tree"]


def test_trees_come_in_pages(hub, folder):
    for number in range(7):
        (folder / "meta" / f"{number}.json").write_text("{}")
    hub.seed("me/pusht", folder, tag="v3.0")
    said = client(
        hub,
        """
        def tree(**more):
            found = api.list_repo_tree("me/pusht", repo_type="dataset", revision="v3.0", **more)
            return [entry.path for entry in found]
        last = next(iter(api.list_repo_tree("me/pusht", repo_type="dataset", expand=True)))
        paths = api.get_paths_info("me/pusht", ["meta", "videos/front.mp4", "no"],
                                   repo_type="dataset")
        say(all=tree(recursive=True), top=tree(), meta=tree(path_in_repo="meta"),
            last=last.last_commit.title, paths=[p.path for p in paths], sha=paths[1].lfs.sha256,
            none=status(lambda: tree(path_in_repo="none")))
        """,
    )
    assert said["top"] == [".gitattributes", "README.md", "meta", "videos"]
    assert said["meta"] == [f"meta/{name}.json" for name in (*range(7), "info")]
    assert set(said["all"]) == set(hub.files("me/pusht")) | {"meta", "videos"}
    assert said["last"] == "initial commit"
    assert said["paths"] == ["meta", "videos/front.mp4"]
    assert said["sha"] == hashlib.sha256(VIDEO).hexdigest()
    assert said["none"] == ["RemoteEntryNotFoundError", 404]
    assert routes(hub).count("tree") == 5 + 2 + 3 + 1 + 1


def test_a_snapshot_fills_the_cache_and_then_needs_nobody(hub, folder):
    oid = hub.seed("me/pusht", folder, tag="v3.0")
    script = """
    where = Path(snapshot_download("me/pusht", repo_type="dataset", revision="v3.0"))
    say(where=str(where), files=sorted(str(p.relative_to(where)) for p in where.rglob("*.*")))
    """
    said = client(hub, script)
    assert Path(said["where"]).name == oid
    assert (Path(said["where"]) / "videos" / "front.mp4").read_bytes() == VIDEO
    assert {request.authorized for request in hub.log if request.route == "cdn"} == {False}
    hub.reset_log()
    assert client(hub, script) == said
    assert not {"cdn", "resolve-cache"} & set(routes(hub))
    hub.reset_log()
    assert client(hub, script, HF_HUB_OFFLINE="1") == said
    assert hub.requests == 0


def test_a_download_goes_on_where_it_was_cut(hub, folder):
    hub.seed("me/pusht", folder)
    hub.cut_download(50_000)
    said = client(
        hub,
        """
        from huggingface_hub import constants
        constants.DOWNLOAD_CHUNK_SIZE = 10_000  # what a file must grow by to be worth keeping
        say(path=hf_hub_download("me/pusht", "videos/front.mp4", repo_type="dataset"))
        """,
    )
    assert Path(said["path"]).read_bytes() == VIDEO
    first, second = (request for request in hub.log if request.route == "cdn")
    assert (first.status, first.response_bytes, first.range) == (200, 50_000, None)
    assert (second.status, second.range) == (206, "bytes=50000-")
    assert second.response_bytes == len(VIDEO) - 50_000


def test_ranged_reads_through_the_file_system(hub, folder):
    hub.seed("me/pusht", folder, tag="v3.0")
    hub.seed("me/box", folder, repo_type="bucket")
    said = client(
        hub,
        """
        fs, read = HfFileSystem(), {}
        for place in ("datasets/me/pusht@v3.0", "buckets/me/box"):
            with fs.open(f"{place}/videos/front.mp4", "rb", block_size=1000) as file:
                file.seek(70_000)
                read[place] = [file.read(300).hex(), file.size]
        say(read=read, bucket=sorted(fs.find("buckets/me/box")),
            size=api.bucket_info("me/box").size,
            top=[e.path for e in api.list_bucket_tree("me/box")],
            none=status(lambda: api.bucket_info("me/none")))
        """,
    )
    expected = [VIDEO[70_000:70_300].hex(), len(VIDEO)]
    assert said["read"] == {"datasets/me/pusht@v3.0": expected, "buckets/me/box": expected}
    assert said["bucket"] == [f"buckets/me/box/{path}" for path in _names(folder)]
    assert said["size"] == sum(path.stat().st_size for path in folder.rglob("*.*"))
    assert said["top"] == ["README.md", "meta", "videos"]
    assert said["none"] == ["BucketNotFoundError", 404]
    assert all(request.response_bytes < 3000 for request in hub.log if request.route == "cdn")


def _names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))


def test_who_may_see_and_who_may_write(hub, folder):
    hub.seed("me/secret", folder, private=True)
    hub.seed("me/open", folder)
    said = client(
        hub,
        f"""
        stranger, reader = {hub.stranger_token!r}, {hub.read_token!r}
        def look(repo, token):
            return status(lambda: api.dataset_info(repo, token=token))
        def write(token):
            return status(lambda: api.create_commit("me/open", [CommitOperationAdd("x", b"x")],
                          commit_message="x", repo_type="dataset", token=token))
        say(secret=[look("me/secret", t) for t in (None, reader, stranger, False, "hf_wrong")],
            open=[look("me/open", t) for t in (stranger, False, "hf_wrong")],
            none=[look("me/none", t) for t in (None, False)],
            write=[write(t) for t in (reader, stranger, False)],
            who=status(lambda: api.whoami(token="hf_wrong")),
            file=status(lambda: hf_hub_download("me/secret", "README.md", repo_type="dataset",
                                                token=False)))
        """,
    )
    missing = "RepositoryNotFoundError"
    wrong = ["HfHubHTTPError", 401]
    assert said["secret"] == [None, None, [missing, 404], [missing, 401], wrong]
    assert said["open"] == [None, None, wrong]
    assert said["none"] == [[missing, 404], [missing, 401]]
    assert said["write"] == [["HfHubHTTPError", 403], ["HfHubHTTPError", 403], wrong]
    assert said["who"] == wrong
    assert said["file"] == [missing, 401]
    assert len(hub.commits("me/open")) == 2


def test_somebody_else_commits_first(hub, folder):
    first = hub.seed("me/pusht", folder)
    hub.race("me/pusht")
    said = client(
        hub,
        """
        def commit():
            head = api.dataset_info("me/pusht").sha
            api.create_commit("me/pusht", [CommitOperationAdd("mine.txt", b"x")],
                              commit_message="mine", repo_type="dataset", parent_commit=head)
        say(answers=[status(commit), status(commit)])
        """,
    )
    assert said["answers"] == [["HfHubHTTPError", 412], None]
    titles = [commit.title for commit in hub.commits("me/pusht")]
    assert titles == ["mine", "Somebody else's commit", "Seed", "initial commit"]
    assert hub.commits("me/pusht")[1].parent == first


def test_faults_while_pushing(hub, folder):
    hub.seed("me/pusht")
    hub.fail_next(status=503, on="preupload")
    hub.fail_next(status=429, retry_after=0, on="lfs-batch")
    hub.fail_next(status=500, on="commit")
    hub.cut_upload(30_000)
    said = client(
        hub,
        f"""
        def push():
            api.upload_folder(repo_id="me/pusht", repo_type="dataset", folder_path={str(folder)!r})
        say(answers=[status(push), status(push)])
        """,
    )
    # The client tries everything again, save the commit.
    assert said["answers"] == [["HfHubHTTPError", 500], None]
    assert hub.read("me/pusht", "videos/front.mp4") == VIDEO
    assert [r.status for r in hub.log if r.route == "preupload"] == [503, 200, 200]
    assert [r.status for r in hub.log if r.route == "lfs-batch"] == [429, 200, 200]
    assert [r.status for r in hub.log if r.route == "commit"] == [500, 200]
    uploads = [(r.status, r.request_bytes) for r in hub.log if r.route == "lfs-upload"]
    assert uploads == [(0, 30_000), (200, len(VIDEO))]


def test_large_files_go_up_in_parts(tmp_path, folder):
    with HubServer(tmp_path / "parts", part_size=40_000) as hub:
        hub.seed("me/pusht")
        client(
            hub,
            f"""
            api.upload_file(path_or_fileobj={str(folder / "videos" / "front.mp4")!r},
                            path_in_repo="a.mp4", repo_id="me/pusht", repo_type="dataset")
            """,
        )
        assert hub.read("me/pusht", "a.mp4") == VIDEO
        parts = [request.request_bytes for request in hub.log if request.route == "lfs-upload"]
        assert parts == [40_000, 40_000, len(VIDEO) - 80_000]


def test_ignored_files_stay_at_home(hub, folder):
    (folder / ".gitignore").write_text("# mine\n*.tmp\nstaging/\n!keep.tmp\n")
    (folder / "staging").mkdir()
    for name in ("a.tmp", "keep.tmp", "staging/x.txt"):
        (folder / name).write_text("x")
    hub.seed("me/pusht")
    client(
        hub,
        f"""
        api.upload_folder(repo_id="me/pusht", repo_type="dataset", folder_path={str(folder)!r})
        """,
    )
    pushed = set(hub.files("me/pusht"))
    assert "keep.tmp" in pushed
    assert not pushed & {"a.tmp", "staging/x.txt"}


def test_a_client_killed_at_its_commit_leaves_no_commit(hub, folder):
    hub.seed("me/pusht")
    script = f"""
    api.upload_folder(repo_id="me/pusht", repo_type="dataset", folder_path={str(folder)!r})
    """
    with hub.hold("commit") as held:
        process = start(hub, script)
        held.wait()
        process.kill()
        process.communicate()
        held.drop()
    assert len(hub.commits("me/pusht")) == 1
    hub.reset_log()
    client(hub, script)
    assert "lfs-upload" not in routes(hub)  # what came up before is still there
    assert hub.read("me/pusht", "videos/front.mp4") == VIDEO


def test_names_of_repositories(hub, folder):
    hub.seed("me/old", folder)
    said = client(
        hub,
        """
        api.move_repo("me/old", "lab/new", repo_type="dataset")
        led = hf_hub_download("me/old", "README.md", repo_type="dataset")
        api.update_repo_settings("lab/new", private=True, repo_type="dataset")
        private = api.dataset_info("lab/new", expand=["private", "sha"]).private
        here = [api.repo_exists(name, repo_type="dataset") for name in ("lab/new", "lab/none")]
        api.create_tag("lab/new", tag="t", repo_type="dataset")
        api.delete_tag("lab/new", tag="t", repo_type="dataset")
        untag = status(lambda: api.delete_tag("lab/new", tag="t", repo_type="dataset"))
        api.create_branch("lab/new", branch="b", repo_type="dataset")
        api.delete_branch("lab/new", branch="b", repo_type="dataset")
        api.delete_repo("lab/new", repo_type="dataset")
        gone = status(lambda: api.delete_repo("lab/new", repo_type="dataset"))
        say(id=Path(led).read_text(), private=private, here=here, untag=untag, gone=gone)
        """,
    )
    assert said["id"] == CARD
    assert said["private"] is True
    assert said["here"] == [True, False]
    assert said["untag"] == ["RevisionNotFoundError", 404]
    assert said["gone"] == ["RepositoryNotFoundError", 404]
    assert not hub.exists("lab/new")


def test_a_broken_card_is_refused(hub):
    hub.seed("me/pusht")
    said = client(
        hub,
        """
        try:
            api.upload_file(path_or_fileobj=b"---\\nlicense: [\\n---\\n", path_in_repo="README.md",
                            repo_id="me/pusht", repo_type="dataset")
        except ValueError as error:
            say(error=str(error))
        """,
    )
    assert "Invalid metadata in README.md" in said["error"]
    assert len(hub.commits("me/pusht")) == 1


# Without a client: plain requests.


def ask(url: str, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer.read(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read(), dict(error.headers)


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


def location(url: str) -> tuple[int, dict[str, str]]:
    try:
        urllib.request.build_opener(_Stay).open(url)
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers)
    raise AssertionError("no redirect")


def test_resolve_leads_to_a_signed_url_elsewhere(hub, folder):
    oid = hub.seed("me/pusht", folder)
    sha = hashlib.sha256(VIDEO).hexdigest()
    url = f"{hub.endpoint}/datasets/me/pusht/resolve/main/videos/front.mp4"
    status, headers = location(url)
    assert status == 302
    assert headers["X-Repo-Commit"] == oid
    assert (headers["X-Linked-Size"], headers["X-Linked-ETag"]) == (str(len(VIDEO)), f'"{sha}"')
    assert not [name for name in headers if name.lower().startswith("x-xet")]
    signed = headers["Location"]
    assert signed.startswith("http://localhost:")
    assert ask(signed)[1] == VIDEO
    assert ask(signed.replace("Signature=", "Signature=0"))[0] == 403
    assert ask(signed.split("?")[0])[0] == 403
    hub.expire_urls()
    assert ask(signed)[0] == 403
    assert ask(url)[1] == VIDEO
    assert "Signature" not in repr(hub.log)


def test_signed_urls_end_with_their_time(tmp_path, folder):
    with HubServer(tmp_path / "short", url_lifetime=-1) as hub:
        hub.seed("me/pusht", folder)
        assert ask(f"{hub.endpoint}/datasets/me/pusht/resolve/main/videos/front.mp4")[0] == 403


@pytest.mark.parametrize(
    ("wanted", "status", "start", "end"),
    [
        ("bytes=0-99", 206, 0, 100),
        ("bytes=100-", 206, 100, None),
        ("bytes=-7", 206, -7, None),
        (f"bytes=5-{len(VIDEO) + 50}", 206, 5, None),
        ("nonsense", 200, 0, None),
        (f"bytes={len(VIDEO)}-", 416, 0, 0),
    ],
)
def test_ranges(hub, folder, wanted, status, start, end):
    hub.seed("me/pusht", folder)
    url = f"{hub.endpoint}/datasets/me/pusht/resolve/main/videos/front.mp4"
    got, body, headers = ask(url, Range=wanted)
    assert got == status
    if status == 416:
        assert headers["Content-Range"] == f"bytes */{len(VIDEO)}"
    else:
        assert body == VIDEO[start:end]
        assert headers["Accept-Ranges"] == "bytes"


def test_an_object_that_is_another_one_now(hub, folder):
    hub.seed("me/pusht", folder)
    url = f"{hub.endpoint}/datasets/me/pusht/resolve/main/meta/info.json"
    etag = ask(url)[2]["ETag"]
    assert ask(url, **{"If-None-Match": etag})[0] == 304
    hub.commit("me/pusht", {"meta/info.json": b"{}"})
    assert ask(url, **{"If-Match": etag})[0] == 412
    assert ask(url, **{"If-None-Match": etag})[:2] == (200, b"{}")


def test_failures_are_for_those_they_are_meant_for(hub, folder):
    hub.seed("me/pusht", folder)
    info = f"{hub.endpoint}/api/datasets/me/pusht"
    hub.fail_next(2, status=429, retry_after=3, on="commits")
    hub.fail_next(status=502, on="GET /api/datasets/me/pusht/refs")
    assert ask(info)[0] == ask(f"{info}/tree/main")[0] == 200
    status, _, headers = ask(f"{info}/commits/main")
    assert (status, headers["Retry-After"]) == (429, "3")
    assert ask(f"{info}/refs")[0] == 502
    assert ask(f"{info}/refs")[0] == 200
    hub.calm()
    assert ask(f"{info}/commits/main")[0] == 200


def test_short_bodies(hub, folder):
    hub.seed("me/pusht", folder)
    hub.cut_download(5, on="GET /")
    with pytest.raises(http.client.IncompleteRead) as caught:
        ask(f"{hub.endpoint}/datasets/me/pusht/resolve/main/meta/info.json")
    assert len(caught.value.partial) == 5
    assert [request.response_bytes for request in hub.log] == [0, 5]


def test_a_folder_is_served_again(tmp_path, folder):
    with HubServer(tmp_path / "hub") as hub:
        oid = hub.seed("me/pusht", folder, tag="v3.0")
        hub.seed("me/pusht", folder, revision="dev")
    with HubServer(tmp_path / "hub") as hub:
        assert hub.refs("me/pusht")["tags"] == {"v3.0": oid}
        assert set(hub.refs("me/pusht")["branches"]) == {"main", "dev"}
        assert hub.read("me/pusht", "videos/front.mp4", "v3.0") == VIDEO


def test_seeding_makes_a_branch_hold_just_the_folder(hub, folder):
    hub.seed("me/pusht", folder)
    (folder / "README.md").unlink()
    hub.seed("me/pusht", folder)
    assert set(hub.files("me/pusht")) == {".gitattributes", *_names(folder)}
    with pytest.raises(ArgumentError):
        hub.seed("me/pusht", folder / "none")
    with pytest.raises(ArgumentError):
        hub.files("me/none")


def test_what_breaks_the_server_is_not_hidden(tmp_path):
    with pytest.raises(KeyError), HubServer(tmp_path / "hub") as hub:  # noqa: PT012
        request = urllib.request.Request(
            f"{hub.endpoint}/api/repos/create",
            data=b"{}",
            headers={"Authorization": f"Bearer {hub.token}"},
        )
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(request)


def test_tokens_are_not_shown(hub):
    assert hub.token not in repr(hub)
