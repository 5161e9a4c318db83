"""A process that may be frozen with messages that others got since: woken, it does their work again."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_rmq_retry import Delivery, handler
from django_rmq_retry.health.facts import survey
from django_rmq_retry.health.problems import Limits, in_survey
from django_rmq_retry.health.processes import MAY_GO_ON_FOR, ProcessState, tidy_vanished
from django_rmq_retry.health.rules import Code, Problem, Severity
from django_rmq_retry.models import Attempt, ConsumerProcess
from django_rmq_retry.models.controls import IS_GONE
from django_rmq_retry.policies.verdict import ACK
from django_rmq_retry.testing import isolated_handlers
from tests.admin import made
from tests.admin.conftest import client_of
from tests.admin.looking import Page
from tests.commands.running import run

pytestmark = [pytest.mark.django_db, pytest.mark.database]
STATUS, CONSUMERS = "/admin/rmq_retry/livestatus/", "/admin/rmq_retry/consumerprocess/"


def frozen(*, seconds: float = 120, keys: Any = ("PAY-1",), **fields: Any) -> ConsumerProcess:
    """A process that fell silent with messages of these keys, whose ids are the same."""
    held = [made.in_flight(seconds=seconds + 9, key=key, message_id=key) for key in keys]
    return made.consumer(host="frozen", seconds=seconds, in_flight=held, **fields)


def heir(gone: ConsumerProcess, *keys: str, **fields: Any) -> ConsumerProcess:
    """A process that was started after that one fell silent, with messages of these keys."""
    held = [made.in_flight(key=key, message_id=key, **fields) for key in keys]
    return made.consumer(host="next", started_at=gone.beat_at + timedelta(seconds=9), in_flight=held)


def handled(key: str, gone: ConsumerProcess, verdict: str = ACK.name) -> None:
    made.tried_again(key, at=gone.beat_at + timedelta(seconds=40), verdict=verdict)


def told() -> list[Problem]:
    return [one for one in in_survey(survey(), Limits()) if one.code in (Code.VANISHED_IN_HAND, Code.VANISHED)]


def test_a_frozen_process_that_was_replaced_stays_red_while_others_have_its_messages(admin_user: Any) -> None:
    """systemd had started the next one, so it was grey, and Live status silent. Woken, it paid again."""
    heir(frozen(keys=["PAY-1", "PAY-2"]), "PAY-1")
    [found] = told()
    page = client_of(admin_user)
    shown, row = Page(page.get(STATUS)).text, Page(page.get(CONSUMERS)).text
    said = "1 consumer may be frozen with messages that others got since: frozen:4711 (2 min ago)."

    assert (found.code, found.severity, found.text) == (Code.VANISHED_IN_HAND, Severity.ERROR, said)
    assert found.why.startswith("Others have now (1): PAY-1. Whichever goes on does them again: ")
    assert said in shown
    assert said in row
    assert "frozen:4711 ✕ vanished" in row
    assert said.removesuffix(".") in run("rmq_status").out
    assert run("rmq_status", "--consumers").rows[1][:2] == ["frozen:4711", "✕ vanished"]


def test_it_stays_red_once_others_have_done_them(admin_user: Any) -> None:
    """The line was amber from then on, and the page said that nothing was left to do."""
    gone = frozen(keys=["PAY-1", "PAY-2", "PAY-3"])
    heir(gone, "PAY-3")
    handled("PAY-1", gone)
    handled("PAY-2", gone, "retry")
    [found] = told()
    row = Page(client_of(admin_user).get(CONSUMERS)).text

    assert found.severity is Severity.ERROR
    assert found.why.startswith("Others have now (1): PAY-3. Others have handled since (2): PAY-1, PAY-2. ")
    assert "If it hangs, end it before it goes on" in row
    assert "was processed since;" not in row


def test_a_message_that_another_one_has_in_quarantine_is_the_same() -> None:
    """It is tried alone there because its process was taken for dead: the names of the two queues differ."""
    heir(frozen(), "PAY-1", queue="payments.main.quarantine")

    assert [one.code for one in told()] == [Code.VANISHED_IN_HAND]


def test_one_that_finishes_its_messages_before_it_stops_has_them_too() -> None:
    gone = frozen()
    made.consumer(host="other")
    made.consumer(host="last", stopping=True, in_flight=[made.in_flight(message_id="PAY-1")])

    assert [one.causes for one in told()] == [(str(gone),)]


@pytest.mark.parametrize(
    "fields",
    [
        {"ended_at": timezone.now(), "fault": "exit 1: it hung", "stopping": True},
        {"stopping": True},
        {"seconds": MAY_GO_ON_FOR.total_seconds() + 5},
    ],
    ids=["ended", "told to end", "an hour ago"],
)
def test_a_replaced_process_that_does_nothing_again_is_no_finding(fields: dict[str, Any]) -> None:
    gone = frozen(**fields)
    heir(gone, "PAY-1")
    handled("PAY-1", gone)

    assert told() == []


@pytest.mark.parametrize(("began", "said"), [(100, True), (40, False), (10, False)], ids=["before", "as it", "later"])
def test_one_that_goes_on_with_what_another_has_handled_since_is_red(
    admin_user: Any, began: int, *, said: bool
) -> None:
    """Woken, it looked healthy: "running", no finding, and paid again 45 seconds later."""
    held = [made.in_flight(seconds=began, key="PAY-1", message_id="PAY-1")]
    made.consumer(host="woken", started_at=timezone.now() - timedelta(hours=1), in_flight=held)
    made.tried_again("PAY-1", at=timezone.now() - timedelta(seconds=40), verdict=ACK.name)
    found = [one for one in in_survey(survey(), Limits()) if one.code is Code.STILL_AT_IT]
    text = "1 message is still in a handler, and another consumer has handled it meanwhile: PAY-1 (woken:4711)."

    assert [(one.severity, one.text) for one in found] == [(Severity.ERROR, text)] * said
    assert (text in Page(client_of(admin_user).get(STATUS)).text) is said
    assert (text in Page(client_of(admin_user).get(CONSUMERS)).text) is said
    assert (text.removesuffix(".") in run("rmq_status").out) is said
    assert (text in run("rmq_status", "--consumers").out) is said
    assert ("woken:4711 still has it in a handler" in run("rmq_parked", "list", "--handled-again").out) is said
    assert ("✕ In a handler on woken:4711" in Page(client_of(admin_user).get(f"{STATUS}handled_again/")).text) is said


def test_one_that_was_not_heard_of_since_another_got_its_message_is_not_said_to_go_on() -> None:
    """Until it counted as vanished, a stopped process "goes on", and so did one whose container had been killed."""
    held = [made.in_flight(seconds=100, key="PAY-1", message_id="PAY-1")]
    hour = timezone.now() - timedelta(hours=1)
    stopped = made.consumer(host="stopped", started_at=hour, seconds=25, in_flight=held)
    made.tried_again("PAY-1", at=timezone.now() - timedelta(seconds=5), verdict=ACK.name)
    still = [one.code for one in in_survey(survey(), Limits())]
    stopped.beat_at = timezone.now()
    stopped.save()
    woken = [one.code for one in in_survey(survey(), Limits())]

    assert (Code.STILL_AT_IT in still, Code.STILL_AT_IT in woken) == (False, True)


@pytest.mark.parametrize("finished", [True, False], ids=["handled", "in a handler"])
def test_what_it_began_after_its_last_heartbeat_counts_once_others_have_it(admin_user: Any, *, finished: bool) -> None:
    """In a container its end is not known: all was "processed since", in grey, and woken it paid a batch again."""
    gone = frozen(keys=["PAY-1"])
    heir(gone, *([] if finished else ["PAY-2"]), again=True)
    handled("PAY-1", gone)
    if finished:
        handled("PAY-2", gone, "retry")
    [found] = told()
    row = Page(client_of(admin_user).get(CONSUMERS)).text

    assert (found.code, found.severity) == (Code.VANISHED_IN_HAND, Severity.ERROR)
    assert "Others have got since, perhaps from such a consumer (1): PAY-2. Whichever goes on does" in found.why
    assert "frozen:4711 ✕ vanished" in row
    assert "was processed since;" not in row


def test_one_that_had_nothing_at_its_last_heartbeat_stays_red_for_an_hour_once_its_queue_delivers_again() -> None:
    gone = frozen(keys=(), seconds=MAY_GO_ON_FOR.total_seconds() - 60)
    heir(gone)
    before = told()
    handled("PAY-1", gone)
    tidy_vanished()
    [found] = told()

    assert (before, found.causes) == ([], ("frozen:4711",))
    assert found.why.startswith("Others have got since, perhaps from such a consumer (1): PAY-1. Whichever goes on ")


def test_what_another_queue_delivers_again_is_no_finding() -> None:
    gone = frozen(keys=())
    heir(gone)
    handled("MAIL-1", gone)
    Attempt.objects.update(queue="mail")

    assert told() == []


def test_what_handlers_with_once_do_again_is_no_finding() -> None:
    with isolated_handlers():

        @handler("payments.main", once=True, name="transfer")
        def transfer(payment: Delivery) -> None:
            """Nothing."""

        gone = frozen(keys=())
        heir(gone, "PAY-2", again=True)
        handled("PAY-1", gone)
        Attempt.objects.update(handler="transfer")

        assert told() == []


def test_what_is_in_its_queue_again_is_no_finding_of_a_replaced_process() -> None:
    """Most are killed, and the next one will take it: the finding comes with that."""
    heir(frozen())

    assert told() == []


def test_it_is_told_also_after_those_that_took_its_messages_were_killed() -> None:
    gone = frozen(seconds=300)
    handled("PAY-1", gone)
    made.consumer(host="next", seconds=100, started_at=gone.beat_at + timedelta(seconds=9))

    assert [one.code.name for one in told()] == ["VANISHED_IN_HAND", "VANISHED"]
    first = run("rmq_status").out
    assert "may be frozen with messages that others got since: frozen:4711" in first


def test_others_that_vanished_are_a_finding_of_their_own() -> None:
    gone = frozen()
    heir(gone, "PAY-1")
    made.consumer(host="dead", seconds=100, queues=["other"])
    in_hand, other = sorted(told(), key=lambda one: one.harm)

    assert (in_hand.text.count("frozen:4711"), in_hand.text.count("dead:4711")) == (1, 0)
    assert (other.text.count("frozen:4711"), other.text.count("dead:4711")) == (0, 1)


@pytest.mark.parametrize(("machine", "codes"), [("boot/1", [Code.VANISHED]), ("boot/2", [])], ids=["this", "another"])
def test_one_that_still_exists_is_never_replaced(admin_user: Any, machine: str, codes: list[Code]) -> None:
    """What it had begun after its last heartbeat nobody knew, so it was grey: woken, it paid four again."""
    gone = frozen(keys=(), place="boot/1/7")
    heir(gone, "PAY-1")
    ConsumerProcess.objects.exclude(pk=gone.pk).update(place=f"{machine}/8")

    shown = Page(client_of(admin_user).get(CONSUMERS)).text

    assert [one.code for one in told()] == codes
    # Two consumers that read its queues stood below "No other consumer reads all its queues".
    assert ("It still exists: it is frozen, or does not reach the database" in shown) is bool(codes)
    assert "No other consumer reads all its queues" not in shown


def test_one_that_still_exists_is_no_part_of_a_crash_loop_of_others() -> None:
    """Three had been killed before, and the frozen one was the fourth that died "again and again"."""
    place, beat = "boot/4026531836/{}", timezone.now() - timedelta(minutes=8, seconds=40)
    killed: dict[str, Any] = {"fault": IS_GONE, "stopping": True}
    for number in range(3):
        born = beat + timedelta(seconds=9)
        times: dict[str, Any] = {"started_at": born, "beat_at": born + timedelta(minutes=2)}
        beat = made.consumer(**times, place=place.format(number), ended_at=times["beat_at"], **killed).beat_at
    gone = frozen(started_at=beat + timedelta(seconds=9), place=place.format(7))
    next_one = heir(gone, "PAY-1")
    elsewhere = [one.code for one in in_survey(survey(), Limits()) if one.count == 4]
    ConsumerProcess.objects.filter(pk=next_one.pk).update(place=place.format(8))
    found = {one.code: one for one in in_survey(survey(), Limits())}

    assert elsewhere == [Code.CRASH_LOOP]
    assert found[Code.VANISHED_IN_HAND].causes == ("frozen:4711",)
    assert found[Code.CRASH_LOOP].count == 3


def test_what_is_noted_of_the_row_does_not_end_it() -> None:
    gone = frozen()
    heir(gone, "PAY-1")
    tidy_vanished()
    gone.refresh_from_db()

    assert gone.replaced
    assert [one.code for one in told()] == [Code.VANISHED_IN_HAND]
    assert survey().overtaken[0].state is ProcessState.VANISHED
