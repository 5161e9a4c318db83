"""Pauses and resumes queues."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from django.db import router
from django.utils.translation import gettext as _

from django_rmq_retry import database_clock
from django_rmq_retry.breakers.queue_state import Flow, QueueState
from django_rmq_retry.breakers.table import columns_of, state_of, states
from django_rmq_retry.handlers import registry
from django_rmq_retry.messages.texts import short_reason
from django_rmq_retry.models import Action, GatedAct, QueueControl
from django_rmq_retry.parked.audit import log_action
from django_rmq_retry.parked.database import transaction_of
from django_rmq_retry.parked.four_eyes import Wish, require_second
from django_rmq_retry.parked.operators import Actor, NothingChosen, Outdated, Refused
from django_rmq_retry.policies.breaker import CLOSED
from django_rmq_retry.statements import locking

PAUSE_COLUMNS = ("paused", "by", "reason", "since", "until")


def queues() -> tuple[str, ...]:
    """Return the names of the project's work queues."""
    return tuple(work_queue.queue.name for work_queue in registry.work_queues())


def queue_states() -> list[QueueState]:
    return list(states(queues()).values())


def pause_end(span: timedelta | None) -> datetime | None:
    """Return the time at which a pause of this length ends, by the database's clock, which all consumers share."""
    return None if span is None else database_clock.now(router.db_for_write(QueueControl)) + span


def pause_lacks_reason(reason: str) -> str:
    """Return why a pause needs a reason; empty if it has one."""
    return "" if reason.strip() else _("Enter a reason: whoever finds the queue paused must learn why.")


@transaction_of(QueueControl)
def pause_queue(queue: str, actor: Actor, *, reason: str, until: datetime | None = None) -> QueueState:
    """Stop all consumers of a queue within seconds, until ``until`` or until an operator resumes the queue."""
    if pause_lacks_reason(reason):
        raise Refused(pause_lacks_reason(reason))
    _check_has_handler(queue)
    _check_can_pause(queue)
    now = database_clock.now(router.db_for_write(QueueControl))
    if until is not None and until <= now:
        raise Refused(_("The time at which the queue resumes is in the past."))
    control = _locked_control(queue)
    kept = state_of(control).is_paused(now.timestamp())
    control.paused, control.by, control.reason = True, actor.name, short_reason(reason.strip())
    control.since, control.until = control.since if kept else now, until
    control.save(update_fields=PAUSE_COLUMNS)
    facts = {"until": until and until.isoformat(timespec="seconds")}
    log_action(actor, Action.PAUSE, reason=reason, subject=queue, facts=facts)
    return state_of(control)


@transaction_of(QueueControl)
def resume_queue(queue: str, actor: Actor, *, reason: str = "", seen: Mapping[str, float] | None = None) -> QueueState:
    """Resume a queue within seconds; an open breaker is closed as well.

    Refuse if the breaker and the pause are not those that were ``seen``.
    """
    _check_has_handler(queue)
    control = _locked_control(queue)
    known = state_of(control)
    if known.state(database_clock.now(router.db_for_write(QueueControl)).timestamp()) is Flow.FLOWING:
        raise Outdated(_("Nothing was changed: queue %(queue)s is already running.") % {"queue": queue})
    present = _present(known)
    if seen is not None and seen != present:
        text = _("Nothing was changed: the breaker or the pause of queue %(queue)s is another one now.")
        raise Outdated(text % {"queue": queue})
    if known.circuit.opened:
        require_second(
            actor,
            Wish(act=GatedAct.CLOSE_BREAKER, subject=queue, reason=reason, terms={"queue": queue, "seen": present}),
        )
    control.paused, control.by, control.reason, control.since, control.until = False, "", "", None, None
    closed = columns_of(CLOSED)
    for name, value in closed.items():
        setattr(control, name, value)
    control.save(update_fields=[*PAUSE_COLUMNS, *closed])
    facts = {"paused_by": known.by, "breaker": known.circuit.cause}
    log_action(actor, Action.RESUME, reason=reason, subject=queue, facts=facts)
    return state_of(control)


def why_no_longer(queue: str, seen: Mapping[str, float]) -> str:
    """Return why a queue that was stopped as ``seen`` cannot be resumed for that reason now; empty if it can."""
    known = states([queue])[queue]
    if known.state(database_clock.now(router.db_for_read(QueueControl)).timestamp()) is Flow.FLOWING:
        return _("The queue is consumed again: its breaker has closed since. Nothing is left to do.")
    if seen != _present(known):
        return _("The breaker or the pause is another one than when this was asked for. Nothing of it is left to do.")
    return ""


def _present(known: QueueState) -> dict[str, float]:
    return {"opened": known.circuit.since, "paused": known.since if known.paused else 0.0}


def _check_has_handler(queue: str) -> None:
    known = queues()
    if queue not in known:
        text = _("No handler reads a queue %(queue)s. Queues with handlers: %(known)s.")
        raise NothingChosen(text % {"queue": queue, "known": ", ".join(known) or "-"})


def _check_can_pause(queue: str) -> None:
    [definition] = (work_queue.queue for work_queue in registry.work_queues() if work_queue.queue.name == queue)
    if definition.auto_delete:
        text = _(
            "Queue %(queue)s cannot be paused: with auto_delete=True the broker deletes it with its messages when "
            "its last consumer stops. Stop the publishers, or declare it with exclusive=True."
        )
        raise Refused(text % {"queue": queue})


def _locked_control(queue: str) -> QueueControl:
    """Return the queue's row, locked until the transaction ends."""
    rows = QueueControl.objects.using(router.db_for_write(QueueControl))
    rows.get_or_create(queue=queue)
    return locking(rows.filter(queue=queue)).get()
