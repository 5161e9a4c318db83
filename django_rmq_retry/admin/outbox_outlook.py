"""What becomes of one message of the outbox: what it lacks, when it is tried next, and by whom."""

from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry.admin.broker_look import Look
from django_rmq_retry.amqp.refusals import no_exchange
from django_rmq_retry.handlers import registry
from django_rmq_retry.health.senders import TAKEN_WITHIN, Senders
from django_rmq_retry.models import OutboxMessage
from django_rmq_retry.models.boxes import NO_ROUTE
from django_rmq_retry.publishing.faults import MOST_FAILED_SENDS
from django_rmq_retry.wording import counted, second, span


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """The queue, exchange or binding without which the broker cannot take a message."""

    text: str
    remedy: str
    ended: bool
    """True if the queue exists by now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a page says of a message that is not sent."""

    stands: str
    """When it is tried next, or that it is not."""
    senders: str = ""
    """Who sends it; empty if nobody does before an operator acts."""
    alarming: bool = False
    """True if it is due, and nobody has taken it."""
    ahead: OutboxMessage | None = None
    """The earlier message of its ordering key, which has to go first."""

    @property
    def behind(self) -> str:
        """What it waits for, if another message has to go first."""
        if self.ahead is None:
            return ""
        text = _("It waits behind %(message)s, which has the same ordering key: it is sent after that one.")
        if self.ahead.failed_at:
            text = _(
                "It waits behind %(message)s, which has the same ordering key and failed: it is sent after that one "
                "was sent again or discarded."
            )
        return text % {"message": self.ahead}

    @classmethod
    def of(cls, row: OutboxMessage, look: Look) -> "Outlook":
        """Return the outlook of a message; up to two queries."""
        if row.failed_at:
            text = ngettext(
                "Refused %(count)d time, so it is not tried again. It stays here until an operator sends it again or "
                "discards it.",
                "Refused %(count)d times, so it is not tried again. It stays here until an operator sends it again or "
                "discards it.",
                row.attempts,
            )
            return cls(stands=" ".join(filter(None, (counted(text, count=row.attempts), _held_up(row)))))
        ahead = _ahead(row)
        if ahead is not None and ahead.failed_at:
            return cls(stands=_refused(row), ahead=ahead)
        senders = Senders.now()
        late = ahead is None and not look.unreachable and senders.at - row.due_at > TAKEN_WITHIN
        parts = (_refused(row), "" if ahead else _next(row, senders, look))
        stands = " ".join(filter(None, parts))
        # A consumer notices only some seconds later that a broker that hangs is gone.
        blind = senders.connected and (look.unreachable or look.late)
        sentence = _("It is sent once the broker answers.") if blind else senders.sentence
        return cls(stands=stands, senders=sentence, alarming=late, ahead=ahead)


def lack_of(row: OutboxMessage, look: Look) -> Lack | None:
    """Return what a message lacks by the broker's last answer, and what an operator can do."""
    names = {"queue": row.routing_key, "exchange": row.exchange, "key": row.routing_key}
    declared = _("manage.py rmq_declare creates it.")
    foreign = _(
        "It is not declared by this project, so rmq_declare does not create it: whoever owns it has to. If the name "
        "is wrong, publish the message again under the right one, and discard this one."
    )
    topology = registry.topology()
    if row.error == no_exchange(row.exchange):
        text = _("Exchange %(exchange)s does not exist.") % names
        return Lack(text=text, remedy=declared if row.exchange in topology.exchanges else foreign, ended=False)
    if not row.error.startswith(NO_ROUTE):
        return None
    if row.exchange:
        text = _("Exchange %(exchange)s gives “%(key)s” to no queue.") % names
        remedy = _(
            "No queue is bound for this routing key: manage.py rmq_declare binds the queues of this project. If the "
            "key is wrong, publish the message again under the right one, and discard this one."
        )
        return Lack(text=text, remedy=remedy, ended=False)
    level = look.level(row.routing_key)
    text = _("Queue %(queue)s does not exist.") % names
    ended = level is not None and not level.missing
    return Lack(text=text, remedy=declared if row.routing_key in topology.queues else foreign, ended=ended)


def _ahead(row: OutboxMessage) -> OutboxMessage | None:
    if not row.order_key:
        return None
    earlier = OutboxMessage.objects.filter(order_key=row.order_key, pk__lt=row.pk)
    return earlier.order_by("pk").defer("body", "properties").first()


def _held_up(row: OutboxMessage) -> str:
    """Say how many messages wait until the operator has decided on this one."""
    if not row.order_key:
        return ""
    count = OutboxMessage.objects.filter(order_key=row.order_key, pk__gt=row.pk).count()
    text = ngettext(
        "%(count)d message with the same ordering key waits behind it.",
        "%(count)d messages with the same ordering key wait behind it.",
        count,
    )
    return counted(text, count=count) if count else ""


def _refused(row: OutboxMessage) -> str:
    if not row.attempts:
        return ""
    # Other faults than the message's own are not counted so far.
    if (
        row.error.startswith(NO_ROUTE)
        or row.error == no_exchange(row.exchange)
        or row.attempts > MOST_FAILED_SENDS // 2
    ):
        text = ngettext(
            "Refused %(count)d time of %(most)d. After the last one it stays here until an operator sends it again "
            "or discards it.",
            "Refused %(count)d times of %(most)d. After the last one it stays here until an operator sends it again "
            "or discards it.",
            row.attempts,
        )
    else:
        text = ngettext(
            "Refused %(count)d time. If the message itself is the cause, it stays here for an operator after "
            "%(most)d times; what refuses others, too, such as a full queue, is waited for.",
            "Refused %(count)d times. If the message itself is the cause, it stays here for an operator after "
            "%(most)d times; what refuses others, too, such as a full queue, is waited for.",
            row.attempts,
        )
    return counted(text, count=row.attempts, most=MOST_FAILED_SENDS)


def _next(row: OutboxMessage, senders: Senders, look: Look) -> str:
    if look.unreachable:
        return _("The broker does not answer, so nobody can send it now.")
    if row.due_at > senders.at:
        text = _("The process that wrote it sends it; from %(time)s on, a relay does.")
        text = _("It is tried again at %(time)s.") if row.attempts else text
        return text % {"time": second(row.due_at)}
    late = senders.at - row.due_at
    if look.late or (senders.alive and not senders.connected):
        return _("It is due now.")
    if late <= TAKEN_WITHIN:
        return _("It is due now: a relay takes it within seconds.")
    return _("It has been due for %(span)s, and nobody has taken it.") % {"span": span(late)}
