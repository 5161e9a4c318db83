"""A message as a row: the same columns in every list. What came from outside is escaped, its odd characters shown."""

from typing import Any

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_rmq_retry.admin import labels
from django_rmq_retry.models import ParkedMessage, State
from django_rmq_retry.templatetags.rmq_retry import NOTHING, badge, rmq_ago, rmq_minute, visible

LONGEST = 70
TICKED = "Select this object for an action - {}"
"""The admin's own words, in its own translations."""
LEFT_OUT = ("body", "properties", "detail", "summary", "hold_reason", "resolution")
"""What no list shows, and is not read for one."""
COLUMNS = (
    gettext_lazy("Status"),
    gettext_lazy("Business key"),
    gettext_lazy("Message type"),
    gettext_lazy("Error"),
    gettext_lazy("Queue"),
    gettext_lazy("Attempts"),
    gettext_lazy("Parked"),
)


def tick(message: ParkedMessage) -> SafeString:
    """The box that chooses a row, as the admin makes it; its template for each takes a quarter of the time."""
    label = format_html(_(TICKED), str(message))
    box = '<input type="checkbox" name="{}" value="{}" class="action-select" aria-label="{}">'
    return format_html(box, ACTION_CHECKBOX_NAME, message.pk, label)


def status(message: ParkedMessage) -> SafeString:
    if message.state == State.ON_HOLD and message.held_until:
        return badge(message.state, _("On hold until %(time)s") % {"time": _plain(rmq_minute(message.held_until))})
    shown = badge(message.state)
    if message.unconfirmed:
        return format_html('{} <span class="rmq-quiet">{}</span>', shown, _("may have been delivered"))
    return shown


def key(message: ParkedMessage) -> str:
    return cut(message.business_key or message.message_id or f"#{message.pk}")


def kind(message: ParkedMessage) -> SafeString:
    return _labelled(_("Message type"), cut(message.type or NOTHING))


def failure(message: ParkedMessage) -> SafeString:
    said = f"{message.error}: {message.error_text}" if message.error and message.error_text else message.error
    return _labelled(_("Error"), cut(said or labels.reason(message.reason)))


def queue(message: ParkedMessage) -> SafeString:
    return _labelled(_("Queue"), cut(message.queue or NOTHING))


def attempts(message: ParkedMessage) -> SafeString:
    said = str(message.attempts)
    if message.cycle > 1:
        said = _("%(attempts)d (cycle %(cycle)d)") % {"attempts": message.attempts, "cycle": message.cycle}
    return _labelled(_("Attempts"), said)


def parked(message: ParkedMessage) -> SafeString:
    return _labelled(_("Parked"), rmq_ago(message.parked_at))


CELLS = (status, key, kind, failure, queue, attempts, parked)


def cells(message: ParkedMessage) -> list[Any]:
    """The row, column by column."""
    return [cell(message) for cell in CELLS]


def cut(text: str) -> str:
    """One short line of a text."""
    line = visible(" ".join(text[: 4 * LONGEST].split()))
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def _labelled(label: str, value: Any) -> SafeString:
    """With its column's name, which a narrow screen shows in place of the head of the table."""
    return format_html('<span class="rmq-label" aria-hidden="true">{}</span> {}', label, value)


def _plain(time: str) -> str:
    return time.split(">", 1)[-1].split("<", 1)[0]
