"""Publishing under the name, and with the arguments, that LeRobot users have in their scripts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demoreel.errors import ArgumentError

if TYPE_CHECKING:
    from demoreel.hub.plan import PushReport


class PublishedDataset:
    """The part of ``LeRobotDataset`` that publishes; mixed into it."""

    repo_id: str
    root: Path
    episodes: list[int] | None

    def push_to_hub(
        self,
        branch: str | None = None,
        tags: Sequence[str] | None = None,
        license: str | None = None,
        tag_version: bool = True,
        push_videos: bool = True,
        private: bool | None = None,
        allow_patterns: Sequence[str] | str | None = None,
        upload_large_folder: bool = False,
        *,
        force: bool = False,
        dry_run: bool = False,
        token: str | None = None,
        **card_kwargs: Any,
    ) -> PushReport:
        """Publish the dataset as ``repo_id`` on the Hub, in one commit; see ``demoreel.push``.

        Args:
            branch: The branch; ``main`` if None.
            tags: Tags for the card, beside ``LeRobot``.
            license: The licence for the card; None keeps the card's, or is ``apache-2.0``.
            tag_version: Whether the tag of the dataset's version (``v3.0``) moves to the commit.
            push_videos: Whether ``videos/`` is sent.
            private: Whether only its owner sees it, where the repository is made.
            allow_patterns: Only files that match one of these.
            upload_large_folder: Taken for compatibility: a push of any size goes on where it was
                interrupted.
            force: Push even where episodes would be lost that others have put there.
            dry_run: Say what would be done, and do nothing.
            token: A token; None takes ``HF_TOKEN`` or the login.
            **card_kwargs: More for the card: ``url``, ``paper``, ``citation``; YAML keys.

        Raises:
            ArgumentError: The dataset was opened with ``episodes=``, or an argument makes no sense.
            DatasetBusyError: It is being recorded: ``finalize()`` it first.
            NewerRemoteError: Episodes would be lost that others have put there.
            AccessError: There is no token, or the Hub does not accept it.
            StoreError: The Hub does not answer; push again, and it goes on.
        """
        if getattr(self, "episodes", None) is not None:
            raise ArgumentError(
                "This dataset was opened with episodes=, and is pushed as a whole.",
                hint="demoreel.cut(ds.reader).render(FOLDER) makes a dataset of them; push that",
                dataset=self.root,
            )
        from demoreel.hub.push import push

        return push(
            self.root,
            self.repo_id,
            branch=branch,
            private=private,
            tags=tags or (),
            license=license,
            tag_version=tag_version,
            push_videos=push_videos,
            allow_patterns=allow_patterns,
            force=force,
            dry_run=dry_run,
            token=token,
            **card_kwargs,
        )
