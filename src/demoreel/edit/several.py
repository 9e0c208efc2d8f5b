"""Several datasets made by one command: all are planned, and refused, before the first is written.

What is finished is remembered until the last one is, so that the same command goes on after a kill
and does not take its own results for somebody else's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from demoreel.edit.clips import CutList
from demoreel.edit.plan import Plan, make_plan
from demoreel.edit.remote import render_anywhere
from demoreel.edit.render import Rendered, Report, forget_made, made_before
from demoreel.edit.target_info import Form
from demoreel.edit.verify import Verify
from demoreel.storage.commit.files import refuse_existing, refuse_overlap
from demoreel.storage.remote.send import refuse_remote_overlap, refuse_remote_target
from demoreel.storage.store import is_uri

Progress = Callable[[str], AbstractContextManager[Report | None]]
"""Given a target, yields what is called with the share of it that is written."""


def plan_several(
    cuts: Mapping[str, CutList],
    *,
    form: Form,
    overwrite: bool = False,
    verification: Verify = "ends",
) -> dict[str, Plan]:
    """Plan all, and refuse targets at which there is something already. Nothing is written.

    Raises:
        ArgumentError: A cut list makes no sense, or a source lies where it would be written to.
        TargetExistsError: There is something that another command has made.
    """
    plans = {target: make_plan(cutlist, form=form) for target, cutlist in cuts.items()}
    for target, plan in plans.items():
        for source in cuts[target].sources:
            refuse_remote_overlap(source.path, target)
            if not is_uri(target) and not is_uri(source.path):
                refuse_overlap(source.path, Path(target))
        if is_uri(target):
            refuse_remote_target(target, overwrite=overwrite)
        elif not made_before(Path(target), plan, verification=verification):
            refuse_existing(Path(target))
    return plans


def render_several(
    cuts: Mapping[str, CutList],
    *,
    form: Form,
    overwrite: bool = False,
    verification: Verify = "ends",
    progress: Progress | None = None,
    **options: Any,
) -> list[Rendered]:
    """Write several datasets, one after the other.

    After a kill, Ctrl-C or a full disk the same call goes on where that was; what is remote,
    source or target, is not remembered.

    Args:
        cuts: By target, what is to be written there.
        form: How all of them are to lie.
        overwrite: Of URIs: replace the datasets that are there.
        verification: What is read back and compared before a target appears.
        progress: Shows how far each of them is.
        **options: As for ``render_anywhere``.

    Raises:
        TargetExistsError: There is something at one of the targets; nothing was written.
        DemoreelError: As ``render_anywhere``.
    """
    done = {}
    plans: dict[str, Plan] = {}
    if len(cuts) > 1:
        plans = plan_several(cuts, form=form, overwrite=overwrite, verification=verification)
    remembered = {target for target in plans if _lies_here(target, cuts[target])}
    for target, cutlist in cuts.items():
        with nullcontext() if progress is None else progress(target) as report:
            done[target] = render_anywhere(
                cutlist,
                target,
                form=form,
                overwrite=overwrite,
                verification=verification,
                report=report,
                remember=target in remembered,
                **options,
            )
    for target in remembered:
        forget_made(Path(target), plans[target], verification=verification)
    return list(done.values())


def _lies_here(target: str, cutlist: CutList) -> bool:
    return not is_uri(target) and not any(is_uri(source.path) for source in cutlist.sources)
