"""A management API whose answers have another shape than RabbitMQ's is named in one sentence, by every reader."""

import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_rmq_retry.admin import broker_look
from django_rmq_retry.amqp.management_api import Inspector, StrangeAnswer
from tests.amqp.api_server import api
from tests.commands.running import Exit, run

pytestmark = [pytest.mark.contract, pytest.mark.django_db, pytest.mark.usefixtures("project", "declared")]

WORK = {"name": "payments.charge", "type": "classic", "arguments": {}, "durable": True}
STRANGE = r"The management API at http://app@127\.0\.0\.1:\d+ answered something that is not %s: [^\n]+\. Check "


def each(**fields: object) -> bytes:
    """A list of queues whose only one has these fields instead of good ones."""
    return json.dumps([{**WORK, **fields}]).encode()


RATES: Sequence[object] = ("fast", None, 10**400, float("nan"))
WRONG: Sequence[object] = ([1], 7, None)
LISTS: Sequence[bytes] = (
    *(b"null", b"{}", b"[null]", b"[[]]", b'["payments.charge"]', b"7", b'"queues"', b"true", b'[{"type": "classic"}]'),
    *(b"<html>", b"", b'[{"name": "pay', b'[{"name": "\xff"}]', b"[" * 100_000, b"[" + b"9" * 5000 + b"]"),
    *(each(name=None), each(name=7), each(name=["payments.charge"]), each(arguments=[1]), each(arguments="x")),
    *(each(messages_ready="4"), each(consumers=[1]), each(messages=10**400), each(messages_unacknowledged={})),
    *(each(messages=3, messages_dlx="many"), each(messages=3, messages_dlx=1.5), each(messages=True)),
    *(each(message_stats=7), each(message_stats={"publish_details": []}), each(type={}), each(policy=[1])),
    *(each(message_stats={"publish_details": {"rate": one}}) for one in RATES),
    *(each(effective_policy_definition=[["message-ttl", 1]]), each(effective_policy_definition="x")),
)
OBJECTS: Sequence[bytes] = (
    *(b"null", b"[]", b"7", b'"x"', b"{}", b"[null]", b"<html>", b'{"name": "\xff"}', b'{"name": "payments.charge"}'),
    *(json.dumps({**WORK, "arguments": one}).encode() for one in ("x", *WRONG)),
    *(json.dumps({**WORK, "type": one}).encode() for one in WRONG),
)
BINDINGS: Sequence[bytes] = (
    *(b"null", b"{}", b"[7]", b"[{}]", b'[{"source": "payments"}]', b"<html>"),
    *(json.dumps([dict.fromkeys(("source", "destination", "routing_key", "destination_type"), one)]).encode()
      for one in ("x", 7, None)),
)  # fmt: skip


class Api:
    """Answers by the kind of the request; 404 where nothing is set."""

    def __init__(self) -> None:
        self.queues: bytes | None = b"[]"
        self.bindings: bytes | None = b"[]"
        self.one: bytes | None = None

    def __call__(self, handler: BaseHTTPRequestHandler) -> None:
        kind, *names = handler.path.removeprefix("/api/").split("/")
        body = self.one if len(names) > 1 else self.queues if kind == "queues" else self.bindings
        handler.send_response(404 if body is None else 200)
        handler.end_headers()
        handler.wfile.write(body or b"")


@pytest.fixture
def strange(project: Any) -> Iterator[Api]:
    answers = Api()
    with api(answers) as (inspector, _asked):
        operators = {"MANAGEMENT_URL": inspector.url.reveal()}
        project.RMQ_RETRY = {**project.RMQ_RETRY, "OPERATORS": operators}
        yield answers


def one_sentence(text: str, what: str) -> None:
    assert re.search(STRANGE % what, text), text
    assert "Traceback" not in text


def test_the_status_only_lacks_its_columns(strange: Api) -> None:
    for strange.queues in LISTS:
        told = run("rmq_status")

        head = ["QUEUE", "ROLE", "READY", "CONS", "STATE"]
        assert (told.code, head in told.lines) == (Exit.DONE, True), strange.queues
        one_sentence(told.err, "a list of queues")
        assert run("rmq_status", "--check").code == Exit.DONE


@pytest.mark.parametrize(
    ("place", "answers", "what"),
    [("one", OBJECTS, "(an exchange|a queue)"), ("bindings", BINDINGS, "a list of bindings")],
)
def test_a_check_of_the_declarations_says_it(strange: Api, place: str, answers: Sequence[bytes], what: str) -> None:
    for body in answers:
        setattr(strange, place, body)
        told = run("rmq_declare", "--check")

        assert (told.code, told.out) == (Exit.UNREACHABLE, ""), body
        one_sentence(told.err, what)


@pytest.mark.parametrize(("place", "answers"), [("queues", LISTS), ("one", OBJECTS), ("bindings", BINDINGS)])
def test_the_doctor_never_fails_at_it(strange: Api, place: str, answers: Sequence[bytes]) -> None:
    for body in answers:
        setattr(strange, place, body)
        told = run("rmq_doctor")

        assert "The examination failed" not in told.out, body
        one_sentence(told.out, "[a-z ()|]+")


def test_live_status_shows_it_and_its_thread_ends_quietly(
    strange: Api, monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    failed: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda given: failed.append(repr(given.exc_value)))
    client.force_login(User.objects.create_superuser("lead"))
    for strange.queues in LISTS:
        broker_look.forget()
        text = client.get("/admin/rmq_retry/livestatus/").content.decode()

        assert "answered something that is not a list of queues" in text, strange.queues
    assert failed == []


def test_what_erlang_writes_for_nothing_is_no_strange_answer() -> None:
    """Answers of RabbitMQ: a queue of a stopped node, and empty values."""
    stopped = b'[{"name": "work", "arguments": [], "effective_policy_definition": [], "policy": "", "messages": null}]'
    answers = Api()
    answers.queues = stopped
    with api(answers) as (inspector, _asked):
        assert inspector.queues() == {
            "work": {"name": "work", "arguments": {}, "effective_policy_definition": {}, "policy": ""}
        }


@pytest.mark.parametrize(
    "ask", [lambda it: it.permission("app"), lambda it: it.queue("a"), lambda it: it.exchange("a")]
)
def test_a_missing_object_is_no_strange_answer(ask: Callable[[Inspector], object]) -> None:
    answers = Api()
    with api(answers) as (inspector, _asked):
        assert ask(inspector) is None
        answers.one = b'{"configure": 7}'
        with pytest.raises(StrangeAnswer, match="answered something that is not"):
            ask(inspector)
