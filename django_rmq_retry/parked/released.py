"""What waits behind blocked ordering keys and is handled once an operator sends or discards the message in front."""

from collections.abc import Mapping
from typing import NamedTuple

from django.db.models import Count, Exists, OuterRef, QuerySet, Sum
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry.messages.identity import BODY
from django_rmq_retry.models import BlockedKey, ParkedMessage
from django_rmq_retry.ordering.keys import keys_alias, records_blocking
from django_rmq_retry.parked.key_lists import keys_of
from django_rmq_retry.parked.keys_shelf import behind_keys
from django_rmq_retry.parked.selection import EXCEPT, Selection

MOST_NAMELESS = 500
"""The most blocked keys whose first message has no id that are compared by its body."""


class Released(NamedTuple):
    messages: int = 0
    blockers: int = 0
    """The messages in front of them."""

    @property
    def sentence(self) -> str:
        """Return what is handled next, in the reader's language; empty if nothing is."""
        if not self.messages:
            return ""
        text = ngettext(
            "%(count)d message waits behind %(first)d of these by its ordering key and is handled next",
            "%(count)d messages wait behind %(first)d of these by their ordering keys and are handled next",
            self.messages,
        )
        return text % {"count": self.messages, "first": self.blockers}


def released_by(rows: QuerySet[ParkedMessage]) -> Released:
    """Return how many messages wait behind some of these: each blocked key costs one look into an index."""
    blocked = BlockedKey.objects.using(keys_alias()).filter(waiting__gt=0).order_by()
    if not blocked.exists():
        return Released()
    rows = rows.order_by()
    same = rows.filter(identity=OuterRef("identity"), queue=OuterRef("queue"))
    found = blocked.filter(Exists(same)).aggregate(messages=Sum("waiting"), blockers=Count("pk"))
    messages, blockers = found["messages"] or 0, found["blockers"]
    nameless = list(
        blocked.filter(identity__startswith=BODY).values_list("queue", "identity", "waiting")[:MOST_NAMELESS]
    )
    if nameless:
        bodies = {identity.removeprefix(BODY) for _queue, identity, _waiting in nameless}
        chosen = set(rows.filter(message_id="", sha256__in=bodies).values_list("queue", "sha256"))
        behind = [count for queue, name, count in nameless if (queue, name.removeprefix(BODY)) in chosen]
        messages, blockers = messages + sum(behind), blockers + len(behind)
    return Released(messages=messages, blockers=blockers)


class Waiting(NamedTuple):
    """A key to leave out whose message waits behind another one."""

    key: str
    ordering_key: str

    @property
    def sentence(self) -> str:
        text = _("%(key)s, which is to be left out, waits behind it (ordering key %(ordering)s).")
        return text % {"key": self.key, "ordering": self.ordering_key}


def blockers_of_listed(selection: Selection) -> Mapping[int, Waiting]:
    """Return the records in front of messages that the selection's list of keys leaves out, each with the first."""
    listed = selection.filter.get(EXCEPT)
    blocked = BlockedKey.objects.using(keys_alias())
    if not listed or not blocked.filter(waiting__gt=0).exists():
        return {}
    behind = behind_keys(keys_of(listed["list"]))
    keys = blocked.in_bulk(behind)
    return {
        record: Waiting(key=behind[one.pk], ordering_key=one.key)
        for record, one in records_blocking(list(keys.values()))
    }
