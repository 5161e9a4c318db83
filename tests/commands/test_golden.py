"""The outputs that people and scripts know: on a terminal, into a pipe, as JSON; kept as files."""

import getpass
import re
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone, translation

from django_rmq_retry import management
from django_rmq_retry.management import parked_approvals
from django_rmq_retry.models import Action, ConsumerProcess, QueueControl, RequeueRun, RunState, audit
from django_rmq_retry.parked import operators
from django_rmq_retry.parked.operators import Actor
from django_rmq_retry.policies import Circuit
from tests.admin.made import attempt, blocked_key, consumer, in_flight, outgoing, person
from tests.admin.stopped import tripped
from tests.commands.keeping import FOLDER, WAYS, golden, into_pipes, on_terminal
from tests.commands.running import run
from tests.operators.made import QUEUE, group, logged, record
from tests.tooling.pages import page

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 21, 3, 2, 11, 482000, tzinfo=UTC)
LISTED = str(FOLDER.parent / "listed.txt")
ABSENT = str(FOLDER.parent / "absent.txt")
DATABASE = {
    "list": ("rmq_parked", "list"),
    "list_none": ("rmq_parked", "list", "--key", "PAY-1"),
    "list_handled_again": ("rmq_parked", "list", "--handled-again"),
    "checked": ("rmq_parked", "checked", "PERHAPS_TWICE"),
    "keys": ("rmq_parked", "keys", LISTED),
    "keys_none": ("rmq_parked", "keys", ABSENT),
    "requeue_keys": ("rmq_parked", "requeue", "--keys-from", LISTED, "--dry-run"),
    "discard_keys": ("rmq_parked", "discard", "--keys-from", LISTED, "--category", "test", "--yes", "--keys-checked"),
    "hold_except": ("rmq_parked", "hold", "--group", "41", "--for", "2h", "--except-from", LISTED, "--dry-run"),
    "groups": ("rmq_parked", "groups"),
    "show": ("rmq_parked", "show", "812", "--body", "pretty", "--attempts", "all"),
    "show_none": ("rmq_parked", "show", "1"),
    "requeue": ("rmq_parked", "requeue", "--group", "41", "--dry-run"),
    "requeue_refused": ("rmq_parked", "requeue", "--group", "41", "--to", "payments.chrge"),
    "requeue_runs": ("rmq_parked", "requeue-runs"),
    "requeue_run": ("rmq_parked", "requeue-run", "73"),
    "requeue_run_paused": ("rmq_parked", "requeue-run", "74"),
    "audit_list": ("rmq_audit", "list"),
    "audit_verify": ("rmq_audit", "verify"),
    "topology": ("rmq_topology",),
    "queue_list": ("rmq_queue", "list"),
    "queue_pause": ("rmq_queue", "pause", "payments.charge", "--for", "30m", "--reason", "bank is closed"),
    "queue_resume": ("rmq_queue", "resume", "payments.charge"),
    "blocked_list": ("rmq_blocked", "list"),
    "blocked_list_none": ("rmq_blocked", "list", "--handler", "refund"),
    "blocked_unblock": ("rmq_blocked", "unblock", "transfer", "ACC-7", "--yes", "--reason", "booked by hand"),
    "consumers": ("rmq_status", "--consumers"),
    "relay_list": ("rmq_relay", "list"),
    "relay_list_failed": ("rmq_relay", "list", "--failed"),
    "relay_retry": ("rmq_relay", "retry", "501", "502", "--yes"),
    "relay_discard": ("rmq_relay", "discard", "501", "--reason", "queue was retired", "--yes"),
}
BROKER = {"status": ("rmq_status",), "declare": ("rmq_declare", "--plan"), "doctor": ("rmq_doctor",)}
WITHOUT_JSON = {"topology", "show_none", "requeue_refused"}
JSON = {name: words for name, words in DATABASE.items() if name not in WITHOUT_JSON} | {
    "restore": ("rmq_parked", "restore", "812"),
    "hold": ("rmq_parked", "hold", "812", "--for", "2h", "--reason", "bank is closed"),
    "unhold": ("rmq_parked", "unhold", "812"),
    "edit": ("rmq_parked", "edit", "812", "--header", "a=b", "--yes", "--reason", "INC-553"),
    "edit_many": ("rmq_parked", "edit", "812", "--set", "amount=8.50", "--yes", "--reason", "INC-553"),
    "edit_preview": ("rmq_parked", "edit", "812", "--set", "amount=8.50", "--dry-run"),
    "erase": ("rmq_parked", "erase", "--key", "PAY-1", "--dry-run"),
    "import": ("rmq_parked", "import", LISTED),
    "purge": ("rmq_parked", "purge", "--older-than", "90d"),
    "audit_head": ("rmq_audit", "head"),
    "audit_purge": ("rmq_audit", "purge"),
    "roles": ("rmq_roles", "--dry-run"),
    "doctor_alerts": ("rmq_doctor", "--alerts", "test"),
}
SECOND = {
    "asked": ("rmq_parked", "discard", "812", "--category", "duplicate", "--yes"),
    "approvals": ("rmq_parked", "approvals"),
    "approve": ("rmq_parked", "approve", "1", "--user", "bob", "--yes"),
    "reject": ("rmq_parked", "reject", "1", "--reason", "paid already"),
}
BROKER_ACTS = {
    "send_waiting": ("rmq_queue", "send-waiting", QUEUE, "--dry-run"),
    "delete": ("rmq_delete", "payments.charge.parked", "--yes"),
    "publish": ("rmq_publish", "--queue", QUEUE, "--message-id", "9f3c-1", "--raw", LISTED),
}


@pytest.fixture(autouse=True)
def night(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A terminal with colours, always at the same moment."""
    monkeypatch.setattr(timezone, "now", lambda: NOW)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(getpass, "getuser", lambda: "root")
    monkeypatch.setattr(audit, "secrets", SimpleNamespace(token_hex=lambda size: "00" * size))
    for name in ("NO_COLOR", "DJANGO_COLORS", "PYTHON_COLORS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    with timezone.override("America/Chicago"):
        yield


def ago(**span: float) -> datetime:
    return NOW - timedelta(**span)


@pytest.fixture
def records(charge: None) -> None:  # noqa: ARG001 - asked for by its name
    """Two causes with three messages, two runs, two acts."""
    bank = group("b" * 40, id=41, culprit="bank.gateway:post", title="GatewayTimeout", first_seen=ago(minutes=52))
    closed = group("c" * 40, id=42, title="AccountClosed", reason="permanent", last_seen=ago(hours=3))
    one = record(
        **_named(812, key="PAY-88121", group=bank, parked_at=ago(seconds=40)),
        body=b'{"iban": "DE89370400440532013000", "amount": 100.00}',
        content_type="application/json",
        attempts=2,
    )
    record(**_named(813, group=bank, parked_at=ago(minutes=11), succeeded_at=ago(minutes=10)))
    record(**_named(814, group=closed, parked_at=ago(hours=3), error="AccountClosed\x1b[2J", reason="permanent"))
    for number in (1, 2):
        attempt(one, number, at=ago(minutes=3 - number), error="GatewayTimeout")
    _runs()
    _stopped()
    _held()
    _outgoing()
    _consuming()
    logged(Action.DISCARD, Actor(name="ann", source="admin", ip="10.0.0.7"), reason="duplicate", message=812, group=41)
    shell = Actor(name="root", behalf="root@ops-1", source="cli")
    logged(Action.REQUEUE, shell, reason="INC-553", run=73, count=211, subject="group 41", facts={"rate": 20.0})


def _named(number: int, **fields: Any) -> dict[str, Any]:
    """A record that is the same in every run."""
    names = {"identity": f"message:{number}", "copy": f"{number:064x}", "message_id": f"9f3c-{number}"}
    text = {"type": "payment.transfer", "handler": "transfer", "error_text": "no answer\nwithin 30 s"}
    return {"id": number, "error": "GatewayTimeout", **names, **text, **fields}


def _stopped() -> None:
    """The queue is not consumed: its breaker is open."""
    at = ago(minutes=7).timestamp()
    circuit = Circuit().trip(handler="charge", kind="BankDown", cause="BankDown: timeout", now=at, wait=30)
    for _ in range(3):
        circuit = circuit.fail(cause="BankDown: timeout\x1b[2J", now=NOW.timestamp(), wait=120)
    tripped("payments.charge", circuit)


def _held() -> None:
    """One key waits for an operator, one for its next attempt."""
    one = blocked_key(
        key="ACC-7",
        blocker="9f3c-812",
        identity="message:812",
        queue=QUEUE,
        since=ago(minutes=11),
        waiting=2,
        parked=True,
    )
    blocked_key(key="ACC-9\x1b[2J", blocker="9f3c-815", identity="message:815", since=ago(seconds=40))
    for number in (816, 817):
        named = {"shown": f"9f3c-{number}", "name": f"{number:064x}", "digest": f"{number:064x}"}
        place = {"identity": f"message:{number}", "routing_key": "payments.charge"}
        one.messages.create(**named, **place, body=b"{}", properties=b"\0\0", waiting_since=ago(minutes=9))


def _outgoing() -> None:
    """One was given up, one refused once, one is on its way."""
    common: dict[str, Any] = {"exchange": "payments", "routing_key": "charge", "due_at": NOW}
    outgoing(id=501, message_id="9f3c-501", created_at=ago(minutes=11), failed_at=ago(minutes=2), **common)
    refused: dict[str, Any] = {"attempts": 1, "failed_at": None, "error": "refused by a queue"}
    key = "account:7\x1b[2J"
    outgoing(id=502, message_id="9f3c-502", created_at=ago(seconds=40), order_key=key, **refused, **common)
    fresh: dict[str, Any] = {"attempts": 0, "failed_at": None, "error": ""}
    outgoing(id=503, message_id="9f3c-503", created_at=ago(seconds=1), **fresh, **common)


def _consuming() -> None:
    """One process has vanished, one has a handler beyond its deadline, one is idle, one has lost its broker."""
    long = in_flight(seconds=245, attempt=2, key="PAY-88121", handler="charge", message_id="9f3c-812", timeout=180.0)
    short = in_flight(seconds=3, key="PAY-88130", handler="charge", message_id="9f3c-815", timeout=180.0)
    charge: dict[str, Any] = {"queues": ["payments.charge"]}
    consumer(host="bank-1", number=1, pid=19680, in_flight=[long, short], waiting=7, **charge)
    consumer(host="bank-1", number=2, pid=19681, queues=["payments.charge", "ledger.post"])
    consumer(host="bank-2", pid=411, connected=False, deploy="", **charge)
    left = [in_flight(seconds=640, key="PAY-88118", handler="charge", message_id="9f3c-809")]
    left += [in_flight(seconds=615, key="", message_id="", handler="", queue="payments.charge")]
    consumer(host="bank-3", pid=2203, seconds=600, in_flight=left, **charge)


def _runs() -> None:
    common: dict[str, Any] = {"by": "ann", "selection": {}, "created_at": ago(minutes=9), "started_at": ago(minutes=9)}
    counts = {"total": 211, "sent": 210, "processed": 207, "failed": 3, "skipped": 1}
    ended = {"state": RunState.FINISHED, "finished_at": ago(minutes=8), "reason": "INC-553"}
    RequeueRun.objects.create(pk=73, **common, **counts, **ended)
    paused = {"state": RunState.PAUSED, "wait": "guard", "stop_at": 20}
    RequeueRun.objects.create(pk=74, **common, total=40, sent=10, processed=4, failed=6, **paused)


@pytest.mark.usefixtures("records")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", DATABASE)
def test_output_is_the_golden_english_one_in_any_project_language(name: str, way: str) -> None:
    with translation.override("de"):
        told = WAYS[way](*DATABASE[name])
        language = translation.get_language()

    assert (told, language) == (golden(f"{name}.{way}", told), "de")


@pytest.mark.usefixtures("records")
def test_the_page_on_consumers_shows_what_the_command_prints() -> None:
    QueueControl.objects.all().delete()
    ConsumerProcess.objects.filter(deploy="").update(deploy="2026.11")
    told = re.sub(r"\\e\[[\d;]*m", "", on_terminal("rmq_status", "--consumers")).removesuffix("[exit 0]\n")

    assert f"$ manage.py rmq_status --consumers\n{told}```" in page("consumers.md").read_text()


@pytest.mark.usefixtures("records")
@pytest.mark.parametrize("name", JSON)
def test_json_about_records_matches_its_golden_files(name: str, settings: Any) -> None:
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "OPERATORS": {"EDITABLE": {"*": True}}}
    told = into_pipes(*JSON[name], "--json")

    assert told == golden(f"{name}.json", told)


@pytest.fixture
def second(records: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001 - asked for by its name
    """A discard needs a second person; one was asked for, and bob has given his password."""
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "FOUR_EYES": {"DISCARD": 1}}
    monkeypatch.setattr(operators, "account", lambda _login: "root")
    monkeypatch.setattr(socket, "gethostname", lambda: "ops-1")
    bob = person("bob", "approve_approvalrequest", "discard")
    with connection.cursor() as cursor:
        # A test that was flushed, not rolled back, has left its count.
        cursor.execute("DELETE FROM sqlite_sequence WHERE name = 'rmq_retry_approvalrequest'")
    second = Actor(name="bob", user_id=bob.pk, source="cli", behalf="bob@ops-1")
    monkeypatch.setattr(parked_approvals, "signed_in", lambda _name, **_words: second)
    run(*SECOND["asked"])


@pytest.mark.usefixtures("second")
@pytest.mark.parametrize("way", [*WAYS, "json"])
@pytest.mark.parametrize("name", SECOND)
def test_output_about_a_second_person_matches_its_golden_files(name: str, way: str) -> None:
    told = into_pipes(*SECOND[name], "--json") if way == "json" else WAYS[way](*SECOND[name])

    assert told == golden(f"{name}.{way}", told)


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("name", BROKER_ACTS)
def test_json_about_acts_on_the_broker_matches_its_golden_files(name: str) -> None:
    told = into_pipes(*BROKER_ACTS[name], "--json")

    assert told == golden(f"{name}.json", told)


def test_every_json_document_has_a_golden_file() -> None:
    """A key that goes, or changes its kind, makes it the next version of the schema that it names."""
    written = "".join(path.read_text() for path in FOLDER.glob("*.json"))
    code = "".join(path.read_text() for path in Path(management.__file__).parent.rglob("*.py"))
    named = set(re.findall(r"""\.document\(\s*f?["']([^"']+/\d)""", code))
    known = {re.sub(r"\{.*?\}", r"[a-z]+", name) for name in named}

    assert len(named) > 20
    assert {name for name in known if not re.search(f'"schema": "rmq_retry.{name}"', written)} == set()


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", BROKER)
def test_output_about_the_broker_matches_its_golden_files(name: str, way: str) -> None:
    told = WAYS[way](*BROKER[name])

    assert told == golden(f"{name}.{way}", told)


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("name", BROKER)
def test_json_about_a_broker_without_our_queues_matches_its_golden_files(name: str) -> None:
    told = into_pipes(*BROKER[name], "--json")

    assert told == golden(f"{name}.json", told)


@pytest.mark.usefixtures("records")
@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_are_omitted_without_a_terminal_or_with_no_color(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    coloured = on_terminal("rmq_audit", "verify")
    monkeypatch.setenv(name, value)
    plain = on_terminal("rmq_audit", "verify")

    assert coloured == "\\e[32;1mThe audit log is complete: 2 rows.\\e[0m\n[exit 0]\n"
    assert plain == "The audit log is complete: 2 rows.\n[exit 0]\n"
    for words in (("--force-color", "verify"), ("verify", "--force-color")):
        assert on_terminal("rmq_audit", *words) == coloured


@pytest.mark.usefixtures("records")
def test_django_options_are_accepted_before_and_after_the_subcommand() -> None:
    plain = on_terminal("rmq_audit", "--no-color", "verify")

    assert (
        on_terminal("rmq_audit", "verify", "--no-color", "-v", "2")
        == plain
        == "The audit log is complete: 2 rows.\n[exit 0]\n"
    )
    assert into_pipes("rmq_parked", "list", "--settings", "tests.settings", "--traceback").endswith("[exit 0]\n")
