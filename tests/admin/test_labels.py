"""Machine values have texts for users, in the user's language."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_rmq_retry.admin import labels
from django_rmq_retry.markup import time_ago
from django_rmq_retry.messages import Reason
from django_rmq_retry.messages.parked_copy import By
from django_rmq_retry.models import Action, OperatorAction
from django_rmq_retry.models.parked import REASON_TEXTS, reason_text, resolution_text
from django_rmq_retry.topology import Role
from tests.admin import made
from tests.admin.looking import Page
from tests.tooling import pseudo


@pytest.fixture
def marked(tmp_path: Path, settings: Any) -> Iterator[None]:
    """A language in which every translated text stands between brackets."""
    with pseudo.spoken(settings, tmp_path):
        yield


def test_each_machine_value_has_a_label() -> None:
    assert set(REASON_TEXTS) == set(Reason)
    assert set(labels.PARKED_BY) == set(By)
    assert set(labels.ROLES) == set(Role)


@pytest.mark.usefixtures("marked")
def test_a_known_reason_is_translated_and_an_unknown_one_is_kept() -> None:
    assert reason_text("retries_exhausted") == "[!! retries exhausted !!]"
    assert reason_text("of a later version") == "of a later version"
    assert reason_text("") == ""


def test_the_reason_of_a_discard_shows_the_label_of_its_category() -> None:
    assert resolution_text("duplicate: see INC-553") == "Duplicate: see INC-553"
    assert resolution_text("bad data") == "Bad data"
    assert resolution_text("by an older version: so") == "by an older version: so"
    assert labels.action_reason(OperatorAction(action=Action.DISCARD, reason="bad data")) == "Bad data"
    assert labels.action_reason(OperatorAction(action=Action.HOLD, reason="bad data")) == "bad data"


def test_the_reason_of_a_changed_rate_names_both_rates() -> None:
    facts = {"before": {"rate": 80.0}, "after": {"rate": 0.5}}
    changed = OperatorAction(action=Action.CHANGE_RATE, facts=facts)
    assert labels.action_reason(changed) == "80 → 0.5"
    assert labels.action_reason(OperatorAction(action=Action.CHANGE_RATE, facts={}, reason="slow bank")) == "slow bank"


@pytest.mark.django_db
@pytest.mark.usefixtures("marked")
def test_a_selection_is_described_in_labels() -> None:
    words = {"group": 41, "state": ["parked", "on_hold"], "reason": "expired", "queue": "payments.main"}
    said = "[!! group !!] #41 · [!! status !!] [!! Parked !!], [!! On hold !!] · [!! reason !!] [!! expired !!]"

    assert labels.selection_text({"filter": words}) == f"{said} · [!! queue !!] payments.main"
    assert labels.selection_text({"ids": {"7": 1}}, "#7") == "#7"


@pytest.mark.usefixtures("marked")
def test_ages_in_days_are_translated() -> None:
    past, coming = timezone.now() - timedelta(days=3, hours=1), timezone.now() + timedelta(days=1, hours=1)

    assert ">[!! 3 days ago !!]<" in time_ago(past)
    assert ">[!! in 1 day !!]<" in time_ago(coming)


@pytest.mark.django_db
def test_a_cause_without_an_error_is_named_in_the_readers_language(client: Client, settings: Any) -> None:
    client.force_login(made.person("viewer", "view_errorgroup", "view_parkedmessage"))
    made.message(made.group(title="no_handler", culprit="", reason="no_handler"), reason="no_handler", error="")
    english = Page(client.get("/admin/rmq_retry/errorgroup/")).text
    settings.LANGUAGE_CODE = "de"
    german = Page(client.get("/admin/rmq_retry/errorgroup/")).text

    assert ("no handler" in english, "no_handler" in english) == (True, False)
    assert ("kein Handler" in german, "no_handler" in german) == (True, False)


def test_a_field_of_a_later_version_keeps_its_name() -> None:
    assert labels.selection_text({"filter": {"queue": "cards", "bank": "north"}}) == "queue cards · bank north"
