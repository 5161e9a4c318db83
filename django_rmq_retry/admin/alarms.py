"""What needs somebody now, a sentence each, with the way there; the worst first."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import Error
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry import registry
from django_rmq_retry.admin import allowing, labels, looking
from django_rmq_retry.models import ErrorGroup
from django_rmq_retry.operating.surveying import outbox
from django_rmq_retry.ordering import limits
from django_rmq_retry.switching.states import standing
from django_rmq_retry.templatetags.rmq_retry import rmq_span

LATE = timedelta(minutes=1)
"""Written so long ago and not published yet: the broker is away, or refuses it."""
Address = Callable[..., str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """One thing that somebody should look at, with the way there."""

    said: str
    address: str = ""
    link: str = ""


def alarms(request: HttpRequest, seen: looking.Look, *, recent: int, address: Address) -> Iterator[Alarm]:
    """All of them; a page shows the first few."""
    yield from _unpublished(request, address)
    if limits.standing().full:
        keys = "" if allowing.refusal(request, "view_key") else address("blockedkey_changelist")
        yield Alarm(said=_too_many(), address=keys, link=_("Blocked keys"))
    queues, link = address("switch_changelist"), _("Open the queues")
    now = timezone.now().timestamp()
    for one in standing(intake.queue.name for intake in registry.intakes()):
        yield Alarm(said=f"{one.queue}: {one.said(now)}", address=queues, link=link)
    for level in seen.levels:
        for problem in level.problems:
            yield Alarm(said=f"{level.queue}: {labels.trouble(problem)}")
    if recent:
        yield _just_parked(recent, address)


def _unpublished(request: HttpRequest, address: Address) -> Iterator[Alarm]:
    rows = "" if allowing.refusal(request, "view_outbox") else address("outboxmessage_changelist")
    way: dict[str, Any] = {"address": rows, "link": _("Open the outbox")}
    try:
        found = outbox()
    except Error:
        # One of the project's databases is away: whoever needs it says so, and this page is needed most then.
        yield Alarm(said=_("The outbox cannot be looked into: a database of it does not answer."), **way)
        return
    if found.stuck:
        said = ngettext(
            "%(count)d message in the outbox cannot be published and waits for a person.",
            "%(count)d messages in the outbox cannot be published and wait for a person.",
            found.stuck,
        )
        yield Alarm(said=said % {"count": found.stuck}, **way)
    waited = timezone.now() - found.oldest if found.oldest else timedelta()
    if waited > LATE:
        said = ngettext(
            "%(count)d message in the outbox has not been published for %(span)s.",
            "%(count)d messages in the outbox are not published yet, the oldest has waited for %(span)s.",
            found.waiting,
        )
        yield Alarm(said=said % {"count": found.waiting, "span": rmq_span(waited.total_seconds())}, **way)


def _just_parked(recent: int, address: Address) -> Alarm:
    group = ErrorGroup.objects.filter(parked__gt=0, muted=False).order_by("-last_seen").first()
    said = ngettext(
        "%(count)d message was parked in the last 10 minutes.",
        "%(count)d messages were parked in the last 10 minutes.",
        recent,
    ) % {"count": recent}
    if group is None:
        return Alarm(said=said)
    cause = _("Last cause: %(cause)s.") % {"cause": group}
    return Alarm(said=f"{said} {cause}", address=address("errorgroup_change", group.pk), link=_("Open the group"))


def _too_many() -> str:
    """As the page of the keys says it."""
    said = _(
        "Further ones are taken one a second and hold up their queue. Resolve what goes first, or raise HELD_PER_KEY "
        "or HELD_IN_ALL."
    )
    return f"{_('Too many messages wait.')} {said}"
