"""How numbers, times and lists of names are written in the texts of pages, commands and alerts.

``arguments`` has ``plural`` and ``spelled``, for English sentences below Django.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.utils import timezone
from django.utils.formats import number_format
from django.utils.translation import get_language, ngettext
from django.utils.translation import gettext as _

MOST_IN_A_TEXT = 3
"""The most names in one text; others are counted."""
MINUTE, HOUR, DAY = 60, 3600, 86_400
"""Seconds."""


def number(count: int) -> str:
    """Return a count with the separators of the reader's language."""
    return number_format(count, use_l10n=True, force_grouping=True) if get_language() else f"{count:,}"


def messages_counted(count: int) -> str:
    return ngettext("%(number)s message", "%(number)s messages", count) % {"number": number(count)}


def listed(names: Iterable[str]) -> str:
    """Return the first few names, and the number of the others."""
    every = list(names)
    first = ", ".join(every[:MOST_IN_A_TEXT])
    more = {"names": first, "count": len(every) - MOST_IN_A_TEXT}
    return _("%(names)s and %(count)d more") % more if len(every) > MOST_IN_A_TEXT else first


def span(length: timedelta) -> str:
    """Format a duration in the largest unit that passed at least twice, cut: ``45 min``, ``30 h``, ``2922 d``."""
    seconds = length.total_seconds()
    for size, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds // 1:.0f} s"


def minute(at: datetime) -> str:
    """Return hour and minute, with the day if it is not today."""
    local = timezone.localtime(at)
    return f"{local:%H:%M}" if local.date() == timezone.localdate() else f"{local:%Y-%m-%d %H:%M}"
