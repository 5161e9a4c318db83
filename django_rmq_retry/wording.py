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
SEPARATED_FROM = 1000
"""No language separates fewer digits."""
_FEW = 10 * MINUTE
"""Below this, a duration includes its seconds."""
_SHORT = 0.1
"""Below this, a duration is in milliseconds."""


def number(count: int) -> str:
    """Return a count with the separators of the reader's language."""
    if 0 <= count < SEPARATED_FROM:
        return str(int(count))
    return number_format(count, use_l10n=True, force_grouping=True) if get_language() else f"{count:,}"


def decimal(amount: float, places: int) -> str:
    """Return an amount with the decimal point of the reader's language."""
    return number_format(amount, places, use_l10n=True) if get_language() else f"{amount:.{places}f}"


def messages_counted(count: int) -> str:
    return ngettext("%(number)s message", "%(number)s messages", count) % {"number": number(count)}


def counted(text: str, **values: object) -> str:
    """Fill a translated text; its numbers have the separators of the language."""
    return text.replace(")d", ")s") % {
        name: number(value) if isinstance(value, int) else value for name, value in values.items()
    }


def listed(names: Iterable[str]) -> str:
    """Return the first few names, and the number of the others; a single other one is as short by its name."""
    every = list(names)
    if len(every) <= MOST_IN_A_TEXT + 1:
        return ", ".join(every)
    more = {"names": ", ".join(every[:MOST_IN_A_TEXT]), "count": len(every) - MOST_IN_A_TEXT}
    return _("%(names)s and %(count)d more") % more


def span(passed: timedelta) -> str:
    """Return a time that has passed, cut: ``45 s``, ``45 min``, ``3 h 12 min``, ``4 d``. An age needs no more."""
    seconds = int(passed.total_seconds())
    if seconds >= DAY:
        # A word would need another form after "for" than before "ago" in some languages.
        return _("%(count)d d") % {"count": seconds // DAY}
    return duration(seconds - seconds % MINUTE if seconds >= MINUTE else seconds)


def duration(seconds: float) -> str:
    """Return how long something takes: ``3 ms``, ``30.5 s``, ``1 min 41 s``, ``19 min``, ``3 h 12 min``, ``4 days``."""
    whole = round(seconds)
    if whole < MINUTE:
        return _seconds(seconds)
    if whole < _FEW and whole % MINUTE:
        return _("%(minutes)d min %(seconds)d s") % {"minutes": whole // MINUTE, "seconds": whole % MINUTE}
    if whole < HOUR:
        return _("%(count)d min") % {"count": whole // MINUTE}
    if whole >= DAY:
        return ngettext("%(count)d day", "%(count)d days", whole // DAY) % {"count": whole // DAY}
    if whole % HOUR < MINUTE:
        return _("%(count)d h") % {"count": whole // HOUR}
    return _("%(hours)d h %(minutes)d min") % {"hours": whole // HOUR, "minutes": whole % HOUR // MINUTE}


def _seconds(seconds: float) -> str:
    if 0 < seconds < _SHORT:
        return _("%(count)s ms") % {"count": max(round(seconds * 1000), 1)}
    return _("%(count)s s") % {"count": decimal(seconds, 0 if float(seconds).is_integer() else 1)}


def minute(at: datetime) -> str:
    """Return hour and minute, with the day if it is not today."""
    return _time_of_day(at, "%H:%M")


def second(at: datetime) -> str:
    """Return the same with the second, where two times are compared."""
    return _time_of_day(at, "%H:%M:%S")


def _time_of_day(at: datetime, form: str) -> str:
    local = timezone.localtime(at)
    shown = local.strftime(form if local.date() == timezone.localdate() else f"%Y-%m-%d {form}")
    return shown + zone_beside_utc(local)


def zone_beside_utc(local: datetime) -> str:
    """Return the name of a local time's zone for commands, alerts and logs, which have other times in UTC beside it.

    They speak no language; the pages of a site do, and have one zone.
    """
    return "" if get_language() else f" {local.tzname()}"
