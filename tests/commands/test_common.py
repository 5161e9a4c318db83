"""--timeout and --using, the same words for all commands to which they mean something; and names."""

import time
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.contrib.sessions.models import Session
from django.core.management import CommandError, call_command
from django.db import router

from django_rmq_retry.management.databases import pinned
from django_rmq_retry.models import Action, OperatorAction, ParkedMessage
from tests.amqp.line_between import between
from tests.commands.running import Exit, run
from tests.operators.made import logged, record
from tests.tooling.brokers import using_broker

NO_BROKER = {"URL": "amqp://guest:guest@127.0.0.1:1/"}
WITH_TIMEOUT = {
    "rmq_status": "--check",
    "rmq_doctor": "--json",
    "rmq_declare": "--check",
    "rmq_delete": "payments.charge.parked --yes",
    "rmq_publish": "--queue payments.charge --raw {file}",
    "rmq_parked": "requeue {id} --yes",
}
WITH_RECORDS = (
    *("rmq_parked list", "rmq_audit verify", "rmq_roles --dry-run", "rmq_consume --burst", "rmq_status"),
    "rmq_doctor",
    *("rmq_blocked list", "rmq_queue list", "rmq_relay list"),
)


@pytest.mark.django_db
@pytest.mark.usefixtures("charge")
@pytest.mark.parametrize("command", WITH_TIMEOUT)
def test_an_unresponsive_broker_ends_the_wait_with_code_3(
    command: str, broker_url: str, settings: Any, tmp_path: Path
) -> None:
    (tmp_path / "it").write_bytes(b"{}")
    words = WITH_TIMEOUT[command].format(file=tmp_path / "it", id=record().pk)
    with between(broker_url) as line:
        line.swallow()
        began = time.monotonic()
        with using_broker(settings, line.url):
            told = run(command, *words.split(), "--timeout", "0.5")

    assert told.code == Exit.UNREACHABLE, told
    assert time.monotonic() - began < 8


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon", "3601"])
def test_an_invalid_timeout_is_refused(seconds: str) -> None:
    with pytest.raises(CommandError, match="takes seconds, more than 0 and up to 3600"):
        call_command("rmq_status", "--timeout", seconds)


@pytest.mark.django_db
@pytest.mark.parametrize("command", WITH_RECORDS)
def test_an_unknown_database_gets_the_nearest_name_suggested(command: str, settings: Any) -> None:
    settings.RMQ_RETRY = NO_BROKER
    told = run(*command.split(), "--using", "defualt")

    assert (told.code, told.err) == (Exit.USAGE, "There is no database 'defualt'. Did you mean default?")


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.django_db
@pytest.mark.usefixtures("own_database")
def test_the_option_database_selects_where_records_are_read(settings: Any, before: bool) -> None:
    settings.RMQ_RETRY = NO_BROKER
    record(key="HERE")
    with pinned("own"):
        there = record(key="THERE")
    words = ("--using", "own", "list") if before else ("list", "--using", "own")

    assert [one["business_key"] for one in run("rmq_parked", *words, "--json").data["items"]] == ["THERE"]
    assert [one["business_key"] for one in run("rmq_parked", "list", "--json").data["items"]] == ["HERE"]
    assert run("rmq_parked", "discard", str(there.pk), "--category", "test", "--using", "own").code == Exit.DONE
    with pinned("own"):
        assert list(ParkedMessage.objects.values_list("state", flat=True)) == ["discarded"]
        assert OperatorAction.objects.count() == 1
    assert OperatorAction.objects.count() == 0


def test_the_option_database_routes_only_models_of_the_package() -> None:
    with pinned("own", ("auth",)):
        placed = [router.db_for_write(model) for model in (ParkedMessage, Group, Session)]

    assert placed == ["own", "own", "default"]
    assert router.db_for_write(ParkedMessage) == "default"


@pytest.mark.parametrize("option", ["--queue", "--exchange", "--routing-key", "--type", "--message-id"])
def test_a_name_too_long_for_amqp_is_refused_before_anything_is_sent(option: str) -> None:
    where = () if option in ("--queue", "--exchange") else ("--queue", "payments.charge")

    with pytest.raises(CommandError, match=f"argument {option}: takes at most 255 bytes, not 256"):
        call_command("rmq_publish", *where, option, "ä" * 128)


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (("rmq_parked", "discard", "1", "--category", "duplicate"), 244),
        (("rmq_parked", "hold", "1", "--for", "3d"), 255),
        (("rmq_parked", "requeue", "1", "--yes"), 255),
        (("rmq_parked", "requeue-run", "1", "--pause"), 255),
        (("rmq_parked", "checked", "PERHAPS_TWICE", "--yes"), 255),
        (("rmq_queue", "pause", "payments.charge"), 255),
    ],
)
@pytest.mark.django_db
def test_a_reason_that_could_not_be_stored_as_it_is_is_refused(words: tuple[str, ...], most: int) -> None:
    with pytest.raises(CommandError, match=f"--reason takes at most {most} characters, not {most + 1}. Nothing was"):
        call_command(*words, "--reason", "ж" * (most + 1))
    assert OperatorAction.objects.count() == 0


@pytest.mark.django_db
@pytest.mark.parametrize("letter", ["a", "ж", "💩"])
def test_the_longest_reason_is_stored_as_it_is_in_any_alphabet(letter: str) -> None:
    one = record()
    call_command("rmq_parked", "discard", str(one.pk), "--category", "duplicate", "--yes", "--reason", letter * 244)

    assert OperatorAction.objects.get().reason == f"duplicate: {letter * 244}"


@pytest.mark.django_db
def test_code_may_give_a_longer_reason_which_is_shortened() -> None:
    assert logged(Action.DISCARD, reason="ж" * 256).reason == "ж" * 254 + "…"
