"""``--json`` is one document that bears the name of its schema; keys stay, times are in UTC."""

import ast
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from django_rmq_retry import management
from django_rmq_retry.models import OutboxMessage, State
from django_rmq_retry.parked.controls import pause
from django_rmq_retry.policies import Circuit
from tests.admin.made import attempt, blocked_key, consumer, in_flight
from tests.admin.standstills import tripped
from tests.commands.running import run
from tests.commands.shapes import DOCUMENTS, TIME, Each, misfits, wrong
from tests.operators.made import ANN, QUEUE, record, requeue_run
from tests.outbox.made import left

Prepared = Callable[[], int | str]


def parked() -> int:
    return record(key="PAY-1", body=b'{"a": 1}', content_type="application/json").pk


def tried() -> int:
    one = record()
    attempt(one, 5)
    return one.pk


def in_state(state: State) -> Prepared:
    old = timezone.now() - timedelta(days=100)
    return lambda: record(state=state, resolved_at=old if state == State.PROCESSED else None).pk


def running() -> int:
    return requeue_run([record().pk], planned=True, max_depth=100, stop_at=20).pk


def stopped() -> int:
    pause(QUEUE, ANN, reason="bank is closed", until=timezone.now() + timedelta(hours=1))
    circuit = Circuit().trip(handler="charge", kind="BankDown", cause="BankDown: timeout", now=1.0, wait=30)
    tripped(QUEUE, circuit)
    return 0


def blocked() -> int:
    return blocked_key(key="ACC").pk


def outgoing() -> int:
    """One is on its way, one waits for an operator."""
    left("q", "stuck", using="default")
    return OutboxMessage.objects.filter(routing_key="stuck").update(failed_at=timezone.now())


def consuming() -> int:
    """One process with a message within and one beyond its deadline."""
    return consumer(in_flight=[in_flight(), in_flight(seconds=9, timeout=3.0)]).pk


LISTED = Path(__file__).parent / "listed.txt"
WORDS: dict[str, tuple[str, Prepared]] = {
    "parked_list/1": ("rmq_parked list", parked),
    "parked_keys/1": (f"rmq_parked keys {LISTED}", parked),
    "parked_groups/1": ("rmq_parked groups", parked),
    "parked_show/1": ("rmq_parked show {} --body exact --attempts all", tried),
    "parked_requeue_runs/1": ("rmq_parked requeue-runs", running),
    "parked_requeue_run/1": ("rmq_parked requeue-run {} --pause", running),
    "parked_requeue_preview/1": ("rmq_parked requeue {} --dry-run", parked),
    "parked_preview/1": ("rmq_parked discard {} --category test --dry-run", parked),
    "parked_discard/1": ("rmq_parked discard {} --category test", parked),
    "parked_restore/1": ("rmq_parked restore {}", in_state(State.DISCARDED)),
    "parked_hold/1": ("rmq_parked hold {} --for 2h --reason x", parked),
    "parked_unhold/1": ("rmq_parked unhold {}", in_state(State.ON_HOLD)),
    "parked_edit/1": ("rmq_parked edit {} --header a=b --yes --reason x", parked),
    "parked_import/1": ("rmq_parked import {}", lambda: __file__),
    "parked_purge/1": ("rmq_parked purge --older-than 90d", in_state(State.PROCESSED)),
    "audit_list/1": ("rmq_audit list", running),
    "audit_verify/1": ("rmq_audit verify", running),
    "audit_purge/1": ("rmq_audit purge", running),
    "relay_list/1": ("rmq_relay list", outgoing),
    "relay_retry/1": ("rmq_relay retry --all --yes", outgoing),
    "relay_discard/1": ("rmq_relay discard 1 --reason x --yes", outgoing),
    "queue_list/1": ("rmq_queue list", stopped),
    "queue_pause/1": ("rmq_queue pause payments.charge --for 30m --reason test", lambda: 0),
    "queue_resume/1": ("rmq_queue resume payments.charge", stopped),
    "blocked_list/1": ("rmq_blocked list", blocked),
    "blocked_unblock/1": ("rmq_blocked unblock transfer ACC --yes --reason x", blocked),
    "roles/1": ("rmq_roles --dry-run", lambda: 0),
    "consumers/1": ("rmq_status --consumers", consuming),
}
ON_BROKER = {
    "status/1": "rmq_status",
    "doctor/1": "rmq_doctor",
    "declare/1": "rmq_declare",
    "delete/1": "rmq_delete payments.charge.parked --yes",
    "publish/1": f"rmq_publish --queue {QUEUE} {{file}}",
}


@pytest.mark.django_db
@pytest.mark.usefixtures("charge")
@pytest.mark.parametrize("schema", WORDS)
def test_each_json_document_of_records_matches_its_schema(schema: str, settings: Any) -> None:
    settings.RMQ_RETRY = {"URL": "amqp://guest:guest@127.0.0.1:1/", "OPERATORS": {"EDITABLE": {"*": True}}}
    words, prepared = WORDS[schema]
    told = run(*words.format(prepared()).split(), "--json")

    assert wrong(told.data, schema) == []


@pytest.mark.django_db
@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("schema", ON_BROKER)
def test_each_json_document_of_the_broker_matches_its_schema(schema: str, tmp_path: Path) -> None:
    (tmp_path / "it.json").write_text("{}")
    told = run(*ON_BROKER[schema].format(file=tmp_path / "it.json").split(), "--json")

    assert wrong(told.data, schema) == []


def test_every_json_document_has_a_schema() -> None:
    names = set()
    for path in Path(management.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "document":
                names.add(ast.unparse(node.args[0]).strip("'"))

    # One of them is named by its act: parked_discard/1, parked_hold/1 and their likes.
    assert {name for name in names if not name.startswith("f")} <= set(DOCUMENTS)
    assert set(DOCUMENTS) == {*WORDS, *ON_BROKER}


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        ({"a": 1, "b": 2}, {"a": int}),
        ({}, {"a": int}),
        ({"a": True}, {"a": int}),
        ({"a": [1, "x"]}, {"a": [int]}),
        ({"a": {"x": "y"}}, {"a": Each(int)}),
        ({"a": "2026-11-21T03:02:11+01:00"}, {"a": TIME}),
        ({"a": "x"}, {"a": (None, int)}),
        ({"a": "x"}, {"a": "y"}),
        ("x", {"a": int}),
    ],
)
def test_a_document_that_violates_its_schema_is_detected(value: object, shape: Any) -> None:
    assert misfits(value, shape) != []
