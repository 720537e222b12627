"""The walk of messages to their dispatchers, by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from deliveryd.delivery.pauses import Pauses
from deliveryd.delivery.preparation import Preparer
from deliveryd.delivery.routing import Router
from deliveryd.directory.base import NoDirectory
from deliveryd.errors import ServiceUnavailable
from deliveryd.journal.sqlite.journal import open_journal_file
from deliveryd.model import Content, Rendered, Transition
from deliveryd.states import State
from support.line import common_on, memory_on
from support.routes import MESSAGE, NOBODY

pytestmark = pytest.mark.anyio


class Unreachable:
    """Settings that the service is asked for in vain."""

    def at_hand(self, settings_id: int) -> None:
        """None is in memory."""

    async def ask(self, settings_id: int) -> ServiceUnavailable:
        return ServiceUnavailable("no answer")

    def is_awaited(self, settings_id: int) -> bool:
        return True


async def test_what_was_about_to_wait_is_routed_by_the_new_router(tmp_path: Path) -> None:
    """A reload may have removed the provider that its step would have recorded."""
    settings: Any = Unreachable()
    async with open_journal_file(tmp_path / "journal.db") as journal, anyio.create_task_group() as tasks:
        memory = memory_on(journal)
        before, after = (Router({}, (), ("en",), NOBODY, Pauses()) for _ in range(2))
        preparer = Preparer(settings, NoDirectory(), before, common_on(journal, memory))
        assert preparer.prepare([MESSAGE], tasks) == []
        await anyio.wait_all_tasks_blocked()
        preparer.adopt(after)
        assert memory.ready.take() == [MESSAGE]
        assert preparer.prepare([], tasks) == []


async def test_what_was_about_to_end_ends_after_a_reload_too(tmp_path: Path) -> None:
    """It expired by its kept content, without its settings; a step to an end has no content any more."""
    settings: Any = Unreachable()
    content = Content(Rendered("sms", "en", {"text": "hi"}), {}, expires_at=1)
    async with open_journal_file(tmp_path / "journal.db") as journal, anyio.create_task_group() as tasks:
        memory = memory_on(journal)
        before, after = (Router({}, (), ("en",), NOBODY, Pauses()) for _ in range(2))
        preparer = Preparer(settings, NoDirectory(), before, common_on(journal, memory))
        preparer.prepare([MESSAGE._replace(content=content)], tasks)
        await anyio.wait_all_tasks_blocked()
        preparer.adopt(after)
        assert memory.ready.take() == []
        (step,) = preparer.prepare([], tasks)
        assert isinstance(step, Transition)
        assert (step.after, [event.status for event in step.events]) == (State.FAILED, ["error"])
