"""What an act is meant for: a filter frozen at the moment of looking, or some records by number; signed as a token."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.core.signing import BadSignature, SignatureExpired, dumps, loads
from django.db import router
from django.db.models import Count, Max, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from django_rmq_retry.models import ParkedMessage, State
from django_rmq_retry.operating.filtering import narrowed
from django_rmq_retry.operating.refusals import NothingChosen, Outdated, Refused

SALT = "django_rmq_retry.selection"
VALID_FOR = 3600
"""Seconds for which a preview may be acted upon."""
MOST_IDS = 200
"""A token travels in addresses; more than these are meant by a filter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Messages that were chosen; those that are parked afterwards are never among them."""

    filter: Mapping[str, Any] = field(default_factory=dict)
    """See ``filtering``; empty where records are named."""
    revisions: Mapping[int, int] = field(default_factory=dict)
    """The records that are named, each with its revision at that time."""
    max_id: int = 0
    as_of: datetime
    count: int

    @classmethod
    def of_filter(cls, filter: Mapping[str, Any]) -> "Selection":  # noqa: A002 - its name
        """Everything that a filter finds now; an empty one finds all."""
        words = dict(filter) or {"state": State.values}
        try:
            rows = narrowed(_records(), words)
            told = rows.order_by().aggregate(count=Count("pk"), last=Max("pk"), parked=Max("parked_at"))
        except (ValueError, TypeError, ValidationError) as error:
            raise Refused(_("The filter cannot be used: %(error)s") % {"error": error}) from error
        # A worker whose clock is ahead may have parked it "later" than now; it was seen all the same.
        as_of = max(timezone.now(), told["parked"] or timezone.now())
        return cls(filter=words, max_id=told["last"] or 0, as_of=as_of, count=told["count"])

    @classmethod
    def of_ids(cls, ids: Iterable[int]) -> "Selection":
        """These records, as they are now."""
        wanted = list(dict.fromkeys(ids))
        found: dict[int, int] = {}
        for start in range(0, len(wanted), 500):
            rows = _records().filter(pk__in=wanted[start : start + 500])
            found.update(rows.values_list("pk", "revision"))
        return cls(revisions=found, as_of=timezone.now(), count=len(found))

    def token(self) -> str:
        """To be carried through a form or an address for an hour; nobody can widen it."""
        if len(self.revisions) > MOST_IDS:
            said = _("At most %(most)s messages can be chosen one by one; choose more by a filter.")
            raise Refused(said % {"most": MOST_IDS})
        return dumps(self.facts(), salt=SALT, compress=True)

    @classmethod
    def read(cls, token: str) -> "Selection":
        """What a token means; ``Outdated`` where it is too old or not of our making."""
        try:
            facts = loads(token, salt=SALT, max_age=VALID_FOR)
        except SignatureExpired as error:
            raise Outdated(_("This preview is older than an hour. Refresh it and look again.")) from error
        except BadSignature as error:
            raise Outdated(_("This is no selection of this site. Choose the messages again.")) from error
        return cls(
            filter=facts.get("filter", {}),
            revisions={int(pk): revision for pk, revision in facts.get("ids", {}).items()},
            max_id=facts["max_id"],
            as_of=datetime.fromisoformat(facts["as_of"]),
            count=facts["count"],
        )

    def facts(self) -> dict[str, Any]:
        """As it stands in the token and in the record of a run."""
        what: dict[str, Any] = {"filter": dict(self.filter)}
        if self.revisions or not self.filter:
            what = {"ids": {str(pk): revision for pk, revision in list(self.revisions.items())[:MOST_IDS]}}
        return {**what, "max_id": self.max_id, "as_of": self.as_of.isoformat(), "count": self.count}

    def queryset(self) -> QuerySet[ParkedMessage]:
        """The records that are still meant: what was parked, or parked again, since then is left out."""
        if not self.filter:
            return _records().filter(pk__in=list(self.revisions))
        return narrowed(_records(), self.filter).filter(pk__lte=self.max_id, parked_at__lte=self.as_of)

    def check(self, found: int) -> None:
        """Refuse a set that has grown, and one of which nothing is left."""
        if found > self.count:
            said = _("%(found)s messages match now and %(count)s did when you looked. Refresh the preview.")
            raise Outdated(said % {"found": found, "count": self.count})
        if not found:
            raise NothingChosen(_("None of the chosen messages is there any more. Nothing was done."))

    @property
    def said(self) -> str:
        """In short, for the page of a run."""
        if not self.filter:
            return ", ".join(f"#{pk}" for pk in sorted(self.revisions)[:10])
        return " · ".join(f"{name} {_words(value)}" for name, value in self.filter.items())


def _words(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _records() -> QuerySet[ParkedMessage]:
    return ParkedMessage.objects.using(router.db_for_write(ParkedMessage))
