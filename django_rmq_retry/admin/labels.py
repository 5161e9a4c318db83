"""Labels and table cells."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import label_for_field
from django.db.models import Model
from django.template.defaultfilters import floatformat
from django.utils.dateparse import parse_datetime
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext_lazy

from django_rmq_retry.attempts.history import failures_of
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.layout import homes_of
from django_rmq_retry.markup import (
    NOTHING,
    address_of,
    badge,
    html,
    html_joined,
    name,
    state_badge,
    time_ago,
    time_minute,
    time_short,
    visible,
)
from django_rmq_retry.messages.parked_copy import By
from django_rmq_retry.messages.texts import short
from django_rmq_retry.models import Action, ErrorGroup, GatedAct, ItemReason, OperatorAction, ParkedMessage, State
from django_rmq_retry.models.parked import REASON_TEXTS, resolution_text
from django_rmq_retry.parked.audit import newest_acts
from django_rmq_retry.parked.may_have_run import attempts_counted, doubt_about
from django_rmq_retry.parked.outcome_texts import DECIDED_BY
from django_rmq_retry.parked.selection import DOUBTS, EXCEPT, FIELDS, LISTED, MOMENTS, group_numbers, worth_saying
from django_rmq_retry.topology.declarations import Role
from django_rmq_retry.wording import counted, minute, number

LONGEST_SELECTION = 400
PARKED_BY: Mapping[str, Any] = {
    By.CONSUMER: pgettext_lazy("parked by", "consumer"),
    By.BROKER: pgettext_lazy("parked by", "broker"),
    By.OTHER: pgettext_lazy("parked by", "another client"),
}
ROLES: Mapping[str, Any] = {
    Role.WORK: pgettext_lazy("role of a queue", "work"),
    Role.WAITING: pgettext_lazy("role of a queue", "waiting"),
    Role.QUARANTINE: pgettext_lazy("role of a queue", "quarantine"),
    Role.PARKED: pgettext_lazy("role of a queue", "parked"),
    Role.REPLY: pgettext_lazy("role of a queue", "reply"),
    Role.OTHER: pgettext_lazy("role of a queue", "other"),
}

LINKS: Mapping[str, Any] = {
    "logs": pgettext_lazy("link", "Logs"),
    "ticket": pgettext_lazy("link", "Ticket"),
    "customer": pgettext_lazy("link", "Customer"),
    "runbook": pgettext_lazy("link", "Runbook"),
}
LONGEST_CELL, LONGEST_LINE, LONGEST_TITLE = 70, 200, 500
LONGEST_KEY, SHORT_KEY, KEY_END = 40, 20, 9
"""A whole UUID fits; the message's own page shows a key of any length."""
_JOINTS = re.compile(r"(?<=[@._/:])(?=.)")
"""Where a name may break that is longer than its column."""
TICKED = "Select this object for an action - {}"
"""A text of Django's admin, with Django's translations."""
LEFT_OUT = ("body", "properties", "summary", "hold_reason")
"""Columns that no list shows or reads."""


def action_reason(action: OperatorAction) -> str:
    """Return the operator's reason for an action; only the category of a discard is translated.

    A change of the rate is followed by what it was and is.
    """
    asked = action.action == Action.ASK and action.details.get("act") == GatedAct.DISCARD
    if action.rates:
        return " · ".join(filter(None, (action.reason, " → ".join(floatformat(rate, -1) for rate in action.rates))))
    return resolution_text(action.reason) if action.action == Action.DISCARD or asked else action.reason


def links(addresses: Mapping[str, str]) -> list[tuple[Any, str]]:
    """Return label and address of each link into the project's other systems; a trace is linked where it began."""
    return [(LINKS[name], address) for name, address in addresses.items() if name in LINKS]


def selection_text(selection: Mapping[str, Any], otherwise: str = "", *, causes: bool = True) -> str:
    """Return a short description of a selection; for messages chosen by hand, the description stored then.

    That the messages are parked is not said. Without ``causes`` the error groups are not named: the page does.
    """
    words = worth_saying(selection.get("filter") or {})
    if not causes and "group" in words:
        del words["group"]
        otherwise = ""
    # A later version may have stored a field that this one does not know.
    named = ((FIELDS[word].label if word in FIELDS else word, value_text(word, value)) for word, value in words.items())
    text = " · ".join(f"{label} {chosen}" for label, chosen in named)
    return otherwise if selection.get("ids") and otherwise else short(text, LONGEST_SELECTION) or otherwise


def value_text(name: str, value: Any) -> str:
    """Return a value of a selection as a page tells it."""
    if name == "group":
        numbers = group_numbers(value)
        groups = ErrorGroup.objects.in_bulk(numbers)
        return ", ".join(visible(str(groups.get(number, f"#{number}"))) for number in numbers)
    if name in MOMENTS and (at := _moment(str(value))) is not None:
        return minute(at)
    if name in (LISTED, EXCEPT):
        return counted(ngettext("%(count)d key", "%(count)d keys", value["count"]), count=value["count"])
    if name == "left_out_of_run":
        return left_out_text(str(value))
    several = value if isinstance(value, (list, tuple)) else [value]
    choices = {"state": dict(State.choices), "reason": REASON_TEXTS, "doubt": DOUBTS}.get(name, {})
    return ", ".join(str(choices.get(one, one)) for one in several)


def _moment(text: str) -> datetime | None:
    try:
        return parse_datetime(text)
    except ValueError:
        return None


def left_out_text(value: str) -> str:
    """Return a filter for what a requeue run left out in words: 12, or 12 and the reason."""
    run, _colon, code = value.partition(":")
    return " · ".join(filter(None, (run, str(dict(ItemReason.choices).get(code, code)))))


def tick(row: Model) -> SafeString:
    """Return the checkbox of a row like the admin's own; its template for each row takes a quarter of the time."""
    label = html(_(TICKED), visible(row))
    box = '<input type="checkbox" name="{}" value="{}" class="action-select" aria-label="{}">'
    return html(box, ACTION_CHECKBOX_NAME, row.pk, label)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """Who discarded a message or put it on hold, as a row of a list tells it."""

    who: str
    why: str
    at: datetime | None = None
    """When, unless the row says until when."""


@admin.display(description=gettext_lazy("Status"))
def status(message: ParkedMessage) -> SafeString:
    """Return the state in a word or two, so that a row stays narrow."""
    if message.state == State.REQUEUED:
        return badge(message.state, capfirst(_("requeued")))
    return state_badge(message.state, doubt_about(message))


@admin.display(description=gettext_lazy("Status"))
def marks(message: ParkedMessage) -> SafeString:
    """Return what else an operator has to know of a message before it is sent."""
    doubt, there = doubt_about(message), failed_in(message)
    known: tuple[tuple[object, Any], ...] = (
        (doubt, doubt),
        (message.unconfirmed, gettext_lazy("may have been delivered")),
        (message.handled_anyway, gettext_lazy("handled already")),
        (message.open and (message.restored or message.came_back), gettext_lazy("discarded before")),
        (message.open and message.parked_cycle > 1, gettext_lazy("failed again")),
        (there, there and _("failed in %(queue)s") % {"queue": one_short_line(there)}),
        (message.open and message.version > 1, pgettext_lazy("message", "edited")),
        (message.has_siblings, gettext_lazy("published several times")),
    )
    texts = [text for holds, text in known if holds]
    if message.state == State.ON_HOLD and message.held_until:
        texts.insert(0, html("{} {}", _("until"), time_minute(message.held_until)))
    decided: Decided | None = vars(message).get("decided")
    if decided:
        why = cut_line(": ".join(filter(None, (decided.who, decided.why))))
        link = html('<a href="{}#rmq-timeline">{}</a>', address_of("parkedmessage_change", message.pk), why)
        texts.append(html("{} {}", time_short(decided.at), link) if decided.at else link)
    if not texts:
        return SafeString()
    return html(' <span class="rmq-quiet rmq-marks">{}</span>', html_joined(" · ", texts))


@admin.display(description=gettext_lazy("Business key"))
def key(message: ParkedMessage) -> str:
    return short_key(str(message))


@admin.display(description=gettext_lazy("Message type"))
def kind(message: ParkedMessage) -> SafeString:
    return labelled(_("Message type"), name(one_short_line(message.type or NOTHING)))


@admin.display(description=gettext_lazy("Error"))
def failure(message: ParkedMessage) -> SafeString:
    return html("{}{}", labelled(_("Error"), cut_line(message.failure)), marks(message))


@admin.display(description=gettext_lazy("Queue"))
def queue(message: ParkedMessage) -> SafeString:
    return labelled(_("Queue"), name(one_short_line(message.queue or NOTHING)))


@admin.display(description=gettext_lazy("Attempts"))
def attempts(message: ParkedMessage) -> SafeString:
    """Return the failures as the message's own page counts them; ``failed`` is set by ``with_failures``."""
    return labelled(_("Attempts"), attempts_counted(message, getattr(message, "failed", message.attempts)))


def with_failures(rows: Sequence[ParkedMessage]) -> None:
    """Let the rows of a list know how often each failed, and where."""
    counts = failures_of(rows)
    for row in rows:
        vars(row)["failed"] = counts[row.pk]
    with_failed_in(rows)


def with_failed_in(rows: Sequence[ParkedMessage]) -> None:
    """Let messages know in which queue each failed last: that of the parked queue in which it was."""
    homes = homes_of(registry.work_queues())
    for row in rows:
        vars(row)["failed_in"] = homes.get(row.parked_in, "")


def failed_in(message: ParkedMessage) -> str:
    """Return the queue in which a row failed, if it is another one than its own: an operator had sent it there."""
    there: str = vars(message).get("failed_in", "")
    return there if message.queue and there != message.queue else ""


@admin.display(description=gettext_lazy("Parked"), ordering="parked_at")
def parked(message: ParkedMessage) -> SafeString:
    return labelled(_("Parked"), time_ago(message.parked_at))


def with_decisions(rows: Sequence[ParkedMessage], state: State) -> None:
    """Let the rows that are in this state, discarded or on hold, know who decided so, and why."""
    those = [row for row in rows if row.state == state]
    acts = newest_acts([row.pk for row in those], {DECIDED_BY[state]})
    for row in those:
        act = next(iter(acts.get(row.pk, ())), None)
        if state == State.DISCARDED:
            who, why = act.who if act else _("an unknown operator"), resolution_text(row.resolution)
            vars(row)["decided"] = Decided(who=who, why=why, at=row.resolved_at)
        elif act:
            vars(row)["decided"] = Decided(who=act.who, why=act.reason)


CELLS: tuple[Any, ...] = (status, key, kind, failure, queue, attempts, parked)


def cells_in_group(*, types: int, queues: int, marked: bool = False) -> tuple[Any, ...]:
    """Return the cells of a parked message on the page of its group, which has its error, and what all have alike."""
    sometimes = ((marks, marked), (kind, types > 1), (queue, queues > 1))
    return (key, *(cell for cell, needed in sometimes if needed), attempts, parked)


def one_short_line(text: str, most: int = LONGEST_CELL) -> str:
    """Return one short line of a text."""
    line = visible(" ".join(text[: 4 * most].split()))
    return line if len(line) <= most else f"{line[: most - 1]}…"


def short_on_screen(text: str) -> SafeString:
    """Return one short line of a text; a print has the whole, whose words break only if their column is narrower."""
    short, whole = one_short_line(text), visible(" ".join(text.split()))
    if short == whole:
        return _kept_words(whole)
    return html('<span class="rmq-screen">{}</span><span class="rmq-paper">{}</span>', short, _kept_words(whole))


def _kept_words(line: str) -> SafeString:
    """Return a line in which words that a browser would break, such as PAY-17, stay whole where there is room."""
    words = (word if word.isalnum() or not word else _kept_word(word) for word in line.split(" "))
    return html_joined(" ", words)


def _kept_word(word: str) -> SafeString:
    return html('<span class="rmq-word">{}</span>', html_joined("<wbr>", _JOINTS.split(word)))


def short_key(text: str) -> str:
    """Return a key or id for a column; a long one is cut in front of its end, because there such names differ."""
    whole = one_short_line(text, LONGEST_TITLE)
    if len(whole) <= SHORT_KEY:
        return whole
    front, end = one_short_line(whole[:-KEY_END], LONGEST_KEY - KEY_END), whole[-KEY_END:]
    return html('<span class="rmq-key" title="{}"><span>{}</span>{}</span>', whole, front, end)


def cut_line(text: str) -> SafeString:
    """Return a text for a column whose style sheet cuts it where the column ends; its title has all of it."""
    title, line = one_short_line(text, LONGEST_TITLE), one_short_line(text, LONGEST_LINE)
    return html('<span title="{}">{}</span>', title, line)


def labelled(label: str, value: Any) -> SafeString:
    """Return the value with its column's name, which a narrow screen shows in place of the table's head."""
    return html('<span class="rmq-label" aria-hidden="true">{}</span> {}', label, value)


def column(model: type[Model], *fields: str) -> Any:
    """Return a column for a field in one of the admin's own lists, such as 4, or for two as 4/9.

    It has the name of the first field, on a narrow screen too.
    """
    name: Any = label_for_field(fields[0], model)

    def shown(_self: object, row: Model) -> SafeString:
        values = [getattr(row, field) for field in fields]
        return labelled(capfirst(str(name)), "/".join(number(one) if isinstance(one, int) else one for one in values))

    return admin.display(description=name)(shown)
