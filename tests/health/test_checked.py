"""An operator who has checked a doubt says so once, with a reason: nobody is told of it again."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_rmq_retry.health.doubts import CHECKABLE, LOOPS, check, doubted, doubts_of, end_doubts
from django_rmq_retry.health.facts import survey
from django_rmq_retry.health.problems import Limits, in_survey
from django_rmq_retry.health.rules import Code, Problem
from django_rmq_retry.models import (
    Action,
    AttemptName,
    AuditHead,
    ConsumerProcess,
    EarlyRetry,
    OperatorAction,
    ParkedMessage,
    RequeueItem,
    RequeueRun,
)
from django_rmq_retry.models.controls import IS_GONE
from django_rmq_retry.models.parked import folded
from django_rmq_retry.parked import checked
from django_rmq_retry.parked.audit import verify
from django_rmq_retry.parked.erasure import erase
from django_rmq_retry.parked.operators import Outdated
from tests.admin import made
from tests.admin.conftest import client_of, operating
from tests.admin.looking import Page, press
from tests.commands.running import run
from tests.health.test_frozen import frozen, heir
from tests.health.test_perhaps_twice import handled
from tests.operators.made import ANN, record

pytestmark = [pytest.mark.django_db, pytest.mark.database]
STATUS, LIST = "/admin/rmq_retry/livestatus/", "/admin/rmq_retry/livestatus/handled_again/"
AUDIT, MESSAGES = "/admin/rmq_retry/operatoraction/", "/admin/rmq_retry/parkedmessage/"
CONSUMERS, RUNS = "/admin/rmq_retry/consumerprocess/", "/admin/rmq_retry/requeuerun/"
COMMAND = r"manage\.py (rmq_parked checked [A-Z_]+( --run 7)?) lists them; once you .+, add --reason TEXT"
GONE = "Nothing was changed: this finding has ended, is another one now, or somebody has checked it."
AGAIN = f"{STATUS}checked/?code=PERHAPS_TWICE"


def told(*codes: Code) -> list[str]:
    return [one.text for one in in_survey(survey(), Limits()) if one.code in codes]


def perhaps() -> list[str]:
    return told(Code.PERHAPS_TWICE)


@pytest.fixture
def doubtful() -> None:
    """Two messages that a killed worker had."""
    made.consumer(seconds=600)
    for number in (1, 2):
        handled(f"9f3c-{number}", minutes=3 - number)


@pytest.fixture
def page(admin_user: Any) -> Client:
    return client_of(admin_user)


def run_with(**doubts: Any) -> RequeueRun:
    begun = timezone.now() - timedelta(minutes=10)
    times = {"created_at": begun, "started_at": begun, "finished_at": timezone.now() - timedelta(minutes=1)}
    return RequeueRun.objects.create(**times, by="ann", state="finished", total=400, sent=400, **doubts)


@pytest.mark.usefixtures("doubtful")
def test_whoever_has_checked_says_so_once_and_the_finding_goes_until_something_new_comes(page: Client) -> None:
    """It stayed for a day whatever the operator did, so people learned to overlook the next one."""
    asked = page.get(Page(page.get(STATUS)).links["Checked…"])
    without = press(page, asked, "The ticked ones were checked", reason=" ")
    done = Page(press(page, asked, "The ticked ones were checked", reason="both paid once: INC-7"))
    [act] = OperatorAction.objects.all()
    after, listed = perhaps(), Page(page.get(LIST)).text
    entry = Page(page.get(f"/admin/rmq_retry/operatoraction/{act.pk}/change/"))
    handled("9f3c-3", minutes=8)

    assert "2 messages were perhaps handled twice" in Page(asked).text
    assert (without.status_code, "Enter a reason" in Page(without).text) == (422, True)
    assert "This is in the audit log, with your reason." in done.text
    assert after == []
    assert "9f3c-1" in listed
    assert (act.action, act.actor_name, act.reason, act.count) == (Action.CHECK, "admin", "both paid once: INC-7", 2)
    assert "Subject Perhaps handled twice: 9f3c-1, 9f3c-2 " in entry.text
    assert "What was checked 9f3c-1 9f3c-2 " in entry.text
    assert entry.links["9f3c-1"] == "/admin/rmq_retry/parkedmessage/?state=all&q=9f3c-1"
    assert perhaps() == ["1 message was perhaps handled twice, 8 min ago: 9f3c-3."]
    assert list(verify()) == []


def test_a_dead_consumer_is_over_once_its_doubts_were_checked(page: Client) -> None:
    """It stood among those that run for a day after an operator had found that nobody was paid twice."""
    entries = [made.in_flight(seconds=610, message_id="9f3c-1", key="PAY-1")]
    noted: dict[str, Any] = {"ended_at": timezone.now() - timedelta(seconds=590), "fault": IS_GONE, "stopping": True}
    gone = made.consumer(seconds=600, in_flight=entries, **noted)
    made.consumer(host="next", started_at=gone.beat_at + timedelta(seconds=9))
    handled("9f3c-1", minutes=3)
    before = Page(page.get(CONSUMERS)).text
    press(page, page.get(AGAIN), "All of this was checked", reason="paid once: INC-7")
    after = Page(page.get(CONSUMERS)).text

    assert ("perhaps done twice" in before, "is over" in before) == (True, False)
    assert ("perhaps done twice" in after, "1 that ended or vanished is over" in after) == (False, True)


@pytest.mark.usefixtures("doubtful")
def test_what_comes_while_an_operator_reads_is_not_checked(page: Client) -> None:
    asked = page.get(AGAIN)
    handled("9f3c-3", minutes=8)
    again = press(page, asked, "The ticked ones were checked", reason="INC-7")
    nothing = OperatorAction.objects.count()
    press(page, again, "The ticked ones were checked", reason="INC-7")

    assert (again.status_code, nothing) == (422, 0)
    assert "the finding is not the one that you have seen" in Page(again).text
    assert "9f3c-3" in Page(again).text
    assert perhaps() == ["1 message was perhaps handled twice, 8 min ago: 9f3c-3."]


def many_in_doubt(code: Code) -> None:
    """Three with this finding: 9f3c-1 to 9f3c-3, the records PAY-1 to PAY-3, or frozen:1 to frozen:3."""
    now = timezone.now()
    if code in (Code.PERHAPS_TWICE, Code.DONE_TWICE):
        made.consumer(seconds=900)
    for number in (1, 2, 3):
        if code is Code.VANISHED_IN_HAND:
            gone = frozen(keys=(f"PAY-{number}",), pid=number)
            heir(gone, f"PAY-{number}")
            # It is heard of for as long as the pages of the test need.
            ConsumerProcess.objects.filter(host="next").update(beat_at=now + timedelta(minutes=5))
        elif code is Code.HANDLED_ANYWAY:
            times: dict[str, Any] = {
                "resolved_at": now - timedelta(hours=2),
                "succeeded_at": now - timedelta(minutes=number),
            }
            made.message(business_key=f"PAY-{number}", state="discarded", **times)
        else:
            handled(f"9f3c-{number}", minutes=number)
            if code is Code.DONE_TWICE:
                handled(f"9f3c-{number}", minutes=number + 5)


NAMES = [
    (Code.PERHAPS_TWICE, "9f3c-2"),
    (Code.DONE_TWICE, "9f3c-2"),
    (Code.HANDLED_ANYWAY, "PAY-2"),
    (Code.VANISHED_IN_HAND, "frozen:2"),
]


@pytest.mark.parametrize(("code", "name"), NAMES, ids=[one.name for one, _name in NAMES])
def test_who_has_checked_one_of_three_signs_that_one_and_the_others_stay_a_finding(
    page: Client, code: Code, name: str
) -> None:
    """Three of twelve were verified at the bank, and only all twelve could be signed."""
    many_in_doubt(code)
    asked = page.get(f"{STATUS}checked/?code={code.name}")
    each = {one.name: one.mark for one in doubted(doubts_of(code.name)[""])}
    ticked = Page(asked).form_with("The ticked ones ")[1]["tick"]
    nothing = page.get(Page(asked).links["Untick all"])
    refused = press(page, nothing, "The ticked ones ", reason="INC-7")
    press(page, asked, "The ticked ones ", reason="INC-7", tick=[each[name]])
    left = {one.name for one in doubted(doubts_of(code.name)[""])}
    [act] = OperatorAction.objects.all()
    other = min(left)
    signed = run("rmq_parked", "checked", code.name, "--only", other, "--reason", "INC-8", "--yes")

    assert sorted(ticked) == sorted(each.values())
    assert (refused.status_code, "Tick what you have checked." in Page(refused).text) == (422, True)
    assert left == each.keys() - {name}
    assert (act.count, act.subject) == (1, name)
    assert run("rmq_audit", "list", "--message", name).code == (6 if code is Code.VANISHED_IN_HAND else 0)
    assert signed.code == 0
    assert {one.name for one in doubted(doubts_of(code.name)[""])} == left - {other}
    assert list(verify()) == []


def test_a_run_is_checked_as_a_whole_and_its_page_says_so(page: Client) -> None:
    known = of_run(2)
    asked = Page(page.get(f"{STATUS}checked/?code=RUN_PERHAPS_TWICE&run={known.pk}"))
    told = run("rmq_parked", "checked", "RUN_PERHAPS_TWICE", "--only", "PAY-1", "--reason", "INC-7", "--yes")

    assert "A requeue run is checked as a whole." in asked.text
    assert "tick" not in asked.form_with("All of this was checked")[1]
    assert (told.code, "A requeue run or a crash loop is checked as a whole, without --only." in told.err) == (2, True)
    assert not OperatorAction.objects.exists()


@pytest.mark.usefixtures("doubtful")
def test_the_command_says_how_to_sign_some_and_refuses_a_name_that_is_not_among_them() -> None:
    shown = run("rmq_parked", "checked", "PERHAPS_TWICE")
    some = run("rmq_parked", "checked", "PERHAPS_TWICE", "--only", "9f3c-1")
    wrong = run("rmq_parked", "checked", "PERHAPS_TWICE", "--only", "9f3c-7", "--reason", "INC-7", "--yes")

    assert shown.err.endswith("Of some of it: add --only NAME for each; the rest stays a finding.\n")
    assert [line[0] for line in some.lines[1:]] == ["9f3c-1"]
    assert some.err.endswith("manage.py rmq_parked checked PERHAPS_TWICE --only 9f3c-1 --reason TEXT\n")
    assert (wrong.code, "9f3c-7 is not among them" in wrong.err, len(perhaps())) == (2, True, 1)


@pytest.mark.usefixtures("doubtful")
def test_of_two_people_who_say_it_the_second_one_is_told(page: Client) -> None:
    asked = page.get(AGAIN)
    found = doubts_of("PERHAPS_TWICE")[""]
    check(found, ANN, reason="INC-7")
    second = Page(press(page, asked, "The ticked ones were checked", reason="INC-7"))

    assert GONE in second.text
    with pytest.raises(Outdated):
        check(found, ANN, reason="INC-7")
    assert [one.actor_name for one in OperatorAction.objects.all()] == ["ann"]


@pytest.mark.usefixtures("doubtful")
def test_without_the_permission_to_discard_there_is_no_button() -> None:
    page = client_of(made.person("viewer", "view_livestatus"))

    assert "Checked…" not in Page(page.get(STATUS)).links
    assert [page.get(AGAIN).status_code, page.post(AGAIN, {"code": "PERHAPS_TWICE", "reason": "x"}).status_code] == [
        403,
        403,
    ]
    assert perhaps()


@pytest.mark.parametrize("code", ["", "NONE_ALIVE", "<script>alert(1)</script>", "PERHAPS_TWICE&run=1", "\0"])
def test_an_address_with_another_code_does_nothing(page: Client, code: str) -> None:
    made.consumer(seconds=600)
    handled("9f3c-1", minutes=1)
    answer = page.get(f"{STATUS}checked/", {"code": code}, follow=True)

    assert GONE in Page(answer).text
    assert b"alert(1)" not in answer.content
    assert perhaps()


def test_a_message_that_turns_out_to_be_done_twice_is_told_again(doubtful: None) -> None:  # noqa: ARG001 - what there is
    check(doubts_of("PERHAPS_TWICE")[""], ANN, reason="INC-7")
    made.tried_again("9f3c-1", at=timezone.now() - timedelta(minutes=1), verdict="ack")
    said = "1 message was handled twice, the last time 59 s ago: 9f3c-1."

    assert told(Code.DONE_TWICE, Code.PERHAPS_TWICE) == [said]


def test_a_run_is_told_again_once_it_counts_more(page: Client) -> None:
    made.consumer(seconds=300)
    first, other = run_with(perhaps_twice=4), run_with(handled_twice=2)
    both = (Code.RUN_PERHAPS_TWICE, Code.HANDLED_TWICE)
    asked = page.get(f"{STATUS}checked/?code=RUN_PERHAPS_TWICE&run={first.pk}")
    press(page, asked, "All of this was checked", reason="INC-7")
    left = told(*both)
    RequeueRun.objects.filter(pk=first.pk).update(perhaps_twice=5)

    assert left == [f"Requeue run {other.pk}: at least 2 messages were handled twice."]
    assert told(*both)[0] == f"Requeue run {first.pk}: 5 messages were perhaps handled twice."
    assert OperatorAction.objects.get().run == first.pk


def test_a_message_that_was_handled_after_its_discard_is_checked_alone() -> None:
    now = timezone.now()
    first, second = (
        made.message(state="discarded", resolved_at=now - timedelta(hours=2), succeeded_at=now - timedelta(minutes=ago))
        for ago in (9, 5)
    )
    type(first).objects.filter(pk=second.pk).update(succeeded_at=None)
    check(doubts_of("HANDLED_ANYWAY")[""], ANN, reason="INC-7")
    left = told(Code.HANDLED_ANYWAY)
    type(first).objects.filter(pk=second.pk).update(succeeded_at=now - timedelta(minutes=5))

    assert left == []
    assert told(Code.HANDLED_ANYWAY) == [f"Message #{second.pk} was handled after an operator had discarded it."]
    assert OperatorAction.objects.get().message == first.pk


def test_an_operator_who_has_ended_a_frozen_process_says_so(page: Client) -> None:
    """Nothing an operator did ended the red line, so each killed container was a red hour."""
    gone = frozen()
    heir(gone, "PAY-1")
    asked = page.get(Page(page.get(STATUS)).links["It has ended…"])
    press(page, asked, "The process has ended", reason="its pod is deleted")
    gone.refresh_from_db()
    [act] = OperatorAction.objects.all()

    assert told(Code.VANISHED_IN_HAND) == []
    assert (gone.ended_by, gone.stopping, bool(gone.ended_at)) == ("admin", True, True)
    assert (act.subject, act.reason, act.messages) == ("frozen:4711", "its pod is deleted", None)
    assert ": as admin says" in Page(page.get(CONSUMERS)).text
    assert "Process has ended: frozen:4711" in Page(page.get(AUDIT)).text


def test_a_process_that_was_heard_of_since_is_not_said_to_have_ended() -> None:
    gone = frozen()
    heir(gone, "PAY-1")
    found = doubts_of("VANISHED_IN_HAND")[""]
    type(gone).objects.filter(pk=gone.pk).update(beat_at=timezone.now() - timedelta(seconds=40))

    with pytest.raises(Outdated):
        check(found, ANN, reason="INC-7")
    gone.refresh_from_db()
    assert gone.ended_at is None
    assert told(Code.VANISHED_IN_HAND)


@pytest.mark.usefixtures("doubtful")
def test_one_command_shows_what_is_in_doubt_says_how_to_end_it_and_asks() -> None:
    """It was two commands in a line, of which the second signed what nobody had seen."""
    [fix] = [one.fix for one in in_survey(survey(), Limits()) if one.code is Code.PERHAPS_TWICE]
    shown = run(*str(re.sub(COMMAND, r"\1", fix)).split())
    hint = next(line for line in run("rmq_status").out.splitlines() if "parked checked" in line)
    unsure = run("rmq_parked", "checked", "PERHAPS_TWICE", "--reason", "INC-7")
    kept = perhaps()
    listed = run("rmq_parked", "checked", "PERHAPS_TWICE", "--json").data["items"]
    done = run("rmq_parked", "checked", "PERHAPS_TWICE", "--reason", "INC-7", "--yes")
    nothing = run("rmq_parked", "checked", "PERHAPS_TWICE", "--reason", "INC-7", "--yes")

    assert [line[:3] for line in shown.lines[1:]] == [
        ["9f3c-1", "-", "perhaps handled twice"],
        ["9f3c-2", "-", "perhaps handled twice"],
    ]
    assert "manage.py rmq_parked checked PERHAPS_TWICE --reason TEXT\n" in shown.err
    assert [(one["name"], one["record"]) for one in listed] == [("9f3c-1", None), ("9f3c-2", None)]
    assert "2 messages were perhaps handled twice" in unsure.err
    assert hint.index("lists them") < hint.index("--reason TEXT")
    assert (shown.code, unsure.code, bool(kept)) == (0, 7, True)
    assert (done.code, nothing.code, perhaps()) == (0, 6, [])
    assert "There is no such finding." in nothing.err


def test_the_hint_of_each_of_these_findings_first_lists_and_then_says_how_to_sign() -> None:
    assert [one.name for one in CHECKABLE if not re.search(f"{COMMAND}$", Problem(code=one, subject="7").fix)] == []


@pytest.mark.parametrize("name", ["9f3c-1", "PAY-1"])
def test_a_check_is_found_by_each_message_that_it_names(page: Client, name: str) -> None:
    """It named a code: of a payment nobody could find out who had looked into it."""
    made.consumer(seconds=600)
    handled("9f3c-1", minutes=2)
    AttemptName.objects.create(identity="message:9f3c-1", value="PAY-1", folded=folded("PAY-1"), at=timezone.now())
    press(page, page.get(AGAIN), "All of this was checked", reason="paid once: INC-7")
    found = Page(page.get(MESSAGES, {"q": name, "state": "all"}))
    listed = run("rmq_audit", "list", "--message", name)
    told = run("rmq_parked", "show", name)

    assert "Perhaps handled twice: PAY-1" in Page(page.get(AUDIT, {"q": name})).text
    assert [line[3:] for line in listed.lines[1:]] == [
        ["check", "1", "perhaps handled twice: PAY-1", "paid once: INC-7"]
    ]
    assert re.search(r"Checked by admin at [\d:]+ \(paid once: INC-7\)", found.text)
    assert re.search(rf"^Checked by admin at [\d:]+ [A-Z]+ \(paid once: INC-7\): {name}$", told.err, re.MULTILINE)


def test_whoever_signs_sees_all_of_it(page: Client) -> None:
    """The page named three of a hundred, and who signed could not see the others."""
    made.consumer(seconds=600)
    for number in range(5):
        handled(f"9f3c-{number}", minutes=5 - number)
    asked = Page(page.get(AGAIN))
    press(page, page.get(AGAIN), "The ticked ones were checked", reason="INC-7")
    act = OperatorAction.objects.get()

    assert "This is about 5 messages" in asked.text
    assert [f"9f3c-{number}" in asked.links for number in range(5)] == [True] * 5
    assert asked.links["9f3c-0"] == f"{MESSAGES}?q=9f3c-0"
    assert asked.links["What is known of each"] == LIST
    assert act.facts["names"] == [f"9f3c-{number}" for number in range(5)]
    assert act.subject == "9f3c-0, 9f3c-1, 9f3c-2, …"


def test_the_page_of_a_check_names_each_message_also_one_with_a_record(page: Client) -> None:
    """Of five payments it named three, and of the others only their record numbers."""
    made.consumer(seconds=600)
    times: dict[str, Any] = {"resolved_at": timezone.now() - timedelta(hours=2), "succeeded_at": timezone.now()}
    for number in range(5):
        made.message(business_key=f"PAY-{number}", state="discarded", **times)
    check(doubts_of("HANDLED_ANYWAY")[""], ANN, reason="INC-7")
    act = Page(page.get(f"{AUDIT}{OperatorAction.objects.get().pk}/change/"))
    erase(["PAY-4"], ANN, reason="asked for")
    erased = Page(page.get(f"{AUDIT}{OperatorAction.objects.earliest('pk').pk}/change/"))

    assert [act.links.get(f"PAY-{number}") for number in range(5)] == [
        f"{MESSAGES}?state=all&q=PAY-{number}" for number in range(5)
    ]
    assert ("PAY-4" in act.text, "PAY-4" in erased.text) == (True, False)


def of_run(number: int, **fields: Any) -> RequeueRun:
    """A run of so many messages that were perhaps handled twice, after one that was not, with records."""
    known, ago = run_with(perhaps_twice=number), timezone.now() - timedelta(minutes=2)
    times = {"sent_at": ago, "ended_at": ago, "state": "processed", "handled": 1, "revision": 1}
    for place in range(number + 1):
        message = record(key=f"PAY-{place}", state="processed", resolved_at=ago, succeeded_at=ago)
        RequeueItem.objects.create(run=known, message=message, place=place, redelivered=bool(place), **times, **fields)
    made.consumer(seconds=300, queues=["payments.main", message.queue])
    return known


def badges(page: Client) -> list[str]:
    """The kinds of the badges of the only run, in the list and on its page."""
    pages = (page.get(address).content.decode() for address in (RUNS, f"{RUNS}{RequeueRun.objects.get().pk}/change/"))
    return [re.findall(r'rmq-badge rmq-is-([a-z-]+)"', one)[0] for one in pages]


def test_of_a_run_its_doubtful_messages_are_checked_and_its_page_says_who_did(page: Client) -> None:
    """Neither the run nor its messages said it, so the next one looked into them again."""
    known = of_run(2)
    asked = page.get(f"{STATUS}checked/?code=RUN_PERHAPS_TWICE&run={known.pk}")
    RequeueRun.objects.filter(pk=known.pk).update(processed=known.sent)
    before = badges(page)
    press(page, asked, "All of this was checked", reason="both paid once")
    after = Page(page.get(f"{RUNS}{known.pk}/change/")).text
    texts = [Page(page.get(f"{MESSAGES}{item.message_id}/change/")).text for item in known.items.order_by("place")]
    shown = [run("rmq_parked", "show", f"PAY-{place}").out for place in range(3)]
    listed = [run("rmq_audit", "list", "--message", f"PAY-{place}", "--action", "check").code for place in range(3)]
    checked = badges(page)
    RequeueRun.objects.filter(pk=known.pk).update(perhaps_twice=3)
    later, again = Page(page.get(f"{RUNS}{known.pk}/change/")).text, badges(page)
    said = r"✓ Checked by admin, [\d :-]+: both paid once"

    assert [name in Page(asked).links for name in ("PAY-0", "PAY-1", "PAY-2")] == [False, True, True]
    assert (before, checked, again) == (["mixed", "mixed"], ["finished", "finished"], ["mixed", "mixed"])
    assert re.search(said, after)
    assert ("More came since, which is not checked." in after, "More came since" in later) == (False, True)
    assert [bool(re.search(f"{said} \\(perhaps handled twice\\)", text)) for text in texts] == [False, True, True]
    assert ["● Checked by admin perhaps handled twice · both paid once" in text for text in texts] == [
        False,
        True,
        True,
    ]
    assert [bool(re.search(r"Checked by admin at [\d:]+ [A-Z]+ \(both paid once\)\.", out)) for out in shown] == [
        False,
        True,
        True,
    ]
    assert listed == [6, 0, 0]


def test_the_form_says_who_had_begun_a_message_and_leads_to_what_is_known_of_each(page: Client) -> None:
    """It listed ten equal rows, and led to the page of the run, which lists none of them."""
    known = of_run(2)
    first = ParkedMessage.objects.get(business_key="PAY-1")
    made.consumer(seconds=200, pid=9, in_flight=[made.in_flight(message_id=first.message_id, queue=first.queue)])
    made.consumer(seconds=200, pid=8, in_flight=[made.in_flight(message_id="9f3c-1")])
    handled("9f3c-1", minutes=1)
    asked = Page(page.get(f"{STATUS}checked/?code=RUN_PERHAPS_TWICE&run={known.pk}"))

    assert asked.links["What is known of each"] == f"{RUNS}{known.pk}/outcomes/?of=perhaps_twice"
    assert asked.text.count("had begun it") == 1
    assert asked.text.index("PAY-1") < asked.text.index("worker-3:9 had begun it at ")
    assert "worker-3:8 had begun it at " in Page(page.get(AGAIN)).text


def test_what_a_consumer_had_begun_is_told_from_what_it_was_only_given_worst_first(page: Client) -> None:
    """ "2 more were given to such a consumer, which may not have begun them": table and page had eight equal rows."""
    known = of_run(2)
    begun = ParkedMessage.objects.get(business_key="PAY-2")
    made.consumer(seconds=200, pid=9, in_flight=[made.in_flight(message_id=begun.message_id, queue=begun.queue)])
    made.consumer(seconds=300, pid=8, in_flight=[made.in_flight(message_id="9f3c-1")])
    for number in (1, 2):
        handled(f"9f3c-{number}", minutes=3 - number)
    of_a_run = ("RUN_PERHAPS_TWICE", "--run", str(known.pk))
    texts = [Page(page.get(address)).text for address in (AGAIN, f"{STATUS}checked/?code={of_a_run[0]}&run={known.pk}")]
    tables = [run("rmq_parked", "checked", *words).lines[1:] for words in (["PERHAPS_TWICE"], of_a_run)]
    data = run("rmq_parked", "checked", "PERHAPS_TWICE", "--json").data["items"]

    for text, first, last, process in (
        (texts[0], "9f3c-1 Handled", "9f3c-2 Handled", "worker-3:8"),
        (texts[1], "PAY-2 Handled", "PAY-1 Handled", "worker-3:9"),
    ):
        places = [text.index(word) for word in (first, f"{process} had begun it at ", last, "may not have begun it.")]
        assert places == sorted(places)
        assert text.count("The first consumer may not have begun it.") == 1
    assert [[(line[0], line[4]) for line in lines] for lines in tables] == [
        [("9f3c-1", "worker-3:8 had begun it"), ("9f3c-2", "may not have begun it")],
        [("PAY-2", "worker-3:9 had begun it"), ("PAY-1", "may not have begun it")],
    ]
    assert [(one["name"], [each["process"] for each in one["begun"]]) for one in data] == [
        ("9f3c-1", ["worker-3:8"]),
        ("9f3c-2", []),
    ]


def test_a_check_of_waiting_retries_is_found_by_their_keys(page: Client) -> None:
    """They have no records, so nothing but their run led to it."""
    made.consumer(seconds=300)
    known, now = run_with(handled_twice=1, perhaps_twice=1, retries_of="payments.main"), timezone.now()
    for number in (1, 2):
        names = {"identity": f"message:9f3c-{number}", "shown": f"PAY-{number}"}
        more = {"state": "processed", "handled": number, "redelivered": True, "sent_at": now}
        EarlyRetry.objects.create(run=known, **names, **more)
    asked = page.get(f"{STATUS}checked/?code=HANDLED_TWICE&run={known.pk}")
    press(page, asked, "All of this was checked", reason="INC-7")
    found = [run("rmq_audit", "list", "--message", f"PAY-{number}").lines[1:] for number in (1, 2)]

    assert "PAY-2 Handled twice? handled twice" in Page(asked).text
    assert "PAY-1 Handled twice? perhaps handled twice" in Page(asked).text
    assert [[line[5] for line in lines] for lines in found] == [[f"handled twice: run {known.pk} PAY-2, PAY-1"]] * 2


def test_what_is_taken_back_of_a_run_leaves_the_rest_checked() -> None:
    """The finding came back although there was less of it than somebody had checked."""
    known = run_with(handled_twice=2, perhaps_twice=1)
    made.consumer()
    check(doubts_of("HANDLED_TWICE")[str(known.pk)], ANN, reason="INC-7")
    RequeueRun.objects.filter(pk=known.pk).update(finished_at=timezone.now() - timedelta(minutes=2))
    end_doubts()
    known.refresh_from_db()

    assert known.perhaps_twice == 0
    assert told(Code.HANDLED_TWICE, Code.RUN_PERHAPS_TWICE) == []


@pytest.mark.usefixtures("doubtful")
def test_live_status_and_its_list_say_what_was_checked_by_whom_and_why(page: Client) -> None:
    press(page, page.get(AGAIN), "The ticked ones were checked", reason="both paid once")
    handled("9f3c-3", minutes=4)
    shown, listed = Page(page.get(STATUS)), Page(page.get(LIST)).text
    said = r"✓ Checked by admin, [\d :-]+: both paid once"

    assert "1 finding was checked in the last 24 hours" in shown.text
    assert re.search(rf"Perhaps handled twice : 9f3c-1, 9f3c-2 {said}", shown.text)
    assert shown.links["Perhaps handled twice"] == f"{AUDIT}{OperatorAction.objects.get().pk}/change/"
    assert "Action Checked: perhaps handled twice" in shown.text
    assert len(re.findall(said, listed)) == 2
    doubts = [line[1] for line in run("rmq_parked", "list", "--handled-again").lines[1:]]
    assert [(one[0], ". Checked by " in one) for one in doubts] == [
        ("!", False),
        ("✓", True),
        ("✓", True),
    ]


def test_nobody_signs_for_messages_that_the_rules_of_the_project_hide(settings: Any) -> None:
    known = of_run(2)
    operating(settings, PERMIT=lambda _user, _verb, message: message.business_key != "PAY-1")
    page = client_of(made.person("rita", "view_livestatus", "discard", "view_parkedmessage"))
    answer = page.get(f"{STATUS}checked/?code=RUN_PERHAPS_TWICE&run={known.pk}")

    assert answer.status_code == 403
    assert "PAY-1" not in Page(answer).text


def test_an_erasure_reaches_what_was_checked_without_a_record(page: Client) -> None:
    known = of_run(1)
    made.consumer(seconds=600)
    handled("9f3c-1", minutes=2)
    check(doubts_of("PERHAPS_TWICE")[""], ANN, reason="9f3c-1 was paid once")
    erase(["9f3c-1"], ANN, reason="asked for")

    assert known.pk
    assert run("rmq_audit", "list", "--message", "9f3c-1").code == 6
    assert list(verify()) == []
    assert "9f3c-1" not in Page(page.get(AUDIT)).text


def test_the_pages_of_a_check_are_german_in_german(page: Client, settings: Any) -> None:
    """Consumers said "Beendet um 10:02, said to have ended by admin"."""
    gone = frozen()
    heir(gone, "PAY-1")
    asked = page.get(Page(page.get(STATUS)).links["It has ended…"])
    press(page, asked, "The process has ended", reason="INC-7")
    made.consumer(host="dead", seconds=60, fault=IS_GONE, ended_at=timezone.now(), stopping=True)
    settings.LANGUAGE_CODE = "de"
    texts = [Page(page.get(address)).text for address in (CONSUMERS, STATUS, AUDIT)]

    assert [word for text in texts for word in ("said to", "killed", "VANISHED") if word in text] == []
    assert "wie admin sagt" in texts[0]
    assert "gibt es nicht mehr" in texts[0]


@pytest.mark.usefixtures("doubtful")
def test_the_oldest_of_very_many_are_forgotten_and_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked, "MOST_CHECKED", 1)
    check(doubts_of("PERHAPS_TWICE")[""], ANN, reason="INC-7")

    assert len(AuditHead.objects.get().checked) == 1
    assert len(perhaps()) == 1


def killed_by_hand(*, minutes: float = 12, times: int = 3) -> None:
    """A consumer that was killed and restarted these times, each time after three minutes."""
    begun = timezone.now() - timedelta(minutes=minutes)
    for number in range(times):
        ended = begun + timedelta(minutes=3)
        made.consumer(pid=number + 1, started_at=begun, beat_at=ended, ended_at=ended, stopping=True)
        begun = ended + timedelta(seconds=5)
    made.consumer(pid=9, started_at=begun)


def loops() -> list[Problem]:
    return [one for one in in_survey(survey(), Limits()) if one.code in LOOPS]


def test_who_has_killed_consumers_by_hand_says_so_and_only_later_deaths_are_told(page: Client) -> None:
    """Nothing ended a loop of three that were killed by hand; checked, it was told as a whole with the next death."""
    killed_by_hand()
    asked = page.get(Page(page.get(STATUS)).links["Checked… payments.main"])
    press(page, asked, "All of this was checked", reason="I killed them")
    shown, consumers = Page(page.get(STATUS)).text, Page(page.get(CONSUMERS)).text
    act, before = OperatorAction.objects.get(), loops()
    ConsumerProcess.objects.filter(pid=9).update(ended_at=timezone.now(), stopping=True)
    one_more, alone = Page(page.get(STATUS)).text, Page(page.get(CONSUMERS)).text
    none = loops()
    made.consumer(pid=10, started_at=timezone.now(), beat_at=timezone.now(), ended_at=timezone.now(), stopping=True)

    assert "This is about 3 processes" in Page(asked).text
    assert (
        "Say this once you know why they died. If more than one dies after that, it is told again." in Page(asked).text
    )
    assert (act.facts["finding"], act.facts["processes"]) == ("CRASH_LOOP", [f"worker-3:{one}" for one in (3, 2, 1)])
    assert before == []
    assert "again and again" not in shown
    assert "✕ Consumers of payments.main die again" not in consumers
    assert "1 of 1 consumers has ended" in one_more
    assert "worker-3:9 ✕ ended" in alone
    assert (none, [one.count for one in loops()]) == ([], [2])


def test_of_two_lines_that_died_at_the_same_time_both_are_checked() -> None:
    """A minute after the check three of eight "have ended", and four ran."""
    for place in range(2):
        begun = timezone.now() - timedelta(minutes=3, seconds=place)
        for number in range(1, 4):
            died: dict[str, Any] = {"beat_at": begun + timedelta(seconds=20), "ended_at": begun + timedelta(seconds=20)}
            made.consumer(pid=10 * place + number, number=place + 1, started_at=begun, stopping=True, **died)
            begun += timedelta(seconds=30)
        made.consumer(pid=10 * place + 9, number=place + 1, started_at=begun)
    before = loops()
    run("rmq_parked", "checked", "CRASH_LOOP", "--run", "payments.main", "--reason", "the poison", "--yes")
    found = [one.text for one in in_survey(survey(), Limits()) if one.code in (Code.ENDED, Code.VANISHED, *LOOPS)]

    assert [(one.code, one.count) for one in before] == [(Code.CRASH_LOOP, 6)]
    assert found == []


def test_who_says_that_a_frozen_process_has_ended_has_not_checked_a_crash_loop(page: Client) -> None:
    killed_by_hand()
    heir(frozen(), "PAY-1")
    asked = page.get(Page(page.get(STATUS)).links["It has ended…"])
    before = [one.code for one in loops()]
    press(page, asked, "The process has ended", reason="INC-7")

    assert (before, [one.code for one in loops()]) == ([Code.CRASH_LOOP], [Code.CRASH_LOOP])


def test_a_link_to_a_crash_loop_leads_to_it_once_it_is_over(page: Client) -> None:
    """A few minutes later it led to Live status, which said that the finding had ended, above that finding."""
    killed_by_hand(minutes=15)
    asked = page.get(f"{STATUS}checked/?code=CRASH_LOOP&run=payments.main")

    assert [one.code for one in loops()] == [Code.CRASH_LOOP_OVER]
    assert "Consumers of payments.main died again and again" in Page(asked).text


def test_who_has_checked_the_latest_deaths_of_a_service_is_not_asked_of_those_before() -> None:
    """A loop that was over was offered once the one after it had been checked."""
    begun = timezone.now() - timedelta(minutes=29)
    for number in range(6):
        ended = begun + timedelta(seconds=20)
        made.consumer(pid=number + 1, started_at=begun, beat_at=ended, ended_at=ended, stopping=True)
        begun = ended + timedelta(minutes=11 if number == 2 else 0, seconds=5)
    made.consumer(pid=9, started_at=begun)
    before = [one.count for one in loops()]
    run("rmq_parked", "checked", loops()[0].code.name, "--run", "payments.main", "--reason", "a bad release", "--yes")

    assert (before, loops()) == ([3], [])


def test_a_command_says_of_a_crash_loop_that_it_was_checked() -> None:
    killed_by_hand()
    hint = next(line for line in run("rmq_status").out.splitlines() if "parked checked" in line)
    shown = run("rmq_parked", "checked", "CRASH_LOOP")
    done = run("rmq_parked", "checked", "CRASH_LOOP", "--run", "payments.main", "--reason", "I killed them", "--yes")

    assert "manage.py rmq_parked checked CRASH_LOOP --run payments.main lists them; once you know why they died" in hint
    assert [line[0] for line in shown.lines[1:]] == ["worker-3:3", "worker-3:2", "worker-3:1"]
    assert (shown.code, done.code, loops()) == (0, 0, [])


def test_what_a_crash_loop_had_begun_is_told_while_it_is_handled_again_also_once_it_was_checked() -> None:
    """Live status told of eight deaths, and not of three payments that were made again; after the check of nothing."""
    killed_by_hand()
    last = ConsumerProcess.objects.filter(pid=3)
    last.update(in_flight=[made.in_flight(seconds=(timezone.now() - last.get().beat_at).total_seconds() + 9)])
    ConsumerProcess.objects.filter(pid=9).update(in_flight=[made.in_flight(seconds=5, again=True)])
    before = [one.code for one in in_survey(survey(), Limits()) if one.code in (Code.CRASH_LOOP, Code.GIVEN_AGAIN)]
    run("rmq_parked", "checked", "CRASH_LOOP", "--run", "payments.main", "--reason", "I killed them", "--yes")
    found = [one.text for one in in_survey(survey(), Limits()) if one.code is Code.GIVEN_AGAIN]

    assert before == [Code.CRASH_LOOP, Code.GIVEN_AGAIN]
    assert (found, loops()) == (["1 message is being handled again: PAY-1."], [])
