"""What a person does to a queue: pause it, for a while or until further notice, and let it go on."""

from datetime import datetime

from django.db import router, transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from django_rmq_retry import registry
from django_rmq_retry.core.breaking import CLOSED
from django_rmq_retry.core.verdict import short
from django_rmq_retry.models import Switch, Verb
from django_rmq_retry.operating.actors import Actor
from django_rmq_retry.operating.auditing import note
from django_rmq_retry.operating.locking import steadily
from django_rmq_retry.operating.refusals import NothingChosen, Outdated, Refused
from django_rmq_retry.switching.standing import FLOWING, QueueState
from django_rmq_retry.switching.states import columns_of, state_of, states

REASON_LIMIT = 255


def queues() -> tuple[str, ...]:
    """The work queues of the project."""
    return tuple(intake.queue.name for intake in registry.intakes())


def look() -> list[QueueState]:
    """Where each of them stands."""
    return list(states(queues()).values())


def pause(queue: str, actor: Actor, *, reason: str = "", until: datetime | None = None) -> QueueState:
    """Nobody takes of it any more, within seconds; again by itself at ``until``, or when somebody resumes it."""
    _check(queue)
    now = timezone.now()
    if until is not None and until <= now:
        raise Refused(_("The time at which it goes on by itself is over already."))
    text = short(reason.strip(), REASON_LIMIT)

    def act() -> QueueState:
        using = router.db_for_write(Switch)
        with transaction.atomic(using=using):
            before = _locked(queue, using)
            kept = before.paused and (before.until is None or before.until > now)
            changes = {
                "paused": True,
                "by": actor.name,
                "reason": text,
                "since": before.since if kept else now,
                "until": until,
            }
            Switch.objects.using(using).filter(pk=before.pk).update(**changes)
            facts = {"until": until and until.isoformat(timespec="seconds")}
            note(actor, Verb.PAUSE, reason=reason, subject=queue, facts=facts)
            return state_of(Switch.objects.using(using).get(pk=before.pk))

    return steadily(act)


def resume(queue: str, actor: Actor, *, reason: str = "") -> QueueState:
    """It is taken of again, within seconds; a breaker that is open is closed as well."""
    _check(queue)

    def act() -> QueueState:
        using = router.db_for_write(Switch)
        with transaction.atomic(using=using):
            before = _locked(queue, using)
            known = state_of(before)
            if known.state(timezone.now().timestamp()) == FLOWING:
                raise Outdated(_("Nothing was changed: queue %(queue)s flows already.") % {"queue": queue})
            changes = {**columns_of(CLOSED), "paused": False, "by": "", "reason": "", "since": None, "until": None}
            Switch.objects.using(using).filter(pk=before.pk).update(**changes)
            facts = {"paused_by": known.by, "breaker": known.circuit.cause}
            note(actor, Verb.RESUME, reason=reason, subject=queue, facts=facts)
            return state_of(Switch.objects.using(using).get(pk=before.pk))

    return steadily(act)


def _check(queue: str) -> None:
    known = queues()
    if queue not in known:
        said = _("There is no queue %(queue)s with a handler. There are: %(known)s.")
        raise NothingChosen(said % {"queue": queue, "known": ", ".join(known) or "-"})


def _locked(queue: str, using: str) -> Switch:
    """Its row, as nobody else can change it until the transaction ends."""
    rows = Switch.objects.using(using)
    rows.get_or_create(queue=queue)
    # The update comes first: SQLite refuses a transaction that has read when another one has written since.
    rows.filter(queue=queue).update(queue=queue)
    return rows.get(queue=queue)
