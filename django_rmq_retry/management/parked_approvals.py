"""``rmq_parked``: list the acts that wait for a second person, approve and reject them."""

from collections.abc import Callable, Mapping
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_rmq_retry import database_clock
from django_rmq_retry.arguments import plural
from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.management.accounts import signed_in
from django_rmq_retry.management.arguments import add_limit
from django_rmq_retry.management.command import Options, RmqCommand, add_yes, request_data
from django_rmq_retry.management.parked_choice import add_keys_checked, refuse_doubtful, report_keys
from django_rmq_retry.management.parked_edits import result_lines, show_others, show_proposal
from django_rmq_retry.management.terminal import clock
from django_rmq_retry.models import ApprovalRequest, GatedAct, RequestState
from django_rmq_retry.parked import approvals, gated_acts, missed_discards
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.edit_many import others_of
from django_rmq_retry.parked.edited_keys import others_with
from django_rmq_retry.parked.four_eyes import Wish
from django_rmq_retry.parked.gated_acts import ACTS
from django_rmq_retry.parked.operators import Actor
from django_rmq_retry.parked.outcome_texts import became_of
from django_rmq_retry.parked.released import Released, released_by
from django_rmq_retry.parked.selection import MOST_IDS, Selection
from django_rmq_retry.parked.under_way import under_way


def add_arguments(add: Callable[..., CommandParser]) -> None:
    listed = add("approvals", show_requests, help="list the requests that wait for a second person")
    listed.add_argument("--decided", action="store_true", help="also decided and expired ones")
    add_limit(listed, "requests")
    approving = add("approve", approve, help="approve a request of another operator, which carries it out")
    approving.add_argument("id", type=int, metavar="REQUEST", help="the number of the request")
    approving.add_argument("--user", required=True, metavar="NAME", help="your account; its password is asked for")
    approving.add_argument("--remark", default="", help="a remark, kept in the audit log")
    add_keys_checked(approving)
    approving.add_argument("--dry-run", action="store_true", help="change nothing; show what would be done")
    add_yes(approving)
    rejecting = add("reject", reject, help="reject a request, or withdraw your own")
    rejecting.add_argument("id", type=int, metavar="REQUEST", help="the number of the request")
    rejecting.add_argument("--reason", required=True, help="the reason, kept in the audit log")


def show_requests(command: RmqCommand, options: Options) -> Exit:
    rows = approvals.requests().order_by("-pk") if options["decided"] else approvals.open_requests()
    known, now = list(rows[: options["limit"]]), database_clock.now(records_alias())
    if options["json"]:
        command.document("parked_approvals/1", items=[request_data(one, now) for one in known])
    elif known:
        terminal = command.stdout.isatty()
        head = ("REQUEST", "STATE", "ACT", "MESSAGES", "BY", "ASKED", "EXPIRES", "DECIDED BY", "SUBJECT", "REASON")
        command.table([head, *(_cells(one, now, terminal=terminal) for one in known)], cut=True)
    else:
        command.say("No request matches." if options["decided"] else "Nothing waits for a second person.")
    return Exit.DONE if known else Exit.NOTHING


def _cells(one: ApprovalRequest, now: Any, *, terminal: bool) -> tuple[object, ...]:
    who = f"{one.by} ({one.behalf})" if one.behalf else one.by
    times = (clock(at, terminal=terminal) for at in (one.asked_at, one.expires_at))
    state = ": ".join(filter(None, (str(request_data(one, now)["state"]), became_of(one))))
    count = "-" if one.messages is None else one.messages
    return one.pk, state, one.act, count, who, *times, one.decided_by or "-", one.subject, one.reason


def approve(command: RmqCommand, options: Options) -> Exit:
    request, wish = _found(options["id"])
    seen = approvals.mark(request)
    what = "" if request.messages is None else f" {plural(request.messages, 'message')}"
    command.say(f"{request}: {request.act}{what}, asked for by {request.by}")
    for name in ("subject", "reason"):
        if getattr(request, name):
            command.say(f"  {name}: {getattr(request, name)}")
    if not request.by_key:
        command.say("  asked for in a shell without an account, so nothing proves that it was another person")
    if request.state == RequestState.WAITING:
        _PREVIEWS[request.act](command, wish)
    if options["dry_run"]:
        return Exit.DONE
    if ACTS[request.act].checks_keys:
        refuse_doubtful(wish.selection, options)
    command.confirm(f"Approve request {request.pk}?", yes=options["yes"])
    second = signed_in(options["user"], otherwise="Approve the request in the admin.")
    done = approvals.approve(request.pk, second, remark=options["remark"], seen=seen)
    if options["json"]:
        command.document("parked_approve/1", request=request_data(done, database_clock.now(records_alias())))
        return Exit.DONE
    _tell(command, done, wish)
    return Exit.DONE


def _tell(command: RmqCommand, done: ApprovalRequest, wish: Wish) -> None:
    """Say what was done: an edit is stored, and nothing is sent."""
    if ACTS[done.act].leads_to_requeue:
        edited = list(wish.selection.revisions)
        command.line(f"Request {done.pk} is approved. The change is stored, and nothing is sent yet.")
        if len(edited) <= MOST_IDS:
            named = f"{edited[0]}" if len(edited) == 1 else f"--selection {Selection.of_ids(edited).token()}"
            command.say(f"To send what was edited: manage.py rmq_parked requeue {named}")
        return
    command.line(f"Request {done.pk} is approved and carried out.")
    for message, why in missed_discards.left_out_of(done):
        command.say(f"  left out: {message} (#{message.pk}): {why}")
    if done.run is not None:
        command.say(f"To follow its messages: manage.py rmq_parked requeue-run {done.run}")


def reject(command: RmqCommand, options: Options) -> Exit:
    done = approvals.reject(options["id"], Actor.of_shell(), reason=options["reason"])
    if options["json"]:
        command.document("parked_reject/1", request=request_data(done, database_clock.now(records_alias())))
    else:
        command.line(f"Request {done.pk} is rejected. Nothing was done.")
    return Exit.DONE


def _found(number: int) -> tuple[ApprovalRequest, Wish]:
    request = ApprovalRequest.objects.using(records_alias()).filter(pk=number).first()
    if request is None:
        raise CommandError(f"There is no request {number}.", returncode=Exit.NOTHING)
    return request, Wish.of(request)


def _say_runs(command: RmqCommand, wish: Wish) -> None:
    for one in under_way(wish.selection.queryset()):
        command.say(f"  {one}")


def _of_discard(command: RmqCommand, wish: Wish) -> None:
    report_keys(command, wish.selection)
    _say_runs(command, wish)
    found = gated_acts.DISCARD.preview(wish)
    for one in found.findings:
        command.say(f"  {one.sentence}, left out")
    _say_released(command, released_by(found.rows))
    command.say(f"Discards {plural(found.discards, 'message')}, which no requeue will send.")


def _say_released(command: RmqCommand, released: Released) -> None:
    if released.messages:
        command.say(f"  {released.sentence}")


def _of_outbox(command: RmqCommand, wish: Wish) -> None:
    count = gated_acts.DISCARD_OUTBOX.count_now(wish)
    command.say(f"Discards {plural(count, 'message')} of the outbox {wish.terms['outbox']!r}, never to be sent.")


def _of_requeue(command: RmqCommand, wish: Wish) -> None:
    report_keys(command, wish.selection)
    _say_runs(command, wish)
    found = gated_acts.REQUEUE.preview(wish)
    for one in found.findings:
        command.say(f"  {one.count} {one.name.replace('_', ' ')}, {'left out' if one.left_out else 'sent'}")
    _say_released(command, found.released)
    for queue, count in found.queues:
        command.say(f"  {count} to {queue}")
    command.say(f"Requeues {found.sendable} of {plural(found.total, 'message')}.")


def _of_edit(command: RmqCommand, wish: Wish) -> None:
    message = gated_acts.EDIT.message(wish)
    proposal = None if message is None else gated_acts.EDIT.preview(wish, message)
    if message is None or proposal is None:
        command.say("The message has changed since it was asked for, so it cannot be edited so.")
    else:
        show_proposal(command, proposal)
        show_others(command, others_with({message.pk: proposal.keys}))


def _of_edit_many(command: RmqCommand, wish: Wish) -> None:
    results = gated_acts.EDIT_MANY.preview(wish)
    for line in result_lines(gated_acts.EDIT_MANY.change(wish), results):
        command.say(line)
    show_others(command, others_of(results))


def _of_breaker(command: RmqCommand, wish: Wish) -> None:
    command.say(f"Closes the breaker of queue {wish.terms['queue']}, which is consumed again.")


_PREVIEWS: Mapping[str, Callable[[RmqCommand, Wish], None]] = {
    GatedAct.DISCARD: _of_discard,
    GatedAct.DISCARD_OUTBOX: _of_outbox,
    GatedAct.REQUEUE: _of_requeue,
    GatedAct.EDIT: _of_edit,
    GatedAct.EDIT_MANY: _of_edit_many,
    GatedAct.CLOSE_BREAKER: _of_breaker,
}
