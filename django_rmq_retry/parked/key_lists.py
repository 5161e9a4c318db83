"""Lists of business keys and message ids: parsed, looked up and kept."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from django.db.models import Exists, OuterRef, QuerySet
from django.utils.translation import gettext as _

from django_rmq_retry import database_clock
from django_rmq_retry.models import BusinessKey, KeyList, ListedKey, ParkedMessage, RequeueItem, State
from django_rmq_retry.models.parked import OPEN, folded, name_of
from django_rmq_retry.models.runs import ACTIVE, NOT_ENDED
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.elsewhere import places_of
from django_rmq_retry.parked.found import Found, Room
from django_rmq_retry.parked.may_have_run import FACTS_OF_DOUBT, Doubt, doubt_of, with_doubts
from django_rmq_retry.parked.nameless import with_contents
from django_rmq_retry.parked.operators import Actor, Refused
from django_rmq_retry.parked.selection import EXCEPT, LIST_USABLE, LISTED, number_in
from django_rmq_retry.statements import KEYS_AT_ONCE, BulkInsert, in_slices, with_one_of, writing

MOST_FOUND = 50_000
"""Largest number of messages that the keys of one list may name."""
TIDIED_LISTS = 100
"""Largest number of unused lists that are deleted when a new one is stored."""
ON_WAY = (State.REQUEUEING, State.REQUEUED)
insert = BulkInsert(ListedKey, ("list_id", "place", "value", "message"))

Visible = Callable[[ParkedMessage], bool]
"""Returns True if the operator may see a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMatch:
    """A message that a key names."""

    record: int
    state: str
    name: str
    run: int | None = None
    """The active requeue run that contains it."""
    own: tuple[str, str] = ("", "")
    """Its first business key and its message id: the names of this one message."""
    content: int | None = None
    """The number that copies of one message have in common."""
    doubt: Doubt | None = None
    """That its work was done twice, or perhaps was done."""

    @property
    def on_way(self) -> bool:
        """True if a requeue run sends it or has sent it, so that it may be handled at any moment."""
        return self.run is not None or self.state in ON_WAY


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """The messages that each key of a list names, with their state."""

    keys: Sequence[str]
    matches: Mapping[str, Sequence[KeyMatch]]
    alike: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """For keys that were not found, stored ones that differ in upper and lower case only."""
    otherwise: Mapping[str, Sequence[KeyMatch]] = field(default_factory=dict)
    """For keys that were not found, the messages that have them as correlation id or as number."""
    elsewhere: Mapping[str, Sequence[Found]] = field(default_factory=dict)
    """Where messages are that are not parked, in the order of the keys; those of records are left out."""
    cut: bool = False
    """True if there are more of them for a key."""
    in_content: Mapping[str, Sequence[KeyMatch]] = field(default_factory=dict)
    """For keys found nowhere else, parked messages without a business key in whose contents they stand."""
    limits: str = ""
    """Where else the keys without a record were looked for, and where not."""

    @cached_property
    def further(self) -> list[str]:
        """Keys that are the first key of none of their messages, such as a customer's."""
        return [key for key in self.keys if (some := self._of(key)) and not any(key in one.own for one in some)]

    @cached_property
    def found(self) -> list[str]:
        """Keys that name one message, which is parked."""
        return [key for key in self.keys if [one.state for one in self._of(key)] == [State.PARKED]]

    @cached_property
    def held(self) -> list[str]:
        """Keys that name one message, which is on hold."""
        return [key for key in self.keys if [one.state for one in self._of(key)] == [State.ON_HOLD]]

    @cached_property
    def missing(self) -> list[str]:
        found = self.elsewhere.keys() | self.in_content.keys()
        return [key for key in self.keys if not self._of(key) and key not in found]

    @cached_property
    def several(self) -> list[str]:
        """Keys that name more than one message."""
        return [key for key in self.keys if len(self._of(key)) > 1]

    @cached_property
    def copies(self) -> list[str]:
        """Keys whose messages are copies of one message, which its sender published several times."""
        contents = {key: {one.content for one in self._of(key)} for key in self.several}
        return [key for key, some in contents.items() if len(some) == 1 and None not in some]

    @cached_property
    def closed(self) -> list[str]:
        """Keys that name one message, which no operator has to decide on: in a requeue run, processed or discarded."""
        return [key for key in self.keys if len(self._of(key)) == 1 and self._of(key)[0].state not in OPEN]

    def twice(self, states: Sequence[str]) -> dict[str, int]:
        """Return the keys that name more than one message in these states, each with the number of messages."""
        counts = {key: sum(one.state in states for one in self._of(key)) for key in self.several}
        return {key: count for key, count in counts.items() if count > 1}

    def kept_on_hold(self, states: Sequence[str]) -> list[str]:
        """Return the keys that name a message on hold, if an act on messages in these states does not reach it."""
        on_hold = (key for key in self.keys if any(one.state == State.ON_HOLD for one in self._of(key)))
        return [] if State.ON_HOLD in states else list(on_hold)

    def doubtful(self, states: Sequence[str]) -> list[str]:
        """Return the keys that an operator has to check before an act on messages in these states.

        They match no parked message, several, or one on hold: its hold ends, and what was decided is not done to it.
        """
        none = [*self.missing, *self.elsewhere, *self.in_content]
        return list(dict.fromkeys([*none, *self.kept_on_hold(states), *self.twice(states)]))

    @cached_property
    def spaced(self) -> list[str]:
        """Keys that were not found and contain a space: they may be several keys."""
        return [key for key in self.missing if " " in key]

    def records(self, *states: str) -> set[int]:
        """Return the messages in one of these states; in any state if none is given."""
        return {one.record for some in self.matches.values() for one in some if not states or one.state in states}

    @property
    def complete(self) -> bool:
        """True if each key names one parked message, and none that is elsewhere."""
        return len(self.found) == len(self.keys) and not self.elsewhere and not self.in_content

    def _of(self, key: str) -> Sequence[KeyMatch]:
        return self.matches.get(key, ())


def look_up(keys: Sequence[str], seen: Visible | None = None) -> dict[str, list[int]]:
    """Return the records that each key names exactly, without those that ``seen`` hides."""
    wanted, matches = set(keys), dict[str, dict[int, None]]()
    count = 0
    for value, record in _stored(keys):
        # Some databases treat texts as equal that differ in case, accents or trailing spaces.
        if value not in wanted or record in matches.setdefault(value, {}):
            continue
        matches[value][record] = None
        count += 1
        if count > MOST_FOUND:
            raise _too_many()
    visible = _visible({one for some in matches.values() for one in some}, seen)
    kept = {key: sorted(one for one in matches.get(key, ()) if one in visible) for key in keys}
    return {key: some for key, some in kept.items() if some}


def _too_many() -> Refused:
    text = _("These keys match more than %(most)d messages. Choose the messages by a filter instead.")
    return Refused(text % {"most": MOST_FOUND})


def _stored(keys: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield the stored keys and IDs that the database treats as equal to one of these, each with its record."""
    most = MOST_FOUND + 1
    for named in with_one_of(BusinessKey.objects.using(records_alias()), "value", keys):
        yield from named.values_list("value", "message_id")[:most]
    for known in with_one_of(_records(), "message_id", keys):
        yield from known.values_list("message_id", "pk")[:most]


def _visible(records: set[int], seen: Visible | None) -> set[int]:
    if seen is None:
        return records
    parts = (_records().filter(pk__in=some) for some in in_slices(records, KEYS_AT_ONCE))
    return {row.pk for part in parts for row in part.defer("body", "properties") if seen(row)}


def _records() -> "QuerySet[ParkedMessage]":
    return ParkedMessage.objects.using(records_alias()).order_by()


def alike(missing: Sequence[str], seen: Visible | None = None) -> dict[str, list[str]]:
    """Return, for keys that are not stored, stored business keys that differ from them in case only.

    Message IDs are found in upper case, in lower case, or with an initial capital: they have no index without case.
    """
    by_fold: dict[str, list[str]] = {}
    for key in missing:
        by_fold.setdefault(folded(key), []).append(key)
    spelled = {other for key in missing for other in (key.upper(), key.lower(), key.capitalize())} - set(missing)
    near = {value for value, _record in _stored(sorted(spelled)) if folded(value) in by_fold}
    for keys in with_one_of(BusinessKey.objects.using(records_alias()), "folded", by_fold):
        near.update(keys.values_list("value", flat=True)[: MOST_FOUND + 1])
    alike: dict[str, list[str]] = {}
    for value in sorted(look_up(sorted(near - set(missing)), seen)):
        for key in by_fold.get(folded(value), ()):
            alike.setdefault(key, []).append(value)
    return alike


def named_otherwise(missing: Sequence[str], seen: Visible | None = None) -> dict[str, list[KeyMatch]]:
    """Return, for keys that are not stored, the messages that have them as correlation id or as number such as #17.

    A list does not choose by them: several messages may have one correlation id, and a number is easily mistyped.
    """
    wanted, found = set(missing), dict[str, set[int]]()
    for rows in with_one_of(_records(), "correlation_id", missing):
        for value, record in rows.values_list("correlation_id", "pk")[: MOST_FOUND + 1]:
            # Some databases treat texts as equal that differ in case, accents or trailing spaces.
            if value in wanted:
                found.setdefault(value, set()).add(record)
    for key in missing:
        number = number_in(key.removeprefix("#")) if key.startswith("#") else None
        if number is not None:
            found.setdefault(key, set()).add(number)
    known = _matches(sorted(_visible({one for some in found.values() for one in some}, seen)))
    matches = {key: [known[one] for one in sorted(found.get(key, ())) if one in known] for key in missing}
    return {key: some for key, some in matches.items() if some}


def store(keys: Sequence[str], actor: Actor, named: Mapping[str, Sequence[int]] | None = None) -> KeyList:
    """Store a list, with the records that its keys name now."""
    using, now, named = records_alias(), database_clock.now(records_alias()), named or {}
    with writing(KeyList, using=using):
        _tidy(using)
        by_key = "" if actor.user_id is None else str(actor.user_id)
        stored = KeyList(created_at=now, by=actor.name, by_key=by_key, count=len(keys))
        stored.save(using=using)
        rows = [
            (stored.pk, place, key, record) for place, key in enumerate(keys) for record in named.get(key) or (None,)
        ]
        insert(rows, using=using)
    return stored


def _tidy(using: str) -> None:
    """Delete lists that are too old to be used: see ``LIST_USABLE``."""
    now = database_clock.trusted(using)
    if now is None:
        return
    due = KeyList.objects.using(using).filter(kept=False, created_at__lt=now - 2 * LIST_USABLE)
    numbers = list(due.order_by("pk").values_list("pk", flat=True)[:TIDIED_LISTS])
    if numbers:
        _delete(numbers, using)


def delete_before(before: datetime, using: str) -> None:
    """Delete the lists of actions that were purged from the audit log: each list is older than its actions."""
    old = KeyList.objects.using(using).filter(created_at__lt=before - 2 * LIST_USABLE)
    for numbers in in_slices(list(old.values_list("pk", flat=True)), KEYS_AT_ONCE):
        _delete(numbers, using)


def _delete(numbers: Sequence[int], using: str) -> None:
    ListedKey.objects.using(using).filter(list__in=numbers).delete()
    KeyList.objects.using(using).filter(pk__in=numbers).delete()


def list_filter(known: KeyList) -> dict[str, int]:
    """Return the reference to a list for the filter of a selection."""
    return {"list": known.pk, "count": known.count}


def mark_kept(filter: Mapping[str, Any]) -> None:  # noqa: A002 - its name
    """Mark a selection's lists as kept, because an action refers to them now."""
    numbers = [filter[name]["list"] for name in (LISTED, EXCEPT) if name in filter]
    if numbers:
        KeyList.objects.using(records_alias()).filter(pk__in=numbers).update(kept=True)


def keys_of(number: int) -> list[str]:
    rows = ListedKey.objects.using(records_alias()).filter(list=number).order_by("place")
    return list(dict.fromkeys(rows.values_list("value", flat=True)))


def unmatched_when_stored(lists: Collection[int]) -> dict[int, list[str]]:
    """Return the keys of these lists that matched no message when their list was stored, by the list's number."""
    rows = (
        ListedKey.objects.using(records_alias()).filter(list__in=lists, message__isnull=True).order_by("list", "place")
    )
    found: dict[int, list[str]] = {}
    for number, value in rows.values_list("list", "value"):
        found.setdefault(number, []).append(value)
    return found


def matches_of_list(known: KeyList, seen: Visible | None = None, rooms: Sequence[Room] = tuple(Room)) -> Lookup:
    """Return the current states of the messages that a list named when it was stored."""
    named: dict[str, list[int]] = {}
    rows = ListedKey.objects.using(records_alias()).filter(list=known).order_by("place", "message")
    for value, record in rows.values_list("value", "message"):
        named.setdefault(value, []).extend([] if record is None else [record])
    return current_matches(list(named), named, seen, rooms)


def current_matches(
    keys: Sequence[str],
    named: Mapping[str, Sequence[int]],
    seen: Visible | None = None,
    rooms: Sequence[Room] = tuple(Room),
) -> Lookup:
    """Return the current states of the messages that keys name; what else they name is looked for in the rooms."""
    numbers = _visible({one for some in named.values() for one in some}, seen)
    known = _matches(sorted(numbers))
    matches = {key: [known[one] for one in named.get(key, ()) if one in known] for key in keys}
    lookup = Lookup(keys=keys, matches={key: some for key, some in matches.items() if some})
    # A key that is only spelled otherwise has a record, whose message may also be in a handler.
    spelled = alike(lookup.missing, seen) if lookup.missing else {}
    unparked = places_of([key for key in keys if key not in spelled], rooms)
    # Of one key or customer some messages may be parked, and others not.
    own = lookup.matches.keys() - set(lookup.further)
    named_by = {key: [one for one in some if not one.own or key not in own] for key, some in unparked.found.items()}
    found = {key: named_by[key] for key in keys if named_by.get(key)}
    lookup = replace(lookup, alike=spelled, elsewhere=found, cut=unparked.cut, limits=unparked.limits)
    if lookup.missing:
        lookup = replace(lookup, in_content=_in_contents(lookup.missing, seen))
    return replace(lookup, otherwise=named_otherwise(lookup.missing, seen)) if lookup.missing else lookup


def _in_contents(keys: Sequence[str], seen: Visible | None) -> dict[str, list[KeyMatch]]:
    """Return, for keys that are not stored, the messages without a key in whose contents they stand.

    A list does not choose by them: only its operator can say that the text is the key of that message.
    """
    found = {key: [row for row in some if seen is None or seen(row)] for key, some in with_contents(keys).items()}
    known = _matches(sorted({row.pk for some in found.values() for row in some}))
    return {key: [known[row.pk] for row in found[key] if row.pk in known] for key in keys if found.get(key)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """The effect of excluding a list of keys from a selection."""

    keys: Sequence[str]
    messages: int
    missing: Sequence[str]
    alike: Mapping[str, Sequence[str]]
    elsewhere: Mapping[str, Sequence[KeyMatch]]
    """Keys whose messages are outside the selection, or some of them that may be handled, each with those outside."""
    several: Mapping[str, int]
    """Keys that exclude more than one message, each with the number of messages."""
    unparked: Mapping[str, Sequence[Found]] = field(default_factory=dict)
    """Keys whose messages were not parked, with where they are: nothing leaves these messages out."""
    in_content: Mapping[str, Sequence[KeyMatch]] = field(default_factory=dict)
    """Keys that stand in the contents of messages without a business key: nothing leaves these messages out either."""
    records: frozenset[int] = frozenset()
    """What the keys name, inside the selection or not."""

    @property
    def on_way(self) -> list[str]:
        """Keys with messages outside the selection that may be handled at any moment: nothing leaves these out."""
        return [key for key, some in self.elsewhere.items() if any(one.on_way for one in some)]

    @property
    def doubtful(self) -> list[str]:
        """Keys that match no parked message, several, or one that may be handled: an operator has to check each."""
        return list(dict.fromkeys([*self.missing, *self.unparked, *self.in_content, *self.on_way, *self.several]))


def excluded(
    listed: int,
    rows: "QuerySet[ParkedMessage]",
    seen: Visible | None = None,
    rooms: Sequence[Room] = tuple(Room),
) -> Excluded:
    """Return the effect of excluding a stored list of keys from the rows of a selection."""
    keys = keys_of(listed)
    found = _found_among(listed, keys, rows)
    visible = _visible({one for some in found.values() for one in some}, seen)
    named = {key: {one: among for one, among in some.items() if one in visible} for key, some in found.items()}
    counts = {key: sum(some.values()) for key, some in named.items()}
    outside = {key: sorted(one for one, among in some.items() if not among) for key, some in named.items()}
    matches = _matches(sorted({one for some in outside.values() for one in some}))
    beside = {key: [matches[one] for one in outside.get(key, ()) if one in matches] for key in keys}
    unknown = [key for key in keys if not named.get(key)]
    spelled = alike(unknown, seen) if unknown else {}
    unparked = places_of([key for key in unknown if key not in spelled], rooms).found
    missing = [key for key in unknown if key not in unparked]
    in_content = _in_contents(missing, seen) if missing else {}
    return Excluded(
        keys=keys,
        messages=len({one for some in named.values() for one, among in some.items() if among}),
        missing=[key for key in missing if key not in in_content],
        alike=spelled,
        elsewhere={
            key: some for key, some in beside.items() if some and (not counts[key] or any(one.on_way for one in some))
        },
        several={key: counts[key] for key in keys if counts.get(key, 0) > 1},
        unparked=unparked,
        in_content=in_content,
        records=frozenset(one for some in found.values() for one in some),
    )


def unmatched(keys: Sequence[str]) -> list[str]:
    """Return the keys that no message has now."""
    found = {value for value, _record in _stored(keys)}
    return [key for key in keys if key not in found]


def _found_among(listed: int, keys: Sequence[str], rows: "QuerySet[ParkedMessage]") -> dict[str, dict[int, bool]]:
    """Return the messages that each key of a stored list names, each with True if it is one of the rows.

    The list is joined where it is stored: to send 10,000 keys to the database takes longer than to find them there.
    """
    wanted, found, count = set(keys), dict[str, dict[int, bool]](), 0
    values: Any = ListedKey.objects.using(records_alias()).filter(list=listed).order_by().values("value")
    named = BusinessKey.objects.using(records_alias()).order_by().filter(value__in=values)
    known = _records().filter(message_id__in=values)
    kinds: Any = (
        named.annotate(among=Exists(rows.filter(pk=OuterRef("message")))).values_list("value", "message_id", "among"),
        known.annotate(among=Exists(rows.filter(pk=OuterRef("pk")))).values_list("message_id", "pk", "among"),
    )
    for value, record, among in (row for kind in kinds for row in kind[: MOST_FOUND + 1]):
        # Some databases treat texts as equal that differ in case, accents or trailing spaces.
        if value in wanted and record not in found.setdefault(value, {}):
            found[value][record] = bool(among)
            count += 1
    if count > MOST_FOUND:
        raise _too_many()
    return found


def _matches(numbers: Sequence[int]) -> dict[int, KeyMatch]:
    items = RequeueItem.objects.using(records_alias()).filter(state__in=NOT_ENDED, run__state__in=ACTIVE)
    runs: dict[Any, int] = {
        message: run
        for some in with_one_of(items, "message", numbers)
        for message, run in some.order_by("pk").values_list("message", "run")
    }
    # Rows, not messages: of ten thousand messages most of the time would go into making them.
    named = ("pk", "business_key", "message_id", "content", *FACTS_OF_DOUBT, "handled_twice", "perhaps_twice")
    return {
        row.pk: KeyMatch(
            record=row.pk,
            state=row.state,
            name=name_of(row.pk, row.business_key, row.message_id),
            run=runs.get(row.pk),
            own=(row.business_key, row.message_id),
            content=row.content,
            doubt=doubt_of(row),
        )
        for some in with_one_of(with_doubts(_records()), "pk", numbers)
        for row in some.values_list(*named, named=True)
    }
