"""Tasks in the processes of a project: the worker is killed, the mail server is down, and no task is lost."""

from pathlib import Path

import pytest

from django_rmq_retry.models import ParkedMessage, StoredResult
from tests.shop.running import Shop
from tests.tooling.filled import ALIAS, Own
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.on_both]


@pytest.fixture
def office(broker_url: str, tmp_path: Path, own_database: Own) -> Shop:
    environment = {**own_database.environment, "SHOP_APPS": "tests.tasks.office", "SHOP_TASKS": "yes"}
    return Shop(url=broker_url, notes=tmp_path / "notes", records=environment).declared()


def python(office: Shop, code: str) -> str:
    """What this code prints in the project."""
    done = office.run("shell", "-v", "0", "-c", f"from tests.tasks.office.tasks import *\n{code}")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def status(office: Shop, task: str, name: str) -> str:
    told = python(
        office, f"found = {task}.get_result({name!r})\nprint(found.status, found.attempts, len(found.errors))"
    )
    return told.splitlines()[-1]


def test_a_killed_worker_loses_no_task_and_no_result(office: Shop) -> None:
    name = python(office, "print(double.enqueue(21).id)")

    with office.running("rmq_consume", KILLING="yes") as killed:
        killed.code()
    assert office.noted() == ["double 21"]
    assert status(office, "double", name) == "READY 0 0"
    done = office.run("rmq_consume", "--burst")

    assert done.returncode == 0, done.stderr
    assert office.noted() == ["double 21"] * 2
    assert status(office, "double", name) == "SUCCESSFUL 1 0"
    assert python(office, f"print(double.get_result({name!r}).return_value)") == "42"


def test_a_task_that_failed_succeeds_after_its_requeue_and_can_be_erased(office: Shop) -> None:
    name = python(
        office, "from django.db import transaction\nwith transaction.atomic():\n    print(mail.enqueue('a@b.c').id)"
    )

    with office.running("rmq_consume", DOWN="yes") as worker:
        wait_until(lambda: ParkedMessage.objects.using(ALIAS).exists(), timeout=30, what="a parked message")
        worker.signal()
        assert worker.code() == 0, worker.errors
    assert status(office, "mail", name) == "FAILED 2 2"
    parked = ParkedMessage.objects.using(ALIAS).get()
    assert (parked.handler, parked.business_key) == ("tasks.default", "tests.tasks.office.tasks.mail")

    with office.running("rmq_consume"):
        sent = office.run("rmq_parked", "requeue", "--yes", "--reason", "The mail server is back", str(parked.pk))
        assert sent.returncode == 0, sent.stdout + sent.stderr
        wait_until(lambda: status(office, "mail", name) == "SUCCESSFUL 3 2", timeout=30, what="the result")

    assert office.noted() == ["mail a@b.c"] * 3
    erased = office.run("rmq_parked", "erase", "--key", "a@b.c", "--reason", "request 12", "--yes")
    assert (erased.returncode, "1 message" in erased.stdout) == (0, True), erased.stdout + erased.stderr
    parked.refresh_from_db()
    assert (bytes(parked.body), StoredResult.objects.using(ALIAS).filter(pk=name).exists()) == (b"", False)
