"""The command beside the admin: the same words, tokens and runs, and exit codes that scripts can rely on."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from getpass import getuser
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Delivery, handler
from django_rmq_retry.management import parked_runs
from django_rmq_retry.models import (
    Attempt,
    ErrorGroup,
    OperatorAction,
    ParkedMessage,
    RequeueItem,
    RequeueRun,
    RunState,
    RunWait,
    State,
)
from django_rmq_retry.parked.queue_pauses import pause_queue
from tests.admin.made import attempt, outgoing, tried_again
from tests.commands.running import Terminal, parked
from tests.operators.made import ANN, QUEUE, again, discard_messages, group, pause_run, record, requeue_run
from tests.parked.arrivals import by_us, store
from tests.parked.made import copy_failed, copy_succeeded
from tests.tooling.brokers import after_each_publish, using_broker

pytestmark = pytest.mark.django_db(transaction=True)
NOON = "2026-11-22T12:00:00.000Z"


@pytest.fixture(autouse=True)
def charge() -> None:
    @handler(QUEUE)
    def charge(message: Delivery) -> None:
        """Nothing."""


@pytest.fixture
def wired(broker_url: str, settings: Any, amqp: BlockingChannel) -> Iterator[BlockingChannel]:
    amqp.queue_declare(QUEUE)
    with using_broker(settings, broker_url, PUBLISH_TIMEOUT=20, OPERATORS={"EDITABLE": {"*": True}}):
        yield amqp


@pytest.fixture
def away(settings: Any) -> None:
    settings.RMQ_RETRY = {"URL": "amqp://guest:guest@127.0.0.1:1/", "OPERATORS": {"EDITABLE": {"*": True}}}


def depth(amqp: BlockingChannel) -> int:
    return int(amqp.queue_declare(QUEUE, passive=True).method.message_count)


class TestLooking:
    @pytest.mark.parametrize(
        ("words", "count"),
        [
            ("--key payment:7", 1),
            ("--search payment:7", 1),
            ("--queue others", 1),
            ("--since 1h", 3),
            ("--until 2d", 0),
            ("--state discarded", 1),
            ("--state discarded,parked", 4),
            ("--error BankDown --type none", 0),
            ("", 3),
        ],
    )
    def test_filters_select_the_listed_messages(self, words: str, count: int) -> None:
        record(key="payment:7")
        record(queue="others")
        record(reason="permanent")
        record(state=State.DISCARDED)
        told = parked("list", "--json", *words.split())

        assert (told.data["total"], told.code) == (count, 0 if count else 6)
        assert told.data["schema"] == "rmq_retry.parked_list/1"

    def test_ids_can_be_piped_on(self) -> None:
        ids = [record().pk for _ in range(3)]
        lines = [json.loads(line)["id"] for line in parked("list", "--jsonl").out.splitlines()]
        discarded = parked("discard", "-", "--category", "test", "--yes", given=" ".join(map(str, lines)).encode())

        assert sorted(lines) == ids
        assert discarded.out == "3 messages discarded.\n"

    def test_groups_and_requeue_runs_are_listed(self) -> None:
        one = record()
        requeue_run([one.pk], reason="INC-1")

        assert parked("groups").lines[1][1:3] + parked("groups").lines[1][4:] == [
            "1",
            "0",
            "no",
            "BankDown · payments.charge",
        ]
        assert parked("requeue-runs", "--json").data["items"][0]["reason"] == "INC-1"
        assert parked("requeue-runs", "--active").lines[1][1] == "running"

    def test_messages_whose_workers_died_say_what_may_remain_and_their_groups_where(self) -> None:
        died = group("died", title="worker died", culprit="", reason="worker_stopped")
        one = record(group=died, reason="worker_stopped", queue="payments.main")

        assert (
            "Its handler may have begun before its worker stopped, and what it did may remain."
            in parked("show", str(one.pk)).out
        )
        assert "worker died · payments.main" in parked("groups").out

    def test_a_group_grows_if_two_messages_were_parked_in_the_last_minutes(self) -> None:
        calm, growing = group("calm"), group("growing", title="CardStolen")
        for minutes, cause in ((11, calm), (8, calm), (3, growing), (0.5, growing), (11, growing)):
            record(group=cause, parked_at=timezone.now() - timedelta(minutes=minutes))
        ErrorGroup.objects.filter(pk=calm.pk).update(last_new=timezone.now() - timedelta(minutes=8))
        told, terminal = parked("groups", "--json"), parked("groups", out=Terminal())

        assert [row[4:] for row in parked("groups").lines] == [
            ["GROWING", "ERROR"],
            ["yes", "CardStolen · payments.charge"],
            ["no", "BankDown · payments.charge"],
        ]
        assert [(one["growing"], one["recent"]) for one in told.data["items"]] == [(True, 2), (False, 1)]
        assert told.data["next"] == f"rmq_parked requeue --group {growing.pk} --dry-run"
        assert terminal.err == f"→ next: manage.py {told.data['next']}\n"
        assert parked("groups").err == ""
        requeue_run(list(ParkedMessage.objects.filter(group=growing).values_list("pk", flat=True)))
        assert {one["growing"] for one in parked("groups", "--json").data["items"]} == {False}

    def test_messages_on_hold_are_counted_apart_from_the_parked_ones_of_a_group_as_in_the_admin(self) -> None:
        """Of 8 parked messages and 2 on hold the command counted 10, and the admin 8."""
        one, _two, _three = (record(group=group("down")) for _ in range(3))
        parked("hold", str(one.pk), "--for", "2h")
        [item] = parked("groups", "--json").data["items"]

        assert [row[1:3] for row in parked("groups").lines] == [["PARKED", "ON HOLD"], ["2", "1"]]
        assert (item["parked"], item["on_hold"]) == (2, 1)

    def test_the_next_step_names_a_group_that_a_requeue_can_send(self) -> None:
        closed, down = group("closed", title="AccountClosed"), group("down")
        for _ in range(2):
            record(group=closed, reason="permanent")
        one = record(group=down)
        assert parked("groups", "--json").data["next"] == f"rmq_parked requeue --group {down.pk} --dry-run"

        parked("hold", str(one.pk), "--for", "2h")
        assert parked("groups", "--json").data["next"] == f"rmq_parked list --group {closed.pk}"

        parked("discard", "--group", str(closed.pk), "--category", "test", "--yes")
        assert parked("groups", "--json").data["next"] == f"rmq_parked list --group {down.pk} --state on_hold"

    def test_the_next_step_names_the_requeue_run_that_has_the_messages_of_the_group(self) -> None:
        one = record()
        run = requeue_run([one.pk])
        assert parked("groups", "--json").data["next"] == f"rmq_parked requeue-run {run.pk}"

        parked("requeue-run", str(run.pk), "--stop")
        assert parked("groups", "--json").data["next"] == f"rmq_parked requeue --group {one.group_id} --dry-run"

    def test_no_next_step_is_suggested_without_parked_messages(self) -> None:
        group()

        assert parked("groups", "--all", out=Terminal()).err == ""
        assert parked("groups", "--all", "--json").data["next"] is None

    def test_a_body_is_masked_unless_it_is_revealed(self) -> None:
        one = record(body=b'{"card":{"pan":"4111222233334444"},"amount":1.10}')
        shown = parked("show", str(one.pk), "--body", "pretty")
        revealed = parked("show", str(one.pk), "--body", "exact", "--reveal")

        assert '"pan": "•••"' in shown.out
        assert '"amount": 1.10' in shown.out
        assert "4111222233334444" not in shown.out
        assert '{"card":{"pan":"4111222233334444"},"amount":1.10}' in revealed.out
        assert [one.action for one in OperatorAction.objects.all()] == ["reveal"]

    @pytest.mark.parametrize("option", ["--search", "--key"])
    def test_a_key_that_was_discarded_is_found_and_its_state_is_told(self, option: str) -> None:
        one, other = record(key="PAY-80007"), record(key="PAY-80007")
        discard_messages([one.pk])
        found = parked("list", option, "PAY-80007")
        narrowed = parked("list", option, "PAY-80007", "--state", "discarded", "--json")
        missing = parked("list", option, "PAY-9")

        assert {line[0]: line[1] for line in found.lines[1:]} == {str(one.pk): "discarded", str(other.pk): "parked"}
        assert [item["id"] for item in narrowed.data["items"]] == [one.pk]
        assert missing.code == 6
        assert "All states were searched." in missing.err

    def test_a_message_is_shown_by_its_key_and_begins_with_what_happened(self) -> None:
        one = record(key="PAY-80007", type="payment.transfer", error_text="no answer")
        record(key="PAY-1")
        record(key="PAY-1")
        attempt(one, 1, error="", error_text="", verdict="ack")
        before = parked("show", "PAY-80007").out.splitlines()
        discard_messages([one.pk], category="duplicate", text="INC-1")
        after = [parked("show", word).out.splitlines() for word in (one.message_id, f"#{one.pk}", str(one.pk))]
        several, none = parked("show", "PAY-1"), parked("show", "PAY-9")

        assert before[0] == f"payment.transfer PAY-80007  #{one.pk}"
        assert re.fullmatch(r"Parked 20..-..-.. ..:..:..: retries exhausted after 5 attempts\.", before[1])
        assert before[2] == "BankDown: no answer"
        assert not [line for line in before if line.endswith((" ", ":"))]
        assert not [line for line in before if re.search(r"\d\d\.\d{6}", line)]
        assert [re.sub(r"\d\d:\d\d \w+", "T", lines[1])[:50] for lines in after] == [
            "Discarded T by ann (Duplicate: INC-1): no requeue "
        ] * 3
        assert (several.code, len(several.lines)) == (5, 3)
        assert (none.code, none.err.partition(" Also searched: ")[0]) == (6, "There is no record of PAY-9.")

    def test_a_message_is_shown_with_the_run_and_the_paused_queue_in_which_it_waits(self) -> None:
        """Its page says both; the command left open who is about to pay it."""
        run = requeue_run([(waits := record()).pk, (sent := record()).pk], ANN)
        run.items.filter(message=sent.pk).update(state="sent", sent_at=timezone.now())
        ParkedMessage.objects.filter(pk=sent.pk).update(state=State.REQUEUED, requeued_at=timezone.now())
        pause_run(run)
        pause_queue(QUEUE, ANN, reason="bank down")
        one, other = parked("show", str(waits.pk)), parked("show", str(sent.pk))
        data = [parked("show", str(row.pk), "--json").data for row in (waits, sent)]

        assert f"\nRequeue run {run.pk} by ann is paused and has not sent it.\n" in one.out
        assert f"\nWhat was sent to {QUEUE} waits. Paused by ann since " in other.out
        assert [row["waits_in_runs"] for row in data] == [[run.pk], []]
        assert [row["stopped_queues"] for row in data] == [[], [QUEUE]]

    def test_a_message_is_shown_with_the_number_of_its_group_and_of_its_attempts(self) -> None:
        one = record(attempts=3)
        for number in (1, 2, 3):
            attempt(one, number)
        last, every = parked("show", str(one.pk)), parked("show", str(one.pk), "--attempts", "all")

        assert f"group            {one.group_id} · BankDown" in last.out.splitlines()
        assert [line[:9] for line in last.out.splitlines() if line.startswith("attempt ")] == ["attempt 3"]
        assert last.err == "1 of 3 attempts; --attempts all shows all\n"
        assert every.out.count("\nattempt ") == 3
        assert every.err == ""

    def test_the_x_death_header_of_a_message_is_shown(self) -> None:
        told: dict[str, object] = {
            "queue": "payments.wait", "reason": "expired", "count": 3, "exchange": "a", "routing-keys": ["pay"],
            "time": datetime(2026, 11, 22, 12, tzinfo=UTC), "original-expiration": "7",
        }  # fmt: skip
        rejected = {"queue": "payments", "reason": "rejected", "count": 3, "exchange": "", "routing-keys": []}
        store(by_us(headers={"x-death": [told, rejected]}))
        one = str(ParkedMessage.objects.get().pk)

        assert [line for line in parked("show", one).out.splitlines() if line.startswith("x-death")] == [
            f"x-death          payments.wait expired x3, exchange a, key pay, first {NOON}, original expiration 7 ms",
            "x-death          payments rejected x3",
        ]
        first, second = parked("show", one, "--json").data["deaths"]
        assert (first["at"], first["routing_keys"], first["expiration"]) == (NOON, ["pay"], "7")
        assert (second["queue"], second["count"], second["at"]) == ("payments", 3, None)

    def test_an_invalid_x_death_header_is_reported(self) -> None:
        one = str(record(headers={"x-death": [{"queue": "\x1b[2J"}]}).pk)

        assert "x-death          not readable" in parked("show", one).out
        assert parked("show", one, "--json").data["deaths"] is None

    def test_a_filter_without_a_parked_message_tells_in_which_states_it_has_some(self) -> None:
        record(error="GatewayTimeout", state=State.PROCESSED)
        record(error="GatewayTimeout", state=State.PROCESSED)
        record(error="GatewayTimeout", state=State.ON_HOLD)
        none, held = (parked("list", "--error", "GatewayTimeout", *more) for more in ((), ("--state", "on_hold")))

        assert none.code == 6
        assert none.err.splitlines() == [
            "No message matches in the state parked.",
            "3 match in other states: processed (2), on_hold (1). To list them, add --state processed,on_hold",
        ]
        assert held.err == "2 match in other states: processed (2). To list them, add --state processed\n"
        assert len(held.lines) == 2

    @pytest.mark.parametrize("words", [("list", "--search"), ("list", "--key"), ("show",)])
    def test_who_finds_a_parked_message_learns_of_others_with_its_key(self, words: tuple[str, ...]) -> None:
        one = record(key="PAY-97005")
        outgoing(message_id="PAY-97005")
        told = parked(*words, "PAY-97005")
        data = parked(*words, "PAY-97005", "--json").data

        assert told.err.startswith("! Also (may still be handled): In the outbox, not sent: PAY-97005\n")
        assert str(one.pk) in told.out
        assert [place["room"] for place in data["elsewhere"]] == ["outbox"]

    def test_a_value_that_no_message_has_is_answered_with_those_there_are(self) -> None:
        record(error="bank.errors.GatewayTimeout")
        record(error="bank.errors.GatewayTimeout", state=State.DISCARDED)
        told = parked("list", "--error", "GatewayTimeout")

        assert told.err == "No message matches.\nSome would match with --error: bank.errors.GatewayTimeout (1)\n"

    def test_a_list_by_filter_ends_with_the_command_that_previews_its_requeue(self) -> None:
        record(queue="payments main")
        held = record(state=State.ON_HOLD, error="Held")
        told = parked("list", "--queue", "payments main", "--since", "2026-01-01T00:00Z", out=Terminal())
        of_held = parked("list", "--error", "Held", "--state", "on_hold", out=Terminal())

        assert told.err == (
            "→ next: manage.py rmq_parked requeue --queue 'payments main' --since 2026-01-01T00:00:00+00:00 --dry-run\n"
        )
        assert of_held.err == f"→ next: manage.py rmq_parked show {held.pk}\n"
        assert parked("list", "--queue", "payments main").err == ""

    def test_a_message_is_shown_with_its_headers_and_the_confidential_ones_are_hidden(self) -> None:
        one = record(headers={"tenant": "north", "authorization": "Bearer 7", "bank": {"iban": "DE89", "name": "x"}})
        shown, revealed = parked("show", str(one.pk)), parked("show", str(one.pk), "--reveal")
        headers = [line for line in shown.out.splitlines() if line.startswith("header ")]

        assert headers == [
            "header           tenant: north",
            "header           authorization: •••",
            "header           bank: iban = •••, name = x",
        ]
        assert "authorization: Bearer 7" in revealed.out
        assert parked("show", str(one.pk), "--json").data["headers"]["authorization"] == "•••"

    def test_terminal_control_characters_are_escaped(self) -> None:
        record(error="\x1b[2J", error_text="\x1b]0;x\x07")

        assert "\x1b" not in parked("list").out

    def test_a_selection_without_a_match_exits_with_6(self) -> None:
        for words in (
            ("list",),
            ("groups",),
            ("requeue-runs",),
            ("show", "5"),
            ("requeue-run", "5"),
            ("purge", "--older-than", "1d"),
        ):
            assert parked(*words).code == 6, words


class TestRequeue:
    def test_the_token_of_a_dry_run_requeues_exactly_its_messages(self, wired: BlockingChannel) -> None:
        one, old = record(), record(succeeded_at=timezone.now())
        told = parked("requeue", "--all", "--dry-run")
        token = told.out.split("--selection ")[1].strip()
        later = record()
        done = parked("requeue", "--selection", token, "--yes", "--wait", "0")

        assert (told.code, depth(wired)) == (0, 1)
        assert "Would requeue 1 of 2 messages." in told.out
        assert f"1 succeeded, left out (--include succeeded sends it): {old.message_id} (#{old.pk})" in told.out
        assert (again(one).state, again(later).state) == (State.REQUEUED, State.PARKED)
        assert done.code == 5

    @pytest.mark.usefixtures("away")
    def test_it_names_the_other_runs_that_have_the_messages_as_the_preview_of_the_admin_does(self) -> None:
        """A colleague's paused run had 50 of them, and nothing said so: whose run sent them nobody could tell."""
        rows = [record() for _ in range(3)]
        made = requeue_run([row.pk for row in rows[:2]], ANN)
        sending = parked("requeue", "--all", "--dry-run")
        pause_run(made)
        paused, data = parked("requeue", "--all", "--dry-run"), parked("requeue", "--all", "--dry-run", "--json").data
        begun = parked("requeue", "--all")

        both = "the run that comes first sends them, the other leaves them out"
        told = [
            f"! Requeue run {made.pk} by ann is paused with 2 of these.",
            f"! 2 of them are in a paused requeue run, too: {both}",
        ]
        assert f"! Requeue run {made.pk} by ann is to send 2 of these." in sending.out
        assert paused.out.splitlines()[:2] == begun.err.splitlines()[:2] == told
        assert data["runs"] == [{"id": made.pk, "by": "ann", "state": "paused", "count": 2}]

    def test_it_names_what_is_handled_anyway_with_a_key_of_what_it_sends(self, wired: BlockingChannel) -> None:
        """The preview of a payment that waited for its retry under the same key was all well, and it was paid twice."""
        one, _other = record(key="PAY-99001"), record(key="PAY-99002")
        outgoing(message_id="PAY-99001")
        retry = tried_again("PAY-99001", at=timezone.now(), verdict="retry")
        Attempt.objects.filter(pk=retry.pk).update(next_at=timezone.now() + timedelta(hours=1))
        told, other = (parked("requeue", "--search", key, "--dry-run") for key in ("PAY-99001", "PAY-99002"))
        data = parked("requeue", "--all", "--dry-run", "--json").data
        sent = parked("requeue", str(one.pk), "--yes", "--wait", "0")

        names = "! Not parked, with the same business key or message id: it is handled as well, so these may be done"
        for text in (told.out, sent.err):
            assert names in text
            assert "    may still be handled: In the outbox, not sent: PAY-99001\n" in text
            assert "    may still be handled: Attempt 1 failed" in text
        assert names not in other.out
        assert [place["room"] for place in data["elsewhere"]] == ["outbox", "retries"]

    def test_a_dry_run_says_how_fast_it_would_send_and_which_message_first(self) -> None:
        for _ in range(40):
            record()
        told = parked("requeue", "--all", "--dry-run", "--canary", "--rate", "2")

        assert "  sends one, and the others after it was processed; then 2 per second, about 20 s" in told.out

    def test_a_dry_run_says_which_depth_limit_it_has_and_that_it_lasts_longer_therefore(self) -> None:
        """A typing error in --max-depth was not seen; "about 5 s" were 39."""
        for _ in range(40):
            record()
        told = parked("requeue", "--all", "--dry-run", "--max-depth", "3", "--rate", "2")
        data = parked("requeue", "--all", "--dry-run", "--max-depth", "3", "--rate", "2", "--json").data

        assert "  sends 2 per second, at least 20 s\n" in told.out
        assert "  depth limit: waits while a queue has more than 3 ready\n" in told.out
        assert (data["rate"], data["max_depth"]) == (2, 3)
        assert "depth limit" not in parked("requeue", "--all", "--dry-run").out

    @pytest.mark.parametrize(
        ("wait", "sent", "heard", "stands"),
        [
            (RunWait.QUEUE_DEEP, 120, 0, True),
            (RunWait.QUEUE_DEEP, 1, 0, False),
            (RunWait.OUTCOMES_WAIT, 2, 0, True),
            ("", 120, 40, True),
            ("", 1, 0, False),
        ],
        ids=["its queue does not empty", "its queue empties", "no outcomes", "nobody sends it", "sends"],
    )
    def test_lists_and_json_say_of_a_run_that_sends_nothing_since_when(
        self, wait: str, sent: int, heard: int, *, stands: bool
    ) -> None:
        """Its page says "Sends nothing now"; monitoring saw "running" alone."""
        now = timezone.now()
        sent_at, beat_at = (now - timedelta(seconds=ago) for ago in (sent, heard))
        counts = {"total": 100, "sent": 19, "processed": 14, "max_depth": 3}
        begun = {"created_at": now - timedelta(minutes=5), "paced_at": now - timedelta(minutes=4), "beat_at": beat_at}
        run = RequeueRun.objects.create(state=RunState.RUNNING, wait=wait, by="ann", sent_at=sent_at, **counts, **begun)
        listed, [item] = parked("requeue-runs"), parked("requeue-runs", "--json").data["items"]

        assert (item["state"], item["wait"]) == ("running", wait)
        assert item["sends_nothing_since"] == (item["sent_at"] if stands else None)
        assert (f"Requeue run {run.pk} sends nothing now. " in listed.err) is stands
        assert listed.lines[1][1] == ("waits" if stands else "running")

    def test_more_than_a_hundred_are_refused_without_a_reason_before_anything_is_asked(self) -> None:
        for _ in range(101):
            record()
        asked, looked = parked("requeue", "--all"), parked("requeue", "--all", "--dry-run")
        told = parked("requeue", "--all", "--dry-run", "--reason", "INC-1")

        assert "Enter a reason: it is required for more than 100 messages." in asked.err
        assert ("--yes" in asked.err, RequeueRun.objects.count()) == (False, 0)
        assert (looked.out.endswith(" --reason TEXT\n"), "--reason" in told.out) == (True, False)
        assert parked("groups", "--json").data["next"].endswith(" --reason TEXT --dry-run")

    def test_a_message_on_hold_stays_parked_unless_it_is_included(self, wired: BlockingChannel) -> None:
        one = record(key="PAY-3")
        number = str(one.pk)
        parked("hold", number, "--for", "2h", "--reason", "bank is closed")
        for words in ((number,), ("--group", str(one.group_id), "--yes"), ("--all", "--yes")):
            told = parked("requeue", *words)
            assert (told.code, depth(wired), again(one).state) == (6, 0, State.ON_HOLD)
            left, who, total = told.err.splitlines()
            assert left == f"  1 on hold, left out (--include on_hold sends it): PAY-3 (#{number})"
            assert re.fullmatch(rf"    PAY-3 \(#{number}\): On hold until .+, by {getuser()}: bank is closed", who)
            assert total == "Would requeue 0 of 1 message."
        parked("requeue", number, "--include", "on_hold", "--wait", "0")

        assert (depth(wired), again(one).state) == (1, State.REQUEUED)

    def test_a_message_is_requeued_when_the_time_of_its_hold_is_over(self, wired: BlockingChannel) -> None:
        record(state=State.ON_HOLD, held_until=timezone.now() - timedelta(minutes=1))
        parked("requeue", "--all", "--yes", "--wait", "0")

        assert depth(wired) == 1

    @pytest.mark.usefixtures("away")
    @pytest.mark.parametrize(
        ("words", "limit", "said"),
        [
            ((), 20, "pauses the requeue run when more than 20% of at least 5 outcomes failed again"),
            (("--stop-at", "5%"), 5, "pauses the requeue run when more than 5% of at least 5 outcomes failed again"),
            (("--stop-at", "100"), None, "off, so the requeue run continues however many messages fail again"),
        ],
    )
    def test_the_guard_pauses_at_20_percent_unless_another_limit_is_given(
        self, words: tuple[str, ...], limit: float | None, said: str
    ) -> None:
        record(), record()
        preview = parked("requeue", "--all", "--dry-run", "--json", *words).data
        told = parked("requeue", "--all", "--planned", "--yes", *words)

        assert told.err == f"  2 to {QUEUE}\n  sends 20 per second\n  guard: {said}\nRequeues 2 of 2 messages.\n"
        assert (preview["stop_at"], RequeueRun.objects.get().stop_at) == (limit, limit)

    def test_each_line_about_left_out_messages_names_the_option_that_sends_them(self) -> None:
        for _ in range(2):
            record(reason="permanent", error="AccountClosed", key="PAY-1")
        record(unconfirmed=True, key="PAY-2")
        record(queue="", key="PAY-4")
        told = parked("requeue", "--all", "--dry-run")

        assert [line.split(":")[0] for line in told.out.splitlines()[:3]] == [
            "  1 unconfirmed, left out (--include unconfirmed sends it)",
            "  2 permanent, left out (--include permanent sends them)",
            "  1 no queue, left out",
        ]

    @pytest.mark.usefixtures("wired")
    def test_a_requeue_exits_with_0_when_all_messages_were_processed(self) -> None:
        one = record()
        with after_each_publish(lambda _message: copy_succeeded(one.pk)):
            told = parked("requeue", str(one.pk), "--reason", "INC-553")
        made = RequeueRun.objects.get()

        assert (told.code, told.out) == (0, f"Requeue run {made.pk}: 1 processed.\n")
        assert (made.state, made.reason, made.source) == (RunState.FINISHED, "INC-553", "cli")
        assert "@" in OperatorAction.objects.get().behalf

    def test_the_json_output_of_a_requeue_is_one_document(self, wired: BlockingChannel) -> None:
        preview = parked("requeue", str(record().pk), "--dry-run", "--json").data
        told = parked("requeue", str(record().pk), "--no-wait", "--json").data

        assert (preview["sendable"], preview["queues"], bool(preview["selection"])) == (1, {QUEUE: 1}, True)
        assert (told["schema"], told["run"]["total"], told["run"]["sent"]) == ("rmq_retry.parked_requeue_run/1", 1, 0)
        assert depth(wired) == 0

    def test_many_messages_are_not_requeued_without_confirmation(self, wired: BlockingChannel) -> None:
        record(), record(), record(succeeded_at=timezone.now())
        told = parked("requeue", "--all")

        assert (told.code, "Requeue 2 of 3 messages? No terminal to confirm on. Pass --yes." in told.err) == (7, True)
        assert ("Requeues" in told.err, depth(wired)) == (False, 0)

    @pytest.mark.usefixtures("away")
    def test_without_a_broker_a_requeue_is_refused_unless_it_is_planned(self) -> None:
        one = record()
        told = parked("requeue", str(one.pk))
        assert (told.code, "--planned" in told.err, RequeueRun.objects.count()) == (3, True, 0)
        assert "Requeues" not in told.err

        assert parked("requeue", str(one.pk), "--planned").code == 0
        assert RequeueRun.objects.get().state == RunState.PLANNED

    @pytest.mark.usefixtures("away")
    @pytest.mark.parametrize(
        ("words", "code", "said"),
        [
            ((), 2, "Pass IDs, a filter, --keys-from or --all"),
            (("5", "--all"), 2, "IDs cannot be combined with a filter or --all"),
            (("x",), 2, "An ID is not a record number"),
            (("--all", "--to", "payments.chrge"), 2, "is not a declared queue"),
            (("--selection", "forged"), 4, "this site did not sign it"),
            (("--all", "--state", "lost"), 2, "known are parked"),
            (("999999",), 6, "No message matches"),
        ],
    )
    def test_invalid_options_are_reported(self, words: tuple[str, ...], code: int, said: str) -> None:
        told = parked("requeue", *words)

        assert told.code == code
        assert said in told.err

    @pytest.mark.usefixtures("away")
    def test_a_reason_that_no_message_has_is_answered_with_those_there_are(self) -> None:
        record(queue="payments", reason="expired"), record(queue="payments", reason="permanent")
        record(queue="payouts", reason="rejected")
        told = parked("requeue", "--queue", "payments", "--parked-reason", "foreign")
        nothing = parked("requeue", "--queue", "payroll", "--parked-reason", "foreign")

        assert (told.code, nothing.code) == (6, 6)
        assert "matches messages with these reasons: expired (1), permanent (1)." in told.err
        assert "reasons" not in nothing.err

    @pytest.mark.usefixtures("wired")
    def test_who_waits_for_outcomes_is_told_how_long_and_how_not_to(self) -> None:
        """requeue-run stood still for a minute without a word."""
        run = requeue_run([record().pk])
        waited, at_once = (parked("requeue-run", str(run.pk), "--wait", seconds) for seconds in ("0.3", "0"))

        assert waited.err.count("All is sent. Waits for outcomes, at most 0.3 s; --wait 0 does not.\n") == 1
        assert "Waits for outcomes" not in at_once.err

    def test_the_failed_messages_of_a_run_can_be_requeued(self, wired: BlockingChannel) -> None:
        one, _two = record(), record()
        first = requeue_run([one.pk])
        first.items.update(state="failed")
        told = parked("requeue", "--failed-of-run", str(first.pk), "--yes", "--wait", "0", "--json")

        assert (told.data["run"]["total"], depth(wired)) == (1, 1)


class TestRuns:
    def test_messages_that_a_run_handled_twice_are_counted_and_listed(self) -> None:
        one, other = record(state="processed"), record(state="processed")
        run = requeue_run([record().pk])
        before = parked("requeue-runs")
        for place, (row, handled) in enumerate(((one, 2), (other, 1)), 2):
            RequeueItem.objects.create(run=run, message=row, place=place, revision=1, handled=handled)
        RequeueRun.objects.update(state="finished", handled_twice=1)
        told = parked("requeue-run", str(run.pk))

        assert "HANDLED TWICE" not in before.out
        assert "HANDLED TWICE" in parked("requeue-runs").out
        assert "at least 1 handled twice" in told.out
        assert f"rmq_parked list --handled-twice-of-run {run.pk}" in told.err
        assert parked("requeue-run", str(run.pk), "--json").data["run"]["handled_twice"] == 1
        assert [line[0] for line in parked("list", "--handled-twice-of-run", str(run.pk)).lines[1:]] == [str(one.pk)]

    def test_messages_that_were_not_confirmed_are_counted_and_listed(self) -> None:
        one, run = record(unconfirmed=True), requeue_run([record().pk])
        before = parked("requeue-runs")
        RequeueItem.objects.create(run=run, message=one, place=2, revision=1, state="unconfirmed")
        RequeueRun.objects.update(state="finished", total=2, skipped=1, unconfirmed=1)
        told, listed = parked("requeue-run", str(run.pk)), parked("requeue-runs")

        assert "NOT CONFIRMED" not in before.out
        assert listed.lines[0][-2:] == ["NOT CONFIRMED", "REASON"]
        assert "They may have been delivered. Find out whether they were handled" in told.err
        assert f"rmq_parked list --unconfirmed-of-run {run.pk}" in told.err
        assert [line[0] for line in parked("list", "--unconfirmed-of-run", str(run.pk)).lines[1:]] == [str(one.pk)]

    @pytest.mark.usefixtures("wired")
    def test_a_run_that_its_canary_paused_prints_how_to_resume_and_stop_it(self) -> None:
        ids = [str(record().pk) for _ in range(3)]
        with after_each_publish(lambda _message: copy_failed(int(ids[0]))):
            told = parked("requeue", *ids, "--canary", "--yes")
        number = RequeueRun.objects.get().pk

        assert (told.code, told.out) == (5, f"Requeue run {number} (paused): 1 failed again, 2 not sent.\n")
        itself = f"manage.py rmq_parked requeue-run {number}"
        assert told.err.splitlines()[-5:] == [
            "The test message failed again. Check it, then send another one or stop the requeue run.",
            f"To list the messages that failed again: manage.py rmq_parked list --failed-of-run {number}",
            f"To send one again, and the others after it was processed: {itself} --resume --canary",
            f"To send all 2 without a test: {itself} --resume --reason TEXT",
            f"To stop it: {itself} --stop",
        ]
        untested = parked("requeue-run", str(number), "--resume", "--reason", " ")
        assert (untested.code, RequeueRun.objects.get().state) == (2, "paused")
        assert untested.err == (
            "Nothing was resumed. The test message failed again. Nothing shows yet that the cause is "
            "gone. This would send 2 messages at 20 per second without a test. Add --canary to send one, and the "
            "others after it was processed, or --reason to do so."
        )
        assert parked("list", "--failed-of-run", str(number)).lines[1][0] == ids[0]
        assert parked("requeue-run", str(number), "--canary").code == 2
        tested = parked("requeue-run", str(number), "--resume", "--canary")
        assert (tested.code, RequeueRun.objects.get().awaits_canary) == (0, True)
        assert "Sends one message, and the others after it was processed.\n" in tested.err

    @pytest.mark.parametrize("wait", [RunWait.CANARY_FAILED, RunWait.GUARD])
    @pytest.mark.usefixtures("wired")
    def test_all_others_of_a_run_that_failed_are_sent_at_once_for_a_reason_alone(self, wait: str) -> None:
        """What rmq_status advised, pasted, sent 19 payments at once, of which none had shown that the cause is gone."""
        made = requeue_run([record().pk for _ in range(3)])
        RequeueRun.objects.update(state=RunState.PAUSED, wait=wait, sent=1, failed=1)
        told = parked("requeue-run", str(made.pk), "--resume", "--reason", "bank is back, INC-7")

        assert (told.code, RequeueRun.objects.get().state) == (0, RunState.RUNNING)
        assert "Sends 2 messages at 20 per second, without a test.\n" in told.err
        assert OperatorAction.objects.latest("number").reason == "bank is back, INC-7"

    @pytest.mark.usefixtures("wired")
    def test_a_run_without_first_outcomes_is_left_with_why_and_how_to_go_on(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(parked_runs, "OUTCOME_SECONDS", 0.5)
        ids = [str(record().pk) for _ in range(22)]
        told = parked("requeue", *ids, "--rate", "1000", "--wait", "0", "--reason", "x", "--yes")
        number = RequeueRun.objects.get().pk
        itself = f"manage.py rmq_parked requeue-run {number}"

        assert (told.code, told.out) == (
            5, f"Requeue run {number} (sending): 20 waiting for outcome, 2 not sent.\n",
        )  # fmt: skip
        assert "The rest waits for the first outcomes: if too many of the messages fail again" in told.err
        assert f"To send the rest without waiting: {itself} --resume" in told.err
        assert f"No consumer reads '{QUEUE}', so messages to it wait." in told.err
        assert parked("requeue-run", str(number), "--resume").code == 0
        assert "22 waiting for outcome" in parked("requeue-run", str(number), "--wait", "0").out

    @pytest.mark.parametrize(
        ("seconds", "said"),
        [
            (1, r"19/100 0.7\d?/s  processed 14 failed again 0  It sends whenever its queue has at most 3 ready."),
            (15, "19/100  processed 14 failed again 0  Nothing has been sent since "),
        ],
        ids=["empties", "does not empty"],
    )
    def test_a_run_that_sends_as_its_queue_empties_shows_how_fast(self, seconds: int, said: str) -> None:
        """It showed "20/s" and "more messages than the limit" for 15 messages in 20 s."""
        now = timezone.now()
        begun = {"started_at": now, "paced_at": now - timedelta(seconds=20), "paced_sent": 4, "wait": "queue_deep"}
        counts = {"total": 100, "sent": 19, "processed": 14, "rate": 20, "max_depth": 3}
        run = RequeueRun(**begun, **counts, sent_at=now - timedelta(seconds=seconds), created_at=now, beat_at=now)

        assert re.search(said, parked_runs.bar(run, run.explanation))

    def test_a_run_can_be_paused_resumed_and_driven(self, wired: BlockingChannel) -> None:
        made = requeue_run([record().pk])

        assert "paused" in parked("requeue-run", str(made.pk), "--pause", "--reason", "wait").out
        assert parked("requeue-run", str(made.pk)).code == 5
        assert depth(wired) == 0
        assert parked("requeue-run", str(made.pk), "--resume").code == 0
        sent = parked("requeue-run", str(made.pk), "--wait", "0")
        assert (sent.code, "1 waiting for outcome" in sent.out) == (0, True)
        assert depth(wired) == 1
        assert parked("requeue-run", str(made.pk), "--stop").code == 0
        assert parked("requeue-run", str(made.pk), "--stop").code == 4
        assert parked("requeue-run", str(made.pk), "--export").out.splitlines()[0].startswith("place,id,business_key")


class TestActs:
    def test_messages_can_be_discarded_restored_put_on_hold_and_taken_off_hold(self) -> None:
        number = str(record().pk)

        assert parked("discard", number, "--category", "duplicate").out == "1 message discarded.\n"
        assert parked("restore", number, "--reason", "no copy").out == "1 message restored.\n"
        assert parked("hold", number, "--for", "2h", "--reason", "bank closed").out == "1 message put on hold.\n"
        assert parked("unhold", number).out == "1 message taken off hold.\n"
        assert [one.source for one in OperatorAction.objects.all()] == ["cli"] * 4

    def test_a_dry_run_changes_nothing(self) -> None:
        one = record()
        told = parked("discard", "--all", "--category", "test", "--dry-run")

        assert (told.code, told.out.splitlines()[0], again(one).state) == (0, "Discard 1 message.", State.PARKED)

    def test_a_requeued_message_is_discarded_only_if_its_outcome_is_overdue(self) -> None:
        lost, late = (record(state="requeued", requeued_at=timezone.now() - timedelta(hours=ago)) for ago in (2, 0))
        said = parked("discard", str(lost.pk), str(late.pk), "--category", "handled elsewhere", "--yes")

        assert "the state of 1 forbids it" in said.err
        assert "1 of these was requeued and has no outcome. A discard does not take its copy away" in said.err
        assert [ParkedMessage.objects.get(pk=one.pk).state for one in (lost, late)] == ["discarded", "requeued"]

    def test_a_dry_run_counts_what_would_be_discarded_and_names_how_many_would_not(self) -> None:
        numbers = [str(record(state=state).pk) for state in (State.PARKED, State.PROCESSED, State.REQUEUED)]
        told = parked("discard", *numbers, "--category", "test", "--dry-run")

        assert told.out.splitlines()[0] == "Discard 1 message."
        assert "Of the 3 chosen, the state of 2 forbids it: nothing is changed there." in told.err

    def test_a_message_changed_meanwhile_is_left_unchanged(self) -> None:
        one = record(state=State.REQUEUED)
        told = parked("discard", str(one.pk), "--category", "test")

        assert (told.code, "1 not changed: they changed meanwhile" in told.out) == (5, True)

    @pytest.mark.usefixtures("away")
    def test_an_edit_shows_the_difference_and_stores_a_version(self, tmp_path: Path) -> None:
        one = record(body=b'{"amount": 1.10}', content_type="application/json")
        (tmp_path / "new").write_text('{"amount": 11.00}')
        words = ("edit", str(one.pk), "--body-file", str(tmp_path / "new"))
        asked = parked(*words)
        done = parked(*words, "--yes", "--reason", "wrong amount")

        assert (asked.code, '-   "amount": 1.10\n+   "amount": 11.00' in asked.err) == (7, True)
        assert (done.code, again(one).version) == (0, 2)
        assert parked(*words, "--yes").code == 2

    @pytest.mark.usefixtures("away")
    def test_the_editor_receives_the_exact_body(self, monkeypatch: pytest.MonkeyPatch) -> None:
        one = record(body=b'{"amount": 1.10}')
        monkeypatch.setenv("VISUAL", "sed -i s/1.10/7/")
        parked("edit", str(one.pk), "--editor", "--yes", "--reason", "x")

        assert bytes(one.versions.get().body) == b'{"amount": 7}'

    @pytest.mark.usefixtures("away")
    @pytest.mark.parametrize(
        ("words", "after"),
        [
            (("--replace", "amount", ",", ".", "--as-number"), b'{"amount": 8.50, "to": "a=b"}'),
            (("--set", "amount=9.00"), b'{"amount": 9.00, "to": "a=b"}'),
            (("--remove", "to"), b'{"amount": "8,50"}'),
        ],
    )
    def test_one_change_by_path_is_shown_and_then_stored_for_all_that_it_fits(
        self, words: tuple[str, ...], after: bytes
    ) -> None:
        cause = group()
        fitting = [record(group=cause, body=b'{"amount": "8,50", "to": "a=b"}') for _ in range(2)]
        other = record(group=cause, body=b'{"sum": 1}')
        chosen = ("edit", "--group", str(cause.pk), *words)
        shown = parked(*chosen, "--dry-run")
        done = parked("edit", *words, "--selection", shown.out.split()[-1], "--yes", "--reason", "comma")

        assert f"#{other.pk} {other}  left out: It has no such path." in shown.err
        assert shown.out.startswith("Edit 2 messages, 1 left out.\n")
        assert again(fitting[0]).version == 2
        assert (done.code, done.out) == (0, "2 messages edited, 0 left out.\n")
        assert [bytes(one.versions.get().body) for one in fitting] == [after] * 2
        assert "--selection" in done.err

    @pytest.mark.usefixtures("away")
    def test_an_edit_by_path_names_what_it_left_out(self) -> None:
        cause = group()
        record(group=cause, body=b'{"amount": 1}')
        other = record(group=cause, body=b"text")
        told = parked("edit", "--group", str(cause.pk), "--set", "amount=2", "--yes", "--reason", "x", "--json")

        assert (told.code, told.data["edited"]) == (5, 1)
        assert told.data["left"] == [{"id": other.pk, "why": "Its body is not JSON."}]

    @pytest.mark.usefixtures("away")
    def test_an_edit_to_the_key_of_another_message_needs_an_option(self) -> None:
        @handler("payments.book", keys=lambda message: message.data["reference"])
        def book(message: Delivery) -> None:
            """Nothing."""

        paid = record(key="PAY-1", state=State.PROCESSED)
        one = record(key="PAY-2", queue="payments.book", body=b'{"reference": "PAY-2"}')
        words = ("edit", str(one.pk), "--set", 'reference="PAY-1"', "--yes", "--reason", "typing error")
        asked = parked(*words)
        done = parked(*words, "--same-key")
        back = parked("edit", str(one.pk), "--header", "a=b", "--yes", "--reason", "x")

        assert asked.code == 7
        assert "(business key PAY-2 → PAY-1)" in asked.err
        assert f"! PAY-1 is already a business key of message {paid.pk} (processed)." in asked.err
        assert "1 other message has the new business key already. Nothing was stored." in asked.err
        assert (done.code, back.code, again(one).business_key, again(one).version) == (0, 0, "PAY-1", 3)

    def test_an_edit_by_path_changes_nothing_in_a_type_that_may_not_be_edited(self) -> None:
        one = record(body=b'{"amount": 1}', type="ledger")
        told = parked("edit", str(one.pk), "--set", "amount=2", "--yes", "--reason", "x")

        assert (told.code, again(one).version) == (6, 1)
        assert "left out: This project does not allow messages of “ledger” to be edited" in told.err

    @pytest.mark.usefixtures("away")
    def test_an_edit_by_path_does_not_show_confidential_values(self) -> None:
        one = record(body=b'{"card": {"pan": "4111111111111111", "name": "Ann"}}')
        whole = parked("edit", str(one.pk), "--set", 'card={"pan": "424242424242"}', "--dry-run").err
        field = parked("edit", str(one.pk), "--set", "card.pan=424242424242", "--dry-run").err

        assert "Ann" in whole
        assert not {"4111111111111111", "424242424242"} & set(re.findall(r"[0-9]+", whole + field))

    @pytest.mark.usefixtures("away")
    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("--set", "amount"), "--set takes PATH=JSON, such as amount=8.50, not 'amount'."),
            (("--set", "amount=8,50"), "The new value must be JSON"),
            (("--set", "a..b=1"), "--set takes PATH=JSON"),
            (("--remove", "a..b"), "Enter a path"),
            (("--set", "a=1", "--as-number"), "--as-number takes --replace PATH OLD NEW"),
            (("--set", "a=1", "--header", "b=c"), "cannot be combined with a new body or header"),
            (("--set", "a=2"), "Pass --reason"),
        ],
    )
    def test_a_change_by_path_that_means_nothing_is_refused(self, words: tuple[str, ...], said: str) -> None:
        one = record(body=b'{"a": 1}')
        told = parked("edit", str(one.pk), *words, "--yes")

        assert (told.code, again(one).version) == (2, 1)
        assert said in told.err

    @pytest.mark.usefixtures("away")
    def test_a_whole_edit_takes_one_message(self) -> None:
        for _ in range(2):
            record()
        told = parked("edit", "--all", "--header", "a=b", "--yes", "--reason", "x")

        assert (told.code, "Pass one message, or a change by path for many" in told.err) == (2, True)
        assert parked("edit", "7", "--header", "a=b", "--yes", "--reason", "x").code == 6

    def test_an_erasure_shows_what_it_would_erase_and_is_confirmed(self, tmp_path: Path) -> None:
        one = record(key="CUST-1", state=State.DISCARDED, resolved_at=timezone.now())
        (tmp_path / "keys").write_text("CUST-1\n")
        shown = parked("erase", "--key", "CUST-1", "--dry-run")
        asked = parked("erase", "--key", "CUST-1", "--reason", "request 12")
        kept = bytes(again(one).body)
        done = parked("erase", "--keys-from", str(tmp_path / "keys"), "--yes", "--reason", "request 12")

        told = (
            "1 message, 0 edited versions, 0 attempts, the texts of 0 rows of the audit log and of 0 requeue runs, "
            "and 0 stored names"
        )
        assert (shown.code, shown.out) == (0, f"{told} would be erased.\n")
        assert (asked.code, kept != b"") == (7, True)
        assert (done.code, done.out) == (0, f"{told} erased.\n")
        assert "Copies on the broker, in the outbox, in logs and in backups are not reached." in done.err
        assert (bytes(again(one).body), parked("erase", "--key", "CUST-1", "--dry-run").code) == (b"", 6)
        assert f"#{one.pk}" in parked("show", str(one.pk)).out
        assert "Its contents were erased" in parked("show", str(one.pk)).out

    def test_an_erasure_that_cannot_be_done_says_why(self) -> None:
        record(key="CUST-1")

        assert parked("erase", "--yes", "--reason", "x").code == 2
        told = parked("erase", "--key", "CUST-1", "--yes", "--reason", "x")
        assert (told.code, "1 message is open or requeued" in told.err) == (2, True)
        assert parked("erase", "--key", "CUST-9", "--yes", "--reason", "x").code == 6

    def test_an_exported_message_is_imported_elsewhere(self, tmp_path: Path) -> None:
        record(body=b"\xff")
        (tmp_path / "out").write_text(parked("export", "--all", "--payload", "whole").out)
        ParkedMessage.objects.all().delete()
        told = parked("import", str(tmp_path / "out"))

        assert (told.code, told.out) == (0, "1 stored, 0 refused.\n")
        assert bytes(ParkedMessage.objects.get().body) == b"\xff"
        assert parked("import", "-", given=b"oops\n").code == 1
        assert parked("import", str(tmp_path / "none")).code == 2

    def test_a_purge_only_counts_until_it_is_confirmed(self) -> None:
        record(state=State.PROCESSED, resolved_at=timezone.now() - timedelta(days=91))
        counted = parked("purge", "--older-than", "90d")
        assert (counted.code, counted.out) == (0, "1 processed would be deleted. Pass --yes to delete.\n")
        deleted = parked("purge", "--older-than", "90d", "--yes")

        assert (deleted.out, ParkedMessage.objects.count()) == ("1 processed deleted.\n", 0)
        assert parked("purge", "--older-than", "90d", "--state", "parked").code == 2
