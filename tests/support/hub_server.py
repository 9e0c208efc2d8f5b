"""A local Hugging Face Hub for tests: the real ``huggingface_hub`` client (1.x, 2.x) talks to it.

    from support.hub_server import HubServer

    with HubServer(tmp_path / "hub") as hub:
        hub.seed("me/pusht", "./pusht", tag="v3.0")              # put a dataset there, no client
        subprocess.run([sys.executable, "push.py"], env={**os.environ, **hub.environment})
        assert hub.read("me/pusht", "meta/info.json")
        assert hub.commits("me/pusht")[0].title == "Upload dataset"

The client reads its environment when it is imported, so tests run it in processes of their own
with ``hub.environment``. To use it in this process, start that with ``HF_HUB_DISABLE_XET=1`` and
pass ``endpoint=hub.endpoint, token=hub.token`` to ``HfApi``.

**Looking into it.** ``files(repo, revision)``, ``read(repo, path, revision)``, ``commits(repo)``
(newest first), ``refs(repo)``, ``exists(repo)``. ``log`` lists requests (``route``, ``method``,
``path`` without its query, ``status``, ``request_bytes``, ``response_bytes``, ``range``,
``authorized``), ``requests`` counts them, ``reset_log()`` forgets them.

**Putting things there.** ``seed(repo, folder, revision=, tag=, private=, repo_type=)`` makes a
branch hold a folder; ``commit(repo, {path: bytes or None})`` is another client's commit. The
storage is a folder, and a server that is started there again serves the same repositories.

**Who is asking.** ``token`` may do everything, ``read_token`` may not write, ``stranger_token``
belongs to a user that sees no private repository. Without a token a repository that is private or
missing is 401, with a stranger's 404, both with the code ``RepoNotFound``, as on the Hub.

**Breaking it.** ``fail_next(2, status=429, retry_after=1, on="commit")``, ``race(repo)`` (another
client commits between a client's look and its commit: 412), ``cut_upload(after_bytes)``,
``cut_download(after_bytes)``, ``expire_urls()``, ``hold("commit")`` (a request waits in the server
until the test has killed its client), ``calm()`` ends all of it. ``on`` is a route::

    whoami create delete move settings info tree paths-info refs commits tag branch validate-yaml
    preupload lfs (lfs-batch lfs-upload lfs-complete lfs-verify) commit
    resolve resolve-cache cdn bucket (bucket-tree bucket-paths-info bucket-batch bucket-resolve)

or, where it is none of these, a part of ``"METHOD /path"``.

**As the Hub does it.** A new repository has a first commit with ``.gitattributes``, which says
what is LFS. ``resolve`` answers with a redirect: LFS files to a signed URL on another host
(``localhost`` instead of ``127.0.0.1``), to which clients do not send their token; small files to
``/api/resolve-cache`` on the same host. LFS uploads go to signed URLs, in parts above
``part_size``; objects that are there already are not asked for. Trees and commits come in pages.

**What it leaves out.** Xet: ``environment`` switches it off, and the client then uploads by LFS and
downloads by plain HTTP, in 1.x and in 2.x alike. Buckets can be seeded, listed, deleted from and
read by ``HfFileSystem``; the client writes to them, and downloads them whole, by Xet alone.
Discussions, spaces, gated repositories and squashing are not served.
"""

from __future__ import annotations

from support.hub.faults import Held
from support.hub.server import HubServer
from support.hub.serving import LoggedRequest

__all__ = ["Held", "HubServer", "LoggedRequest"]
