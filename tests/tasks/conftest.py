"""A RabbitBackend, its tasks, and a kit that records attempts as a consumer does."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
from django.test import override_settings

from django_rmq_retry.attempts.buffer import Buffer, Writer
from django_rmq_retry.attempts.rows import RowBuilder
from django_rmq_retry.consumer.recorder import Recorder
from django_rmq_retry.consumer.surroundings import Surroundings
from django_rmq_retry.testing import RmqTest, isolated_handlers

BACKEND = "django_rmq_retry.tasks.RabbitBackend"
WEEK = timedelta(days=7)
Load = Callable[..., ModuleType]


@pytest.fixture
def load() -> Iterator[Load]:
    """Return a function that loads the tasks with a backend of these queues and options."""
    with ExitStack() as stack:
        stack.enter_context(isolated_handlers())

        def loaded(*queues: str, settings: dict[str, Any] | None = None, **options: Any) -> ModuleType:
            backend = {"BACKEND": BACKEND, "QUEUES": [*queues] or ["default", "emails"], "OPTIONS": options}
            stack.enter_context(override_settings(TASKS={"default": backend}, **(settings or {})))
            # With the backend of these settings.
            work = importlib.reload(importlib.import_module("tests.tasks.work"))
            work.calls.clear()
            return work

        yield loaded


class _Unhurried(Buffer):
    """A buffer without a thread: the test flushes it."""

    def _wake(self) -> None: ...


class RecordingTest(RmqTest):
    """A kit that records attempts in the database."""

    def __init__(self, **options: Any) -> None:
        self._history = Recorder(_Unhurried(Writer(RowBuilder(deploy=""))))
        super().__init__(**options)

    def _surroundings(self, gates: Any) -> Surroundings:
        made = super()._surroundings(gates)
        return replace(made, journals=(self._history, *made.journals), keep=self._history.buffer.add)

    def drain(self, *, limit: int = 100) -> int:
        made = super().drain(limit=limit)
        self._history.buffer.flush()
        return made


@pytest.fixture
def recording() -> Iterator[RecordingTest]:
    with RecordingTest() as kit:
        yield kit
