"""The store of records: whatever comes is stored or named, and nothing of one message harms another."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, OperationalError, connection
from django.db.models import Model
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import CeleryTask, DeadLetter, Delivery, Message, Queue, Raw, RetryThenPark, handler, signals
from django_rmq_retry.messages import Properties, decode_properties
from django_rmq_retry.messages.deaths import deaths
from django_rmq_retry.models import BusinessKey, ErrorGroup, ParkedMessage
from django_rmq_retry.parked import database
from django_rmq_retry.parked import store as store_module
from django_rmq_retry.policies import Kind
from django_rmq_retry.statements import writing
from django_rmq_retry.testing import isolated_handlers
from tests.amqp.declared import declare
from tests.amqp.slow_motion import SlowConsumer
from tests.handlers.factories import subscription, topology_of
from tests.parked.arrivals import by_us, foreign, record_store, store, the_group, the_record
from tests.tooling.vhosts import Vhost

pytestmark = [pytest.mark.django_db, pytest.mark.database]
WRITE = store_module.BatchWriter.write
NASTY = "\0<script>\udc80\u202e💥" + "é" * 300


@pytest.fixture(autouse=True)
def no_handlers() -> Any:
    with isolated_handlers():
        yield


class TestHostile:
    @pytest.mark.parametrize(
        "body",
        [b"", b"\0", bytes(range(256)), b'{"a": NaN}', b'{"n": 12345678901234567890}', b'"\\ud800"', b"\xff\xfe{\0",
         b"[" * 100_000, b"x" * 5_000_000],
        ids=["empty", "NUL", "binary", "NaN", "20 digits", "surrogate", "UTF-16", "nested", "5 MB"],
    )  # fmt: skip
    def test_a_body_is_stored_byte_for_byte(self, body: bytes) -> None:
        assert store(by_us(body=body)) == [store_module.Stored()]
        assert bytes(the_record().body) == body

    def test_any_text_in_properties_and_headers_can_be_stored(self) -> None:
        texts: dict[str, Any] = dict.fromkeys(
            ("type", "correlation_id", "content_type", "content_encoding"), "\0\udcff💥" * 30
        )
        names = (
            "reason",
            "detail",
            "error",
            "message",
            "handler",
            "fingerprint",
            "culprit",
            "summary",
            "exchange",
            "queue",
        )
        said = {f"rmq-retry-{name}": "\0\u202e💥" * 2000 for name in names}
        told = foreign(id="\0\udcff", headers=said, exchange="\0\udcff", routing_key="\0\udcff" * 80, **texts)

        assert store(told) == [store_module.Stored()]
        assert all("\0" not in text and len(text.encode()) <= 10_000 for text in all_texts(the_record()))

    @pytest.mark.parametrize("raw", [b"", b"\xff\xff", b"\x20\x00\x00\x00\x00\x09\x01a"])
    def test_invalid_properties_are_stored(self, raw: bytes) -> None:
        assert store(Delivery(queue="payments.parked", body=b"x", raw=raw)) == [store_module.Stored()]
        assert (bytes(the_record().properties), the_record().reason) == (raw, "undecodable_headers")

    @pytest.mark.parametrize("seconds", [0, 1, 1_700_000_000_000, 2**63 - 1, 2**64 - 1, 253_402_300_799])
    def test_any_timestamp_is_accepted(self, seconds: int) -> None:
        said = {"rmq-retry-parked-at": min(seconds, 2**63 - 1), "rmq-retry-since": min(seconds, 2**63 - 1)}

        assert store(foreign(timestamp=seconds, headers=said)) == [store_module.Stored()]


def all_texts(record: ParkedMessage) -> list[str]:
    return [value for value in vars(record).values() if isinstance(value, str)]


class TestQueries:
    def test_a_batch_of_new_messages_takes_eight_queries_at_most(self) -> None:
        """Three of them count: in the group, by origin, and by the minute. One asks if a copy was handled before."""
        now = int(timezone.now().timestamp() * 1000)
        store(by_us(id="before", at=now))
        with CaptureQueriesContext(connection) as few:
            store(*(by_us(id=f"m-{n}", at=now) for n in range(25)))

        assert len([one for one in few if "SAVEPOINT" not in one["sql"]]) <= 8

    def test_a_redelivered_copy_writes_nothing(self) -> None:
        store(by_us())
        with CaptureQueriesContext(connection) as few:
            store(by_us(again=True))

        written = [
            one["sql"] for one in few if one["sql"].startswith(("INSERT", "UPDATE")) and "`id` = 0" not in one["sql"]
        ]
        assert [sql for sql in written if '"id" = 0' not in sql] == []


def refusing(
    *bodies: bytes, error: type[Exception] = DatabaseError, times: float = float("inf")
) -> Callable[[store_module.BatchWriter], None]:
    """A database that cannot write some messages, or nothing for a while."""
    left = [times]

    def write(writer: store_module.BatchWriter) -> None:
        WRITE(writer)
        found = {arrival.parked.body for arrival in writer._arrivals}
        if left[0] > 0 and (not bodies or found & set(bodies)):
            left[0] -= 1
            raise error("it is poison")

    return write


class TestPoison:
    def test_a_message_that_cannot_be_stored_is_reported_and_affects_no_other(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store_module.BatchWriter, "write", refusing(b"5", b"9"))
        stored = store(*(by_us(id=str(n), body=str(n).encode()) for n in range(11)))

        assert [one.problem for one in stored if one.problem] == ["DatabaseError: it is poison"] * 2
        assert (bool(stored[5].problem), bool(stored[9].problem)) == (True, True)
        assert ParkedMessage.objects.count() == 9
        assert the_group().parked == 9

    @pytest.mark.parametrize("error", [IntegrityError, OperationalError, ValueError])
    def test_a_lock_conflict_is_retried(self, error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(store_module.BatchWriter, "write", refusing(error=error, times=2))

        assert store(by_us()) == [store_module.Stored()]
        assert the_record().copies == 1

    def test_an_unreadable_message_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def read(*_: object) -> None:
            raise RecursionError("too deep")

        monkeypatch.setattr("django_rmq_retry.parked.arrivals.read_parked", read)

        assert store(by_us()) == [store_module.Stored(problem="It cannot be read: RecursionError: too deep")]

    def test_a_record_created_by_another_drainer_meanwhile_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        looks: list[int] = []

        def look_up(self: store_module.BatchWriter) -> None:
            if looks:
                LOOK_UP(self)
            looks.append(1)

        store(by_us())
        monkeypatch.setattr(store_module.BatchWriter, "_look_up", look_up)

        assert store(by_us(again=True), by_us(id="m-2")) == [store_module.Stored(), store_module.Stored()]
        assert (ParkedMessage.objects.count(), ErrorGroup.objects.get().parked) == (2, 2)


LOOK_UP = store_module.BatchWriter._look_up


def losing_answer(*, committed: bool) -> Callable[..., AbstractContextManager[None]]:
    """Return a stand-in for ``writing`` whose first COMMIT gets no answer."""
    lost: list[bool] = []

    @contextmanager
    def losing(model: type[Model], *, using: str) -> Iterator[None]:
        with writing(model, using=using):
            yield
            if not lost and not committed:
                lost.append(True)
                raise OperationalError("server closed the connection unexpectedly")
        if not lost:
            lost.append(True)
            raise OperationalError("server closed the connection unexpectedly")

    return losing


class TestLostAnswer:
    """The connection fails during a COMMIT, and a new one is accepted at once."""

    @pytest.mark.parametrize("committed", [True, False])
    @pytest.mark.parametrize("count", [1, 3])
    def test_a_message_without_an_id_has_one_record_after_a_lost_commit_answer(
        self, committed: bool, count: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store_module, "writing", losing_answer(committed=committed))
        batch = [by_us(id=None, body=b"%d" % n) for n in range(count)]

        assert store(*batch) == [store_module.Stored()] * count
        assert (ParkedMessage.objects.count(), the_group().parked) == (count, count)

    def test_equal_messages_without_an_id_never_share_a_record(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(store_module, "writing", losing_answer(committed=False))

        assert store(by_us(id=None), by_us(id=None)) == [store_module.Stored(), store_module.Stored()]
        assert ParkedMessage.objects.count() == 2

    def test_a_failing_message_does_not_mark_its_neighbours_redelivered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store(by_us(id=None))
        monkeypatch.setattr(store_module.BatchWriter, "write", refusing(b"5"))
        store(by_us(id=None), by_us(id="m-5", body=b"5"))

        assert ParkedMessage.objects.count() == 2


class TestAway:
    def test_an_outage_keeps_the_batch_and_reports_the_stored_messages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        answers = iter(["", "It is away."])
        monkeypatch.setattr(store_module, "outage", lambda _: next(answers))
        monkeypatch.setattr(store_module.BatchWriter, "write", refusing(b"2", b"3"))
        batch = [by_us(id=str(n), body=str(n).encode()) for n in range(4)]

        with pytest.raises(store_module.StoreUnavailable) as outage:
            record_store().store(batch)

        assert (outage.value.reason, outage.value.done) == (
            "It is away.",
            {batch[0]: store_module.Stored(), batch[1]: store_module.Stored()},
        )

    def test_a_writable_database_passes_the_outage_check_and_the_check_leaves_no_row(self) -> None:
        assert record_store().outage() == ""
        assert (ErrorGroup.objects.count(), ParkedMessage.objects.count()) == (0, 0)

    def test_an_unreachable_database_fails_the_outage_check(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse() -> None:
            raise OperationalError("Connection refused\n\tIs the server running?")

        monkeypatch.setattr(connection, "ensure_connection", refuse)
        said = database.outage("default")

        assert said == "The database 'default' does not answer (Connection refused Is the server running?)."

    def test_a_read_only_database_fails_the_outage_check(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(_: str) -> None:
            raise OperationalError("attempt to write a readonly database")

        monkeypatch.setattr(database, "_try", refuse)

        assert database.outage("default").startswith(
            "The database 'default' does not accept parked messages (attempt to write"
        )


class TestKeys:
    @pytest.fixture
    def keys(self) -> Any:
        """Have messages handled by a function with these keys."""

        def make(function: Any, **told: Any) -> None:
            @handler(Queue("payments"), name="payments.charge", keys=function, **told)
            def charge(message: Delivery) -> None:
                """Nothing."""

        return make

    def test_the_keys_function_of_the_handler_sets_the_business_keys(self, keys: Any) -> None:
        keys(lambda message: [f"payment:{message.data['n']}", "b"])
        store(by_us(body=b'{"n": 7}'), by_us(id="m-2", body=b'{"n": 8}'))

        told = list(BusinessKey.objects.order_by("pk").values_list("message__message_id", "value"))
        assert told == [("m-1", "payment:7"), ("m-1", "b"), ("m-2", "payment:8"), ("m-2", "b")]
        assert ParkedMessage.objects.get(message_id="m-1").business_key == "payment:7"

    def test_a_single_text_is_one_business_key(self, keys: Any) -> None:
        keys(lambda _: "payment:7")
        store(by_us())

        assert the_record().business_key == "payment:7"

    def test_the_queue_selects_the_handler_if_the_message_names_none(self, keys: Any) -> None:
        keys(lambda message: message.data["k"])
        store(foreign(body=b'{"k": "a"}'))

        assert the_record().business_key == "a"

    def test_the_codec_of_the_handler_reads_the_body_for_its_keys(self, keys: Any) -> None:
        keys(lambda message: message.data.decode(), codec=Raw())
        store(by_us(body=b"no json"))

        assert the_record().business_key == "no json"

    def test_the_task_of_a_celery_message_is_its_business_key(self, keys: Any) -> None:
        keys(None, codec=CeleryTask())
        body = b'[[7], {}, {"callbacks": null}]'
        store(by_us(body=body, headers={"task": "bank.charge", "id": "task-1"}, content_encoding="utf-8"))

        told = list(BusinessKey.objects.order_by("pk").values_list("value", flat=True))
        assert told == ["bank.charge", "task-1"]
        assert the_record().business_key == "bank.charge"

    @pytest.mark.parametrize("body", [b"no json", b"\xff", b"[1]", b'{"n": NaN}'])
    def test_an_undecodable_body_has_no_business_key(self, keys: Any, body: bytes) -> None:
        keys(lambda message: message.data["n"])

        assert store(by_us(body=body)) == [store_module.Stored()]
        assert (the_record().business_key, BusinessKey.objects.count()) == ("", 0)

    @pytest.mark.parametrize("error", [ValueError, SystemExit, RecursionError])
    def test_a_message_is_recorded_even_if_the_keys_function_fails(
        self, keys: Any, error: type[BaseException], caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(_: Delivery) -> str:
            raise error("no")

        keys(fail)

        assert store(by_us()) == [store_module.Stored()]
        [line] = caplog.records
        assert (line.levelname, line.exc_info and line.exc_info[0]) == ("WARNING", error)
        assert line.getMessage().startswith(
            f"The keys function of handler 'payments.charge' raised {error.__name__}: the parked message has no"
        )

    def test_a_failing_keys_function_warns_once_per_error_type(
        self, keys: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(message: Delivery) -> str:
            raise {1: ValueError, 2: KeyError}[message.data["n"]]("no")

        keys(fail)
        caplog.set_level(logging.DEBUG, "django_rmq_retry")

        store(*(by_us(id=str(place), body=b'{"n": %d}' % n) for place, n in enumerate((1, 1, 2, 1))))

        told = [(line.levelname, line.exc_info and line.exc_info[0]) for line in caplog.records]
        assert told == [("WARNING", ValueError), ("DEBUG", ValueError), ("WARNING", KeyError), ("DEBUG", ValueError)]

    def test_an_undecodable_body_logs_no_error_of_the_keys_function(
        self, keys: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        keys(lambda message: message.data["n"])

        assert store(by_us(body=b"no json")) == [store_module.Stored()]
        assert caplog.records == []

    def test_at_most_twenty_short_business_keys_are_stored(self, keys: Any) -> None:
        keys(lambda _: [7, None, "", "a", "A", "a", "á", "a ", NASTY, *range(100, 200)])

        assert store(by_us()) == [store_module.Stored()]
        values = [key.value for key in BusinessKey.objects.order_by("pk")]
        assert len(values) <= 20
        assert values[:2] == ["7", "a"]
        assert all(len(value.encode()) <= 255 and "\0" not in value for value in values)

    def test_an_endless_iterator_of_keys_is_cut_off(self, keys: Any) -> None:
        keys(lambda _: iter(int, 1))

        assert store(by_us()) == [store_module.Stored()]
        assert the_record().business_key == "0"


class TestSignal:
    def test_the_recorded_signal_names_records_and_groups(self) -> None:
        heard: list[tuple[Any, Any]] = []

        def hear(messages: list[int], groups: list[int], **_: object) -> None:
            heard.append((messages, groups))

        signals.recorded.connect(hear)
        try:
            store(by_us(), by_us(id="m-2"))
        finally:
            signals.recorded.disconnect(hear)

        assert heard == [(sorted(ParkedMessage.objects.values_list("pk", flat=True)), [the_group().pk])]

    @pytest.mark.parametrize("error", [ValueError, SystemExit])
    def test_a_failing_signal_receiver_does_not_affect_recording(
        self, error: type[BaseException], caplog: pytest.LogCaptureFixture
    ) -> None:
        def hear(**_: object) -> None:
            raise error("no")

        signals.recorded.connect(hear)
        try:
            assert store(by_us()) == [store_module.Stored()]
        finally:
            signals.recorded.disconnect(hear)

        assert the_record().copies == 1

    def test_a_connection_lost_after_the_commit_stores_no_duplicate(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def records(_: store_module.BatchWriter) -> list[ParkedMessage]:
            raise OperationalError("server closed the connection unexpectedly")

        def hear(**_: object) -> None:
            pytest.fail("there is nothing to announce")

        monkeypatch.setattr(store_module.BatchWriter, "records", records)
        signals.recorded.connect(hear)
        try:
            assert store(by_us(id=None)) == [store_module.Stored()]
        finally:
            signals.recorded.disconnect(hear)

        assert ParkedMessage.objects.count() == 1
        assert [line.levelname for line in caplog.records] == ["ERROR"]
        assert caplog.messages[0].startswith("The signal `recorded` was not sent")


def test_the_x_death_count_of_a_dead_letter_loop_is_recorded(vhost: Vhost, amqp: BlockingChannel) -> None:
    """Parked by a consumer whose carrier counts by x-death, on a real broker."""
    amqp.confirm_delivery()
    loop = DeadLetter(exchange="again", queue="later", after=0.2)
    charge = subscription(RetryThenPark(attempts=3, via=loop))
    declare(vhost, topology_of(charge))
    hand = SlowConsumer(channel=amqp, subscription=charge)
    hand.publish(Message(body=b"{}", routing_key="payments", properties=Properties(message_id="m-1")))
    verdicts = [hand.fail().kind for _ in range(3)]
    _tag, parked, _ = hand.take("payments.parked")
    assert store(parked) == [store_module.Stored()]
    record = the_record()
    died = deaths(decode_properties(bytes(record.properties)).headers)

    assert verdicts == [Kind.RETRY, Kind.RETRY, Kind.PARK]
    assert (record.by, record.attempts, record.reason) == ("consumer", 3, "retries_exhausted")
    assert {(one.queue, one.reason, one.count) for one in died} == {
        ("payments", "rejected", 2),
        ("later", "expired", 2),
    }
