"""A wrong management API gets no login that it should not have, and delays no command."""

import runpy
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler
from urllib.error import HTTPError

import pytest

from django_rmq_retry.amqp import management_api
from django_rmq_retry.errors import BrokerRefused, BrokerUnreachable
from tests.amqp.api_server import Answer, api


def says(body: bytes) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def test_queues_are_read_from_the_management_api() -> None:
    with api(says(b'[{"name": "work"}]')) as (inspector, asked):
        assert inspector.queues() == {"work": {"name": "work"}}

    assert asked[0]["Authorization"].startswith("Basic ")


@pytest.mark.parametrize("place", ["http://127.0.0.1:{port}/metadata", "file:///etc/passwd"])
def test_a_redirect_is_not_followed_and_gets_no_login(place: str) -> None:
    with api(says(b"[]")) as (other, asked_there):
        port = other.url.reveal().rpartition(":")[2]

        def away(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(302)
            handler.send_header("Location", place.format(port=port))
            handler.end_headers()

        with api(away) as (inspector, asked), pytest.raises(BrokerUnreachable, match="answers 302"):
            inspector.queues()

    assert len(asked) == 1
    assert asked_there == []


def test_the_connection_of_a_refusal_is_closed() -> None:
    def no(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(401)
        handler.end_headers()

    with api(no) as (inspector, _asked), pytest.raises(BrokerRefused, match="refuses this user") as caught:
        inspector.queues()

    refusal = caught.value.__context__
    assert isinstance(refusal, HTTPError)
    assert refusal.closed


def test_a_management_answer_above_the_size_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(management_api, "LARGEST_ANSWER_BYTES", 1000)

    with (
        api(says(b'"' + b"x" * 2000 + b'"')) as (inspector, _asked),
        pytest.raises(BrokerUnreachable, match="more than 1000 bytes"),
    ):
        inspector.queues()


def test_a_management_api_that_stalls_times_out() -> None:
    over = threading.Event()

    def trickle(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not over.wait(0.05):
            handler.wfile.write(b" ")
            handler.wfile.flush()

    def nothing(_handler: BaseHTTPRequestHandler) -> None:
        over.wait()

    for answer, words in ((nothing, "timed out"), (trickle, "does not come to an end")):
        over.clear()
        began = time.monotonic()
        with api(answer) as (inspector, _asked):
            with pytest.raises(BrokerUnreachable, match=words):
                inspector.queues()
            over.set()
        assert time.monotonic() - began < 10


def test_an_answer_that_is_not_json_raises_broker_unreachable() -> None:
    with api(says(b"<html>")) as (inspector, _asked), pytest.raises(BrokerUnreachable):
        inspector.queues()


def test_importing_the_management_api_does_not_load_the_system_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssl, "_create_default_https_context", lambda: pytest.fail("forty milliseconds of each start"))

    runpy.run_path(management_api.__file__, run_name="django_rmq_retry.amqp.management_api")
