"""The fixtures of alerts."""

from collections.abc import Iterator
from typing import Any

import django
import pytest
from django.core import mail

from tests.alerts.receiving import Receiver, receiver


@pytest.fixture
def receiving() -> Iterator[Receiver]:
    with receiver() as one:
        yield one


@pytest.fixture(autouse=True)
def mails_are_kept(settings: Any) -> None:
    """As pytest-django does it, by the setting that newer versions of Django want."""
    mail.outbox = []
    if django.VERSION >= (6, 1):
        del settings.EMAIL_BACKEND
        settings.MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}
