"""The last row of rmq_consume: drawn below everything, only on a terminal, and gone in the end."""

import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.consumer.status_line import Above, LastRow, Throughput, last_row, status_text
from django_rmq_retry.policies import Kind
from tests.commands.terminals import screen, terminal
from tests.shop.running import Shop
from tests.tooling.waiting import wait_until

COLOURFUL: dict[str, Any] = {"TERM": "xterm", "NO_COLOR": ""}


@pytest.fixture
def shop(broker_url: str, tmp_path: Path, amqp: BlockingChannel) -> Shop:
    for queue in ("shop.orders", "shop.orders.parked", "shop.orders.retry.200ms", "shop.ledger"):
        amqp.queue_declare(queue, durable=True)
    return Shop(url=broker_url, notes=tmp_path / "notes")


def order(amqp: BlockingChannel, **told: str) -> None:
    amqp.basic_publish("", "shop.orders", json.dumps(told).encode())


@pytest.mark.contract
class TestOnTerminal:
    @pytest.mark.on_both
    def test_the_status_row_stays_below_the_log_lines(self, shop: Shop, amqp: BlockingChannel, tmp_path: Path) -> None:
        with terminal(shop, "rmq_consume", "shop.orders", **COLOURFUL) as seen:
            seen.until("in flight 0 · ok 0 · retry 0 · parked 0 · Ctrl-C: finish and stop")
            order(amqp, do="park")
            seen.until("parked 1 · Ctrl-C: finish and stop")
            seen.shows("parked: the customer is unknown")
            order(amqp, do="wait", **{"for": str(tmp_path / "go")})
            seen.until("in flight 1")
            (tmp_path / "go").touch()
            seen.until("in flight 0 · ok 1 · retry 0 · parked 1")
            assert sum("Ctrl-C: finish and stop" in row for row in seen.rows) == 2
            seen.press_ctrl_c()

            assert seen.code() == 0
            assert seen.rows[-2].endswith("Stopping (SIGINT): no message is in flight.")
            assert seen.rows[-1] == ""

    def test_a_second_ctrl_c_also_clears_the_status_row(
        self, shop: Shop, amqp: BlockingChannel, tmp_path: Path
    ) -> None:
        order(amqp, do="wait", **{"for": str(tmp_path / "never")})
        with terminal(shop, "rmq_consume", "shop.orders", **COLOURFUL) as seen:
            seen.until("in flight 1")
            seen.press_ctrl_c()
            seen.until("stopping, Ctrl-C: stop at once")
            seen.press_ctrl_c()

            assert seen.code() == 130
            assert seen.rows[-1] == ""

    def test_the_status_row_is_as_wide_as_the_terminal(self, shop: Shop) -> None:
        with terminal(shop, "rmq_consume", "shop.orders", columns=40, **COLOURFUL) as seen:
            seen.until("in flight 0 · ok 0 · retry 0 · pa")
            assert len(seen.rows[-1]) == 39
            seen.resize(100)
            seen.until("Ctrl-C: finish and stop")
            seen.resize(20)
            wait_until(lambda: 0 < len(seen.rows[-1]) < 20, timeout=20, what="a row of at most 19")
            seen.press_ctrl_c()

            assert seen.code() == 0

    def test_the_status_row_is_erased_by_spaces_without_colours(self, shop: Shop, amqp: BlockingChannel) -> None:
        with terminal(shop, "rmq_consume", "shop.orders", TERM="xterm", NO_COLOR="1") as seen:
            seen.until("parked 0")
            order(amqp, do="park")
            seen.until("parked 1")
            seen.press_ctrl_c()

            assert seen.code() == 0
            assert "\x1b" not in seen.text
            assert seen.rows[-1] == ""

    @pytest.mark.parametrize(
        ("words", "changed"),
        [((), {"TERM": "dumb"}), (("--json-logs",), COLOURFUL), (("--processes", "2"), COLOURFUL)],
        ids=["dumb", "json", "several processes"],
    )
    def test_no_status_row_is_shown_without_a_suitable_terminal(
        self, shop: Shop, words: tuple[str, ...], changed: dict[str, Any]
    ) -> None:
        with terminal(shop, "rmq_consume", "shop.orders", "--burst", *words, **changed) as seen:
            assert seen.code() == 0
            assert "in flight" not in seen.text.replace("no message is in flight", "")

    def test_the_status_row_reports_an_unavailable_broker(self, shop: Shop) -> None:
        shop.url = "amqp://guest:guest@127.0.0.1:1/"
        with terminal(shop, "rmq_consume", "shop.orders", **COLOURFUL) as seen:
            seen.until("no broker · Ctrl-C: finish and stop")


class Screen(io.StringIO):
    """The written text, as it is seen."""

    @property
    def rows(self) -> list[str]:
        return screen(self.getvalue())


@pytest.fixture
def stream() -> Screen:
    return Screen()


@pytest.fixture
def row(stream: Screen) -> LastRow:
    made = LastRow(stream)
    made.text = lambda: "the row"
    return made


class TestWriting:
    def test_output_of_other_code_appears_above_the_status_row(self, row: LastRow, stream: Screen) -> None:
        above = Above(stream, row)
        print("one", file=above)
        assert stream.rows == ["one", "the row"]
        print("two", file=above)
        row.end()

        assert stream.rows == ["one", "two", ""]

    def test_an_unfinished_line_is_not_overwritten_by_the_status_row(self, row: LastRow, stream: Screen) -> None:
        above = Above(stream, row)
        above.write("half")
        assert stream.rows == ["half"]
        above.write(" whole\n")

        assert stream.rows[:2] == ["half whole", "the row"]

    def test_a_process_that_forgets_its_row_writes_without_it(self, row: LastRow, stream: Screen) -> None:
        Above(stream, row).write("one\n")
        row.forget()
        Above(stream, row).write("\nchild\n")

        assert stream.rows == ["one", "the row", "child", ""]

    def test_a_blocked_write_does_not_delay_the_end(self, row: LastRow) -> None:
        held, over = threading.Event(), threading.Event()

        def stuck(_text: str) -> None:
            held.set()
            over.wait(10)

        thread = threading.Thread(target=row.write, args=("x", stuck))
        thread.start()
        assert held.wait(5)
        row.end()
        over.set()
        thread.join(5)

        assert not thread.is_alive()

    def test_everything_the_process_prints_is_above_the_status_row(
        self, row: LastRow, stream: Screen, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.stdout", stream)
        monkeypatch.setattr("sys.stderr", stream)
        with last_row(row, lambda: "busy"):
            print("printed")  # noqa: T201 - as handlers do
            row.write("", stream.write)

        assert stream.rows == ["printed", ""]
        assert "busy" in stream.getvalue()


class Known:
    """A consumer and its events, as far as the row looks at them."""

    running, waiting, online, why = 1, 2, True, ""
    halts: tuple[Any, ...] = ()

    def __init__(self) -> None:
        self.counts = dict.fromkeys(Kind, 0)
        self.waits = False

    def unread(self) -> bool:
        return self.waits


class TestTelling:
    @pytest.mark.parametrize(("plain", "between"), [(False, " · "), (True, ", ")])
    def test_counts_have_thousands_separators_and_a_rate(self, plain: bool, between: str) -> None:
        known: Any = Known()
        known.counts.update({Kind.ACK: 91_204, Kind.RETRY: 31, Kind.PARK: 226})
        told = status_text(known, known, without_signs=plain)()

        words = ["0/s", "in flight 3", "ok 91,204", "retry 31", "parked 226", "Ctrl-C: finish and stop"]
        assert told == between.join(words)

    def test_a_worker_that_has_not_read_the_pauses_says_what_it_waits_for(self) -> None:
        known: Any = Known()
        known.waits = True

        assert " · waiting for the database · " in status_text(known, known, without_signs=False)()

    def test_the_rate_is_that_of_the_last_seconds(self) -> None:
        times = iter((0.0, 1.0, 2.0, 6.0, 12.0))
        pace = Throughput(lambda: next(times))

        assert [round(pace.at(count), 2) for count in (0, 20, 40, 40, 40)] == [0.0, 20.0, 20.0, 4.0, 0.0]
