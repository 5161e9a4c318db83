"""From a publish to a success after a requeue, in processes of their own: the collector gets the whole story."""

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from django_rmq_retry.models import Attempt, ParkedMessage, State
from tests.shop.running import Shop
from tests.tooling.filled import Own
from tests.tooling.marks import NIGHTLY_ON_SQLITE
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.database, *NIGHTLY_ON_SQLITE]


class Collector:
    """An OTLP/HTTP receiver that keeps spans."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        kept, lock = self.spans, threading.Lock()

        class Receiver(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                request = ExportTraceServiceRequest.FromString(body)
                with lock:
                    kept.extend(
                        span for one in request.resource_spans for scope in one.scope_spans for span in scope.spans
                    )
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_given: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def named(self, name: str) -> list[Any]:
        return sorted((one for one in self.spans if one.name == name), key=lambda one: one.start_time_unix_nano)


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.fixture
def shop(broker_url: str, tmp_path: Path, own_database: Own, collector: Collector) -> Shop:
    """The shop, whose processes export their spans."""
    traced = {"SHOP_AROUND": "tests.telemetry.exporting.trace", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    return Shop(url=broker_url, notes=tmp_path / "notes", records={**own_database.environment, **traced}).declared()


def done(shop: Shop, *words: str, given: str = "") -> str:
    told = shop.run(*words, given=given)
    assert told.returncode == 0, told.stderr
    return told.stdout.strip()


def ids(span: Any) -> tuple[bytes, bytes]:
    return span.trace_id, span.span_id


def links_of(span: Any) -> list[tuple[str, tuple[bytes, bytes]]]:
    return [(link.attributes[0].value.string_value, ids(link)) for link in span.links]


def attribute(span: Any, name: str) -> Any:
    (found,) = (one.value for one in span.attributes if one.key == name)
    return getattr(found, found.WhichOneof("value"))


def test_a_message_that_succeeds_after_a_requeue_is_one_story_in_the_collector(
    shop: Shop, collector: Collector, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    order = f'{{"do": "fail until", "for": "{there}"}}'
    done(shop, "rmq_publish", "--handler", "tests.shop.handlers.order", given=order)
    # Not with --burst, which ends at a tick during the wait for the retry.
    with shop.running("rmq_consume", "--processes", "2") as consumers:
        parked = wait_until(lambda: ParkedMessage.objects.using("own").first())
        consumers.signal()
        assert consumers.code() == 0, consumers.errors
    there.touch()
    done(shop, "rmq_parked", "requeue", str(parked.pk), "--reason", "the stock is back", "--wait", "0")
    done(shop, "rmq_consume", "--burst")
    (sent,) = collector.named("send shop.orders")
    first, second, third = collector.named("process shop.orders")
    (parking,) = collector.named("park shop.orders")

    assert len(collector.spans) == 5
    assert (first.trace_id, first.parent_span_id, links_of(first)) == (*ids(sent), [])
    assert (second.parent_span_id, third.parent_span_id) == (b"", b"")
    assert len({one.trace_id for one in (sent, second, third)}) == 3
    assert links_of(second) == [("creation", ids(sent)), ("previous_attempt", ids(first))]
    assert links_of(third) == [("creation", ids(sent)), ("previous_attempt", ids(second))]
    assert (parking.trace_id, parking.parent_span_id) == ids(second)
    assert [attribute(one, "rmq_retry.verdict") for one in (first, second, third)] == ["retry", "park", "ack"]
    assert [attribute(one, "rmq_retry.attempt") for one in (first, second, third)] == [1, 2, 1]
    assert attribute(parking, "rmq_retry.fingerprint") == parked.group.fingerprint

    parked.refresh_from_db()
    rows = Attempt.objects.using("own").order_by("started_at")
    stored = [bytes.fromhex(text.replace("-", ""))[1:25] for text in (row.traceparent for row in rows)]
    assert (parked.state, parked.traceparent) == (State.PROCESSED, rows[1].traceparent)
    assert stored == [one.trace_id + one.span_id for one in (first, second, third)]


def test_a_collector_that_is_away_costs_no_message(shop: Shop, collector: Collector) -> None:
    collector.server.shutdown()
    collector.server.server_close()
    shop.records["OTEL_EXPORTER_OTLP_TIMEOUT"] = "1"
    done(shop, "rmq_publish", "--handler", "tests.shop.handlers.order", given='{"do": "note"}')
    done(shop, "rmq_consume", "--burst")

    assert shop.noted("end") == ["end note"]
