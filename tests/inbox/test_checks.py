"""System checks of handlers with ``once``."""

from typing import Any

import pytest
from django.core.checks import CheckMessage, run_checks
from django.db import connection, connections
from django.test import override_settings

from django_rmq_retry import AckFirst, Delivery, Exponential, Fixed, OneShot, RetryThenPark, Schedule, handler
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.models import InboxEntry


class Nowhere:
    """A router that allows no table of the package in any database."""

    def allow_migrate(self, _db: str, app_label: str, **_: object) -> bool:
        return app_label != "rmq_retry"


pytestmark = pytest.mark.usefixtures("no_handlers")


def once(**options: Any) -> None:
    @handler("payments", **{"name": "charge", "once": True, **options})
    def charge(message: Delivery) -> None: ...


def found(*, tag: str = "rmq_retry", **keys: Any) -> list[CheckMessage]:
    with override_settings(RMQ_RETRY={"URL": "amqps://rabbit.bank/pay", **keys}):
        return run_checks(tags=[tag], databases=["default"])


def ids(**keys: Any) -> list[str]:
    messages = found(**keys)
    assert all(message.hint for message in messages)
    said = [str(message.id).removeprefix("rmq_retry.") for message in messages]
    # The checks of the outbox report the same router too.
    return sorted(number for number in said if number != "W040")


def test_a_sound_handler_gets_no_warning() -> None:
    once()

    assert ids() == []


def test_an_unknown_database_is_an_error() -> None:
    once(using="ledger")

    assert ids() == ["E030"]


def test_a_database_closed_to_our_tables_is_an_error(settings: Any) -> None:
    settings.DATABASE_ROUTERS = [Nowhere()]
    once()

    assert ids() == ["E031"]


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
def test_a_missing_table_is_a_warning_if_databases_are_checked() -> None:
    once()
    assert ids(tag="database") == []
    with connection.schema_editor() as editor:
        editor.delete_model(InboxEntry)
    try:
        said = found(tag="database")
    finally:
        with connection.schema_editor() as editor:
            editor.create_model(InboxEntry)

    assert [(one.id, one.hint) for one in said] == [
        (
            "rmq_retry.W033",
            "Run `manage.py migrate --database default`; a router must let the app rmq_retry migrate there.",
        )
    ]


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
def test_migrate_does_not_warn_about_tables_that_it_creates(monkeypatch: pytest.MonkeyPatch) -> None:
    once()
    with connection.schema_editor() as editor:
        editor.delete_model(InboxEntry)
    try:
        checked = ids(tag="database")
        monkeypatch.setattr("sys.argv", ["manage.py", "migrate"])
        migrated = ids(tag="database")
    finally:
        with connection.schema_editor() as editor:
            editor.create_model(InboxEntry)

    assert (checked, migrated) == (["W033"], [])


def test_retries_that_outlast_inbox_days_are_an_error() -> None:
    once(policy=RetryThenPark(attempts=8, backoff=Exponential(86400, factor=2)))

    assert ids() == ["E032"]
    assert ids(INBOX_DAYS=128) == []


def test_retries_of_one_error_type_that_outlast_inbox_days_are_an_error() -> None:
    longer = Schedule(attempts=8, backoff=Exponential(86400, factor=2))
    once(policy=RetryThenPark(attempts=2, backoff=Fixed(1), schedules={OSError: longer}))

    assert ids() == ["E032"]
    assert ids(INBOX_DAYS=128) == []


def test_inbox_days_below_the_requeue_age_is_a_warning() -> None:
    once()

    assert ids(INBOX_DAYS=89) == ["W031"]


def test_a_database_without_autocommit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "AUTOCOMMIT", False)
    once()

    assert ids() == ["E033"]


@pytest.mark.parametrize(("options", "said"), [({}, ["W030"]), ({"transaction_mode": "IMMEDIATE"}, [])])
def test_sqlite_without_immediate_transactions_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, object], said: list[str]
) -> None:
    told = {"ENGINE": "django.db.backends.sqlite3", "NAME": "/srv/bank.sqlite3", "OPTIONS": options}
    for key, value in told.items():
        monkeypatch.setitem(connections["default"].settings_dict, key, value)
    once()

    assert ids() == said


def test_ack_first_is_a_warning_of_its_own() -> None:
    once(policy=RetryThenPark(backoff=Fixed(1), via=AckFirst()))

    assert ids() == ["W001", "W032"]


def test_handlers_without_once_get_no_findings() -> None:
    once(once=False, using="ledger")

    assert ids(INBOX_DAYS=1) == []


def test_once_with_a_one_shot_policy_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Each call needs an answer, and once=… has none for a duplicate"):
        once(policy=OneShot())


def test_the_database_of_once_must_be_an_alias() -> None:
    with pytest.raises(ConfigurationError, match="using is a database's alias, such as 'ledger', not 7"):
        once(using=7)
