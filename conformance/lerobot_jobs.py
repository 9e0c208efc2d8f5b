"""What lerobot and lerobot-lancedb do far from home, written down for another process.

    lerobot_jobs.py JOBS.json OUT.json      # with the Python of lerobot, or of lerobot-lancedb

The environment says which Hub (`HF_ENDPOINT`), with which cache (`HF_HOME`, `HF_LEROBOT_HOME`), and
whether it may be asked at all (`HF_HUB_OFFLINE`). `JOBS.json` holds jobs by name:

    {"do": "read", "repo_id": "me/x", "kwargs": {"episodes": [1]}, "indices": {"step": 7}}
    {"do": "push", "repo_id": "me/x", "root": FOLDER, "kwargs": {"tags": ["arm"]}}
    {"do": "read_lance", "root": "s3://...", "kwargs": {}, "indices": "all"}

`OUT.json` holds their answers by the same names. Reading answers as a case of `lerobot_answers.py`
does, and with "meta"; "error" says what lerobot said instead.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lerobot_answers import answer_item, choose, describe_meta, said


def main() -> None:
    jobs = json.loads(Path(sys.argv[1]).read_text())
    answers = {name: answer(**job) for name, job in jobs.items()}
    Path(sys.argv[2]).write_text(json.dumps(answers, ensure_ascii=False, default=repr))


def answer(do: str, indices: Any = "all", **job: Any) -> dict[str, Any]:
    try:
        if do == "push":
            return push(**job)
        return described(read(**job) if do == "read" else read_lance(**job), indices)
    except Exception as error:
        return {"error": said(error)}


def read(repo_id: str, kwargs: dict[str, Any]) -> Any:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    return LeRobotDataset(repo_id, **kwargs)


def read_lance(root: str, kwargs: dict[str, Any]) -> Any:
    from lerobot_lancedb import LanceDBDataset

    return LanceDBDataset(root=root, **kwargs)


def push(repo_id: str, root: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    from huggingface_hub import RepoCard
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    # Whatever HF_ENDPOINT says, cards are sent to huggingface.co to be looked over.
    RepoCard.validate = lambda *_, **__: None
    LeRobotDataset(repo_id, root=root).push_to_hub(**kwargs)
    return {}


def described(dataset: Any, indices: Any) -> dict[str, Any]:
    return {
        "revision": dataset.meta.revision,
        "root": str(dataset.root),
        "len": len(dataset),
        "num_episodes": dataset.num_episodes,
        "meta": describe_meta(dataset.meta),
        "items": {
            str(index): answer_item(dataset, index) for index in choose(indices, len(dataset))
        },
    }


if __name__ == "__main__":
    main()
