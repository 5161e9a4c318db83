"""The business keys of edited messages: which of them change, which other messages have the new ones, their record."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from django.utils.translation import ngettext

from django_rmq_retry.handlers.business_keys import readable_keys
from django_rmq_retry.handlers.subscription import Subscription
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.models import BusinessKey, ParkedMessage
from django_rmq_retry.parked.audit import take_turns
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.operators import Refused
from django_rmq_retry.statements import in_slices

MOST_OTHERS = 1000
"""The most other messages that are looked at; a key that so many have names a customer, not a payment."""
AT_ONCE = 500
NO_KEY = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChange:
    """The business keys of a message before and after an edit, as its handler's ``keys=`` returns them."""

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @classmethod
    def of(cls, subscription: Subscription | None, before: Delivery, after: Delivery) -> "KeyChange":
        return cls(
            before=tuple(readable_keys(subscription, before)),
            after=tuple(readable_keys(subscription, after)),
        )

    @property
    def name(self) -> str:
        """The new first key, by which lists show the message; empty if that stays as it is."""
        return self.after[0] if self.after and self.after[:1] != self.before[:1] else ""

    def __bool__(self) -> bool:
        return set(self.before) != set(self.after)

    def __str__(self) -> str:
        return f"{', '.join(self.before) or NO_KEY} → {', '.join(self.after) or NO_KEY}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Others:
    """Other messages that have one of the new keys already, the newest first."""

    keys: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """The new keys of each of them."""
    states: Mapping[int, str] = field(default_factory=dict)

    @property
    def mark(self) -> str:
        """Text by which an operator says that they know these messages in these states; empty if there are none."""
        lines = [f"{pk} {self.states[pk]} {' '.join(keys)}" for pk, keys in self.keys.items()]
        return sha256("\n".join(lines).encode(errors="backslashreplace")).hexdigest()[:16] if lines else ""

    def __len__(self) -> int:
        return len(self.keys)

    def check(self, known: str) -> None:
        """Raise ``KeyTaken`` unless the operator knows these messages as they are now."""
        if self.mark != known and self.keys:
            raise KeyTaken(self)


def check_free(changes: Mapping[int, KeyChange], known: str) -> None:
    """Raise ``KeyTaken`` if other messages have a name which these edits would give, unless the operator knows them.

    Two edits that give names wait for each other: the second one finds the key that the first one has stored.
    """
    if any(change.name for change in changes.values()):
        take_turns()
        others_with(changes).check(known)


class KeyTaken(Refused):
    """Other messages have the new business key already, and the operator has not said that they know them."""

    def __init__(self, others: Others) -> None:
        text = ngettext(
            "Nothing was stored: another message has the new business key already. Check it, then confirm that you "
            "know it.",
            "Nothing was stored: %(count)d other messages have the new business keys already. Check them, then "
            "confirm that you know them.",
            len(others),
        )
        super().__init__(text % {"count": len(others)})
        self.others = others


def others_with(changes: Mapping[int, KeyChange]) -> Others:
    """Return the other messages that have a name which these edits would give.

    Each edited message is passed with the change of its keys. Those after the first one name a customer, of whom other
    messages are nothing to know.
    """
    gaining: dict[str, set[int]] = defaultdict(set)
    for pk, change in changes.items():
        if change.name:
            gaining[change.name].add(pk)
    found: dict[int, list[str]] = defaultdict(list)
    for keys in in_slices(sorted(gaining), AT_ONCE):
        rows = BusinessKey.objects.using(records_alias()).filter(value__in=keys).order_by("-message_id", "pk")
        for pk, key in rows.values_list("message_id", "value")[: max(MOST_OTHERS - len(found), 0)]:
            # Some databases treat keys as equal that differ in case or accents.
            if gaining.get(key, {pk}) - {pk}:
                found[pk].append(key)
    states: dict[int, str] = {}
    for numbers in in_slices(list(found), AT_ONCE):
        rows_of = ParkedMessage.objects.using(records_alias()).filter(pk__in=numbers)
        states.update(rows_of.values_list("pk", "state"))
    return Others(keys={pk: found[pk] for pk in sorted(states, reverse=True)}, states=states)


def equal_names(changes: Mapping[int, KeyChange]) -> dict[int, str]:
    """Return the messages that these edits would give the same name as another one of them, with that name."""
    named: dict[str, list[int]] = defaultdict(list)
    for pk, change in changes.items():
        if change.after:
            named[change.after[0]].append(pk)
    alike = {name: pks for name, pks in named.items() if len(pks) > 1 and any(changes[pk].name for pk in pks)}
    return {pk: name for name, pks in alike.items() for pk in pks if changes[pk].name}


def store_keys(edits: Iterable[tuple[ParkedMessage, KeyChange]]) -> None:
    """Store the new keys in front of the earlier ones, so that a search finds the messages by both.

    Call it in the transaction of the edit, which has locked the messages.
    """
    using, changed = records_alias(), [(message, change) for message, change in edits if change]
    known: dict[int, list[str]] = defaultdict(list)
    for some in in_slices([message.pk for message, _change in changed], AT_ONCE):
        rows = BusinessKey.objects.using(using).filter(message__in=some)
        for pk, value in rows.order_by("pk").values_list("message_id", "value"):
            known[pk].append(value)
        rows.delete()
    keys = [
        BusinessKey(message=message, value=value)
        for message, change in changed
        for value in dict.fromkeys([*change.after, *known[message.pk]])
    ]
    BusinessKey.objects.using(using).bulk_create(keys, batch_size=AT_ONCE, ignore_conflicts=True)
    for message, change in changed:
        if change.name:
            ParkedMessage.objects.using(using).filter(pk=message.pk).update(business_key=change.name)


def key_facts(edits: Iterable[tuple[ParkedMessage, KeyChange]]) -> dict[str, object]:
    """Return what the audit log holds of the changed keys, by which the timeline of each message shows its own."""
    changed = [(message.pk, change) for message, change in edits if change]
    keys = [{"message": pk, "before": list(one.before), "after": list(one.after)} for pk, one in changed]
    return {"keys": keys} if keys else {}


def key_change_in(facts: Mapping[str, object], message: int) -> KeyChange | None:
    """Return the change of this message's keys from the facts of an action; None if it changed none."""
    entries = facts.get("keys")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("message") == message:
            return KeyChange(before=tuple(entry.get("before", ())), after=tuple(entry.get("after", ())))
    return None
