"""Breakers, pauses and rates of real processes, on a real broker and each database."""

import json
from contextlib import ExitStack
from itertools import pairwise

import pytest
from django.db import connections

from django_rmq_retry.models import ConsumerProcess, QueueControl
from tests.breakers.bank import Bank
from tests.tooling.filled import VARIABLE
from tests.tooling.proxy import proxy_to
from tests.tooling.waiting import longer, wait_until

pytestmark = [pytest.mark.database, pytest.mark.long]


def switch(queue: str = "payments") -> QueueControl:
    return QueueControl.objects.using("own").get(queue=queue)


def parked(bank: Bank) -> int:
    return bank.ready("payments.parked")


def test_an_outage_pauses_every_process_costs_no_attempt_and_ends_by_itself(bank: Bank) -> None:
    bank.goes_down()
    with bank.consuming() as one, bank.consuming() as two:
        wait_until(lambda: bank.consumers("payments") == 2)
        bank.publish("payments", *range(30))
        wait_until(lambda: not bank.consumers("payments") and bank.ready("payments") == 30)
        bank.publish("mails", "beside")
        wait_until(lambda: bank.did() == ["beside"])
        # Far more trials than any count of returns allows, and one message each.
        wait_until(lambda: switch().failed >= 8, 60)
        bank.comes_back()
        wait_until(lambda: len(bank.did()) == 31, 60)
        codes = [one.stopped(), two.stopped()]

    assert sorted(map(str, bank.did())) == sorted(map(str, ["beside", *range(30)]))
    assert {entry["attempt"] for entry in bank.diary("began")} == {1}
    assert (parked(bank), codes, switch().opened) == (0, [0, 0], False)
    assert one.said.count("has opened") + two.said.count("has opened") <= 2
    assert one.said.count("has closed") + two.said.count("has closed") == 1


def test_an_ordered_queue_keeps_its_order_through_an_outage(bank: Bank) -> None:
    bank.publish("ledger", *range(10))
    bank.goes_down()
    with bank.consuming() as one, bank.consuming() as two:
        wait_until(lambda: switch("ledger").failed >= 3 if QueueControl.objects.using("own").exists() else False, 60)
        bank.comes_back()
        wait_until(lambda: len(bank.did()) >= 10, 60)
        codes = [one.stopped(), two.stopped()]

    assert bank.did() == list(range(10))
    assert codes == [0, 0]


def test_after_a_prober_is_killed_another_process_probes(bank: Bank) -> None:
    bank.more = {"BANK_LEASE": "2"}
    bank.goes_down()
    bank.publish("payments", "a")
    with bank.consuming() as one:
        wait_until(lambda: QueueControl.objects.using("own").filter(failed__gte=1).exists())
        (bank.folder / "hangs").touch()
        tried = len(bank.diary("began"))
        wait_until(lambda: len(bank.diary("began")) > tried)
        prober = switch().prober
        one.kill()
        (bank.folder / "hangs").unlink()
        bank.comes_back()
        with bank.consuming() as two:
            wait_until(lambda: bank.did() == ["a"])
            wait_until(lambda: not switch().opened)
            code = two.stopped()

    assert prober
    assert (code, parked(bank)) == (0, 0)


def test_a_consumer_stops_in_order_while_a_breaker_is_open_and_keeps_it_open(bank: Bank) -> None:
    bank.more = {"BANK_PROBE": "300"}
    bank.goes_down()
    bank.publish("payments", *range(5))
    with bank.consuming() as one:
        wait_until(lambda: QueueControl.objects.using("own").filter(opened=True).exists())
        code = one.stopped()
    bank.comes_back()
    with bank.consuming() as two:
        two.says("Another process has opened the breaker")
        bank.publish("mails", "beside")
        wait_until(lambda: bank.did() == ["beside"])
        waiting = bank.ready("payments")
        resumed = bank.run("rmq_queue", "resume", "payments")
        wait_until(lambda: len(bank.did()) == 6)

    assert (code, waiting, resumed.returncode) == (0, 5, 0)


def test_an_operator_pauses_and_resumes_a_queue(bank: Bank) -> None:
    with bank.consuming() as one:
        wait_until(lambda: bank.consumers("mails") == 1)
        paused = bank.run("rmq_queue", "pause", "mails", "--reason", "spam")
        wait_until(lambda: not bank.consumers("mails"))
        bank.publish("mails", 1, 2)
        one.says("Queue 'mails' is paused by")
        listed = bank.run("rmq_queue", "list")
        with bank.consuming() as two:
            wait_until(lambda: bank.consumers("payments") == 2)
            fresh = bank.consumers("mails")
            resumed = bank.run("rmq_queue", "resume", "mails")
            wait_until(lambda: sorted(bank.did()) == [1, 2])
            codes = [one.stopped(), two.stopped()]

    assert [told.returncode for told in (paused, listed, resumed)] == [0, 0, 0]
    assert "mails\tpaused" in listed.stdout
    assert (fresh, codes) == (0, [0, 0])


def test_one_that_dies_while_a_queue_is_stopped_raises_no_doubt_about_what_it_gave_back(bank: Bank) -> None:
    """After a pause in which a consumer was killed, all that it had given back was "perhaps handled twice"."""
    rows, hangs = ConsumerProcess.objects.using("own"), bank.folder / "hangs"
    hangs.touch()
    with bank.consuming() as one, bank.consuming() as two:
        wait_until(lambda: bank.consumers("mails") == 2)
        bank.publish("mails", *range(60))
        wait_until(lambda: len({entry["pid"] for entry in bank.diary("began")}) == 2)
        bank.run("rmq_queue", "pause", "mails", "--reason", "spam")
        for each in (one, two):
            each.says("Queue 'mails' is paused by")
        none_left = [(row.let_go or {}).get("mails") == [] for row in rows.all()]
        hangs.unlink()
        wait_until(lambda: [row.let_go for row in rows.all()] == [{"mails": []}] * 2)
        before = len(bank.did())
        two.kill()
        wait_until(lambda: rows.filter(ended_at__isnull=False).exists())
        hangs.touch()
        bank.run("rmq_queue", "resume", "mails", "--reason", "over")
        wait_until(lambda: len(bank.diary("began")) > before)
        reads = rows.get(pid=one.process.pid).let_go
        hangs.unlink()
        wait_until(lambda: len(bank.did()) == 60)
        told = bank.run("rmq_status")
        one.stopped()

    assert (none_left, reads) == ([False, False], {})
    assert "its process is gone" in told.stdout
    assert "perhaps handled twice" not in told.stdout


def test_one_that_dies_in_its_handlers_while_a_queue_is_stopped_leaves_only_what_it_had_begun_in_doubt(
    bank: Bank,
) -> None:
    """Killed a moment after the pause, it left all that it had given back unbegun "perhaps handled twice"."""
    rows, hangs = ConsumerProcess.objects.using("own"), bank.folder / "hangs"
    hangs.touch()
    with bank.consuming() as one, bank.consuming() as two:
        wait_until(lambda: bank.consumers("mails") == 2)
        bank.publish("mails", *range(60))
        wait_until(lambda: len({entry["pid"] for entry in bank.diary("began")}) == 2)
        bank.run("rmq_queue", "pause", "mails", "--reason", "spam")
        wait_until(lambda: all((row.let_go or {}).get("mails") for row in rows.all()))
        begun = {f"mails-{entry['of']}" for entry in bank.diary("began") if entry["pid"] == two.process.pid}
        left = rows.get(pid=two.process.pid).let_go
        two.kill()
        wait_until(lambda: rows.filter(ended_at__isnull=False).exists())
        hangs.unlink()
        bank.run("rmq_queue", "resume", "mails", "--reason", "over")
        wait_until(lambda: len(bank.did()) == 60)
        one.stopped()
        told = bank.run("rmq_parked", "list", "--handled-again", "--json")

    assert left == {"mails": sorted(begun)}
    assert {one["name"] for one in json.loads(told.stdout)["items"]} == begun


def test_a_worker_started_without_its_database_takes_nothing_from_a_paused_queue(bank: Bank) -> None:
    if connections["own"].vendor != "postgresql":
        pytest.skip("SQLite is no server, and on MariaDB Django's own checks need it at the start")
    bank.run("rmq_queue", "pause", "payments", "--reason", "the bank closes its books")
    bank.publish("payments", "held")
    bank.publish("mails", "free")
    settings = json.loads(bank.records[VARIABLE])
    with proxy_to(int(settings["PORT"] or 5432)) as proxy:
        bank.more = {VARIABLE: json.dumps({**settings, "HOST": "127.0.0.1", "PORT": str(proxy.port)})}
        proxy.refuse()
        with bank.consuming() as lasting, bank.consuming("--burst") as burst:
            for one in (lasting, burst):
                one.says("Connected to")
                one.says("No message is taken until the pauses of the queues have been read")
            during = [bank.did(), *(bank.ready(queue) + 10 * bank.consumers(queue) for queue in ("payments", "mails"))]
            proxy.accept()
            wait_until(lambda: bank.did() == ["free"])
            lasting.says("Queue 'payments' is paused by")
            lasting.says("The pauses of the queues have been read")
            code = burst.process.wait(timeout=30)
            wait_until(lambda: bank.consumers("mails") == 1)
            proxy.refuse()
            lasting.says("The shared state of breakers and pauses cannot be read")
            bank.publish("mails", "later")
            wait_until(lambda: bank.did() == ["free", "later"])
            codes = [code, lasting.stopped()]

    assert (during, codes) == ([[], 1, 1], [0, 0])
    assert (bank.ready("payments"), lasting.said.count("resumes")) == (1, 0)


def test_a_pause_with_an_end_expires(bank: Bank) -> None:
    with bank.consuming() as one:
        wait_until(lambda: bank.consumers("mails") == 1)
        bank.run("rmq_queue", "pause", "mails", "--for", "5s", "--reason", "spam")
        wait_until(lambda: bank.consumers("mails") == 0)
        bank.publish("mails", 1)
        before = bank.did()
        wait_until(lambda: bank.did() == [1])
        one.says("Queue 'mails' resumes")
        code = one.stopped()

    assert (before, code) == ([], 0)


def test_a_burst_leaves_messages_of_a_paused_queue(bank: Bank) -> None:
    bank.run("rmq_queue", "pause", "payments", "--reason", "outage")
    bank.publish("payments", 1)
    bank.publish("mails", 2)
    with bank.consuming("--burst") as one:
        code = one.process.wait(timeout=30)

    assert (code, bank.did(), bank.ready("payments")) == (0, [2], 1)


def test_three_processes_share_one_rate(bank: Bank) -> None:
    with ExitStack() as stack:
        consumers = [stack.enter_context(bank.consuming()) for _ in range(3)]
        wait_until(lambda: bank.consumers("quotes") == 3)
        bank.publish("quotes", *range(200))
        wait_until(lambda: len(bank.did()) == 200, 60)
        codes = [one.stopped() for one in consumers]
    at = sorted(entry["at"] for entry in bank.diary())
    spent = at[-1] - at[0]

    # A machine with more to do than its cores can is late, but never early.
    assert 18 / longer(1) <= 199 / spent <= 22
    # Of any second at most twenty, and half a second's worth more.
    assert max(sum(start <= one < start + 1 for one in at) for start in at) <= 20 * 1.5 + 1
    assert len({entry["pid"] for entry in bank.diary()}) == 3
    assert {entry["attempt"] for entry in bank.diary()} == {1}
    assert (codes, len(list(pairwise(at)))) == ([0, 0, 0], 199)
