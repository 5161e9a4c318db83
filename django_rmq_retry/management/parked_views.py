"""``rmq_parked``: list and show messages, keys and groups."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from shlex import quote
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db.models import Subquery

from django_rmq_retry import database_clock
from django_rmq_retry.arguments import plural
from django_rmq_retry.attempts.history import (
    attempts_of,
    count_attempts,
    failures_counted,
    failures_of,
    first_failed,
    lost_attempts,
)
from django_rmq_retry.breakers import table
from django_rmq_retry.conf import settings
from django_rmq_retry.database_clock import stated_time
from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.health.begun import Begun, begun_of, in_words
from django_rmq_retry.health.doubts import acts_of
from django_rmq_retry.health.facts import survey
from django_rmq_retry.health.handled_again import HandledAgain
from django_rmq_retry.health.rules import Code
from django_rmq_retry.management.arguments import MOST_LISTED, add_limit, positive
from django_rmq_retry.management.command import Options, RmqCommand, usage_error
from django_rmq_retry.management.parked_choice import (
    add_choice,
    counted_beside,
    counts_beside,
    given_filter,
    keys_data,
    keys_from,
    option_of,
    place_data,
    reason_for,
    report_keys,
    selection_of,
    state_of,
)
from django_rmq_retry.management.parked_runs import stopped_lines
from django_rmq_retry.management.terminal import clock, local, utc
from django_rmq_retry.messages.deaths import MOST_DEATHS_SHOWN, Death, deaths, well_formed
from django_rmq_retry.messages.masking import body_text, indented, is_json, masked, without
from django_rmq_retry.messages.properties import decode_properties
from django_rmq_retry.messages.reasons import Reason
from django_rmq_retry.messages.texts import short
from django_rmq_retry.models import (
    Action,
    Attempt,
    ErrorGroup,
    OperatorAction,
    ParkedMessage,
    ParkedOrigin,
    RequeueRun,
    State,
)
from django_rmq_retry.models.parked import SAID, reason_text
from django_rmq_retry.parked import missed_discards
from django_rmq_retry.parked.audit import actions_named, acts_on, log_action
from django_rmq_retry.parked.checked import check_of, checked_in_words
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.edit import as_text
from django_rmq_retry.parked.elsewhere import elsewhere, places_of
from django_rmq_retry.parked.findings import FINDING_TEXTS, sends_any
from django_rmq_retry.parked.found import Found
from django_rmq_retry.parked.groups import group_grows, last_parked, parked_lately, still_failing, with_held
from django_rmq_retry.parked.items import groups_of_runs, queue_of, waits_in
from django_rmq_retry.parked.key_lists import Lookup, current_matches, look_up
from django_rmq_retry.parked.links import message_links
from django_rmq_retry.parked.may_have_run import (
    attempts_counted,
    doubt_about,
    what_may_remain,
    with_doubts,
    with_perhaps_handled,
)
from django_rmq_retry.parked.nameless import with_content
from django_rmq_retry.parked.operators import Actor
from django_rmq_retry.parked.outcome_texts import (
    Handled,
    copies_of,
    discard_of,
    discarded_before,
    handled_of,
    others_of_key,
    outcome_of,
)
from django_rmq_retry.parked.selection import PageEnd, Selection, number_in, numbers_of, pages
from django_rmq_retry.parked.transfer import as_data
from django_rmq_retry.wording import listed

FORMATTED_LIMIT = 16 * 1024 * 1024
"""Indenting makes a body longer: one that would grow beyond this size is written as it is stored."""
LISTED = ("ID", "STATE", "PARKED", "KEY", "TYPE", "QUEUE", "ATTEMPTS", "ERROR")
SPARE = ("TYPE", "ATTEMPTS")
"""Columns that a narrow terminal does without."""
BODIES = ("none", "exact", "pretty", "hex")


def add_arguments(add: Callable[..., CommandParser]) -> None:
    listed = add("list", show_list, help="list messages, the latest first")
    add_choice(listed)
    listed.add_argument("--limit", type=positive, metavar="N", help=f"at most N messages; {MOST_LISTED} by default")
    listed.add_argument(
        "--after", metavar="PLACE", help="continue after this record number, or after “next” of the previous page"
    )
    listed.add_argument(
        "--handled-again",
        action="store_true",
        help="list what was handled twice within a day, or perhaps was, outside of requeue runs, as Live status does",
    )
    listed.add_argument("--jsonl", action="store_true", help="one JSON object per line; all messages without --limit")
    keys = add("keys", show_keys, help="show the messages of each key in a list; changes nothing")
    keys.add_argument(
        "file", metavar="FILE", help="business keys or message ids, one per line or separated; - is stdin"
    )
    groups = add("groups", show_groups, help="list error groups, the largest first")
    groups.add_argument("--all", action="store_true", help="include groups without parked messages")
    add_limit(groups, "groups")
    show = add("show", show_one, help="show a message with its attempts")
    show.add_argument("message", metavar="MESSAGE", help="a record's number, a business key or a message id")
    show.add_argument("--body", choices=BODIES, default="none", help="format of the body, which is masked")
    show.add_argument("--attempts", choices=("last", "all"), default="last", help="show the last attempt, or all")
    show.add_argument("--reveal", action="store_true", help="show body and headers unmasked; the audit log records it")


def show_list(command: RmqCommand, options: Options) -> Exit:
    if options["handled_again"]:
        return _show_handled_again(command, options)
    # Who looks for one message wants to find it, whatever became of it.
    of_runs = ("handled_twice_of_run", "perhaps_twice_of_run", "unconfirmed_of_run")
    naming = ("search", "key", "message_id", "correlation_id", "begins", *of_runs)
    named = any(options[name] for name in naming)
    states = ",".join(State.values) if named else State.PARKED
    chosen = selection_of(options, states=states, narrow=False)
    if options["search"] and not chosen.count and not options["begins"]:
        begun = selection_of({**options, "search": None, "begins": options["search"]}, states=states, narrow=False)
        if begun.count:
            command.say(f"No key or id is exactly {short(options['search'], 80)}. These begin with it.")
            chosen = begun
    report_keys(command, chosen)
    rows = with_doubts(chosen.queryset()).select_related("group").prefetch_related("keys").defer("body", "properties")
    after, limit = _place(options["after"]), options["limit"]
    if options["jsonl"]:
        lines = 0
        for page in pages(rows, after=after, limit=limit):
            lines += len(page)
            for row in page:
                command.stdout.write(json.dumps(as_data(row)))
        return Exit.DONE if lines else _code_of_none(options)
    # Read one row more than is shown, to detect a following page.
    most = limit or MOST_LISTED
    more = [row for page in pages(rows, after=after, limit=most + 1) for row in page]
    found = more[:most]
    following = str(PageEnd.of(found[-1])) if len(more) > most else None
    if options["json"]:
        items = [as_data(row) for row in found]
        others = elsewhere(asked).every if (asked := _asked(options)) else ()
        places = [place_data(one) for one in others]
        command.document("parked_list/1", total=chosen.count, items=items, next=following, elsewhere=places)
        return Exit.DONE if found else _code_of_none(options)
    if not found:
        return _say_none(command, options, chosen, everywhere=named and not options["state"])
    _write_list(command, found)
    if following:
        command.say(f"{len(found)} of {chosen.count} messages. For more, raise --limit or pass --after {following}")
    _say_what_next(command, options, chosen, found)
    return Exit.DONE


def _show_handled_again(command: RmqCommand, options: Options) -> Exit:
    """List what was handled twice outside of requeue runs, most of which has no record; the certain ones first."""
    if options["jsonl"] or options["after"]:
        raise usage_error("--handled-again cannot be combined with --jsonl or --after. Omit them.")
    known = survey(page=True)
    found, acts = known.handled_again, acts_of((one.mark for one in known.handled_again), known.checked)
    shown = [(one, acts.get(one.mark)) for one in found[: options["limit"] or MOST_LISTED]]
    if options["json"]:
        command.document("handled_again/1", total=len(found), items=[_again_data(*one) for one in shown])
    elif shown:
        terminal = command.stdout.isatty()
        rows = [
            (one.name, _doubt(one, act), one.queue, one.message_id or "-", _times(one, terminal)) for one, act in shown
        ]
        command.table([("MESSAGE", "HANDLED", "QUEUE", "ID", "WHEN"), *rows])
        if left := len(found) - len(shown):
            command.say(f"{left} more. Raise --limit to see them.")
    else:
        command.say("Within a day nothing was handled again, outside of requeue runs, that another consumer had.")
    return Exit.DONE if found else Exit.NOTHING


def _doubt(one: HandledAgain, act: OperatorAction | None) -> str:
    sign, checked = ("✓", f". {checked_in_words(act)}") if act else ("✕" if one.certain else "!", "")
    perhaps = f"perhaps {one.perhaps} times" if one.perhaps > 2 else "perhaps twice"  # noqa: PLR2004 - twice has a word
    told = [*(["twice"] if one.certain else []), *([perhaps] if one.begun_by or one.still or not one.certain else [])]
    begun = f": {', '.join(map(str, one.begun_by))} had begun it" if one.begun_by else ""
    begun += f": {', '.join(map(str, one.still))} still has it in a handler" if one.still else ""
    given = "" if one.certain else ": one that is gone had it, and may not have begun it"
    beside = f": one that is gone had it, or {listed(one.beside)}, which still runs" if one.beside else given
    return f"{sign} {', '.join(told)}{begun or beside}{checked}"


def _times(one: HandledAgain, terminal: bool) -> str:  # noqa: FBT001 - a private helper of one table
    return ", ".join(f"{local(at) if terminal else utc(at)} by {process}" for at, process in one.times)


def _again_data(one: HandledAgain, act: OperatorAction | None) -> Mapping[str, object]:
    names = ("name", "message_id", "queue", "handler", "certain")
    times = [{"at": utc(at), "by": process} for at, process in one.times]
    more = {"begun": begun_data((*one.begun_by, *one.still)), "running_beside": one.beside, "handled": times}
    return {**{name: getattr(one, name) for name in names}, **more, "checked": act.number if act else None}


def begun_data(begun: Iterable[Begun]) -> Sequence[Mapping[str, object]]:
    """Return the consumers that had begun a message, as JSON data."""
    return [{"process": str(one), "at": utc(one.since)} for one in begun]


def _say_what_next(command: RmqCommand, options: Options, chosen: Selection, found: Sequence[ParkedMessage]) -> None:
    """Say where a filter has other messages, and on a terminal how to go on with those that were listed."""
    if asked := _asked(options):
        _say_elsewhere(command, elsewhere(asked).every)
    by_list = any(options[name] for name in ("selection", "keys_from", "except_from"))
    filtered = {} if by_list else given_filter(options)
    if filtered and (others := _in_other_states(chosen)):
        command.say(others)
    if filtered and command.stdout.isatty():
        command.say(f"→ next: manage.py rmq_parked {_step_after(options, filtered, found, chosen.count)}")


def _write_list(command: RmqCommand, rows: Iterable[ParkedMessage]) -> None:
    command.table([LISTED, *_listed(rows, terminal=command.stdout.isatty())], cut=True, spare=SPARE)


def _say_none(command: RmqCommand, options: Options, chosen: Selection, *, everywhere: bool) -> Exit:
    """Say that nothing was found, and where the messages are that may have been meant."""
    asked, others = _asked(options), _in_other_states(chosen)
    if others:
        command.say(f"No message matches in the state {' or '.join(chosen.filter['state'])}.")
        command.say(others)
        return Exit.NOTHING
    other, unseen = _elsewhere(command, asked) if asked else ("", "")
    begins = f" No key or id begins with {short(asked, 80)}." if options["search"] or options["begins"] else ""
    searched = " All states were searched." if everywhere else ""
    command.say(other or f"No message matches.{begins}{searched}{unseen}")
    for name in ("error", "reason", "type", "queue", "handler"):
        if counts := counts_beside(chosen, name):
            command.say(f"Some would match with --{option_of(name)}: {counts}")
    return Exit.PARTLY if other else Exit.NOTHING


def _code_of_none(options: Options) -> Exit:
    """Return the code of a list without a message, which tells a key that is elsewhere from one that is nowhere."""
    asked = _asked(options)
    return Exit.PARTLY if asked and (elsewhere(asked).found or with_content(asked)) else Exit.NOTHING


def _asked(options: Options) -> str:
    """Return the key or id that is looked for; empty if messages are listed by something else."""
    return next((options[name] for name in ("search", "key", "message_id", "begins") if options[name]), "")


def _say_elsewhere(command: RmqCommand, found: Sequence[Found]) -> None:
    """Warn of other messages with a name: what is requeued here may be done there as well."""
    for one in found:
        command.say(f"! Also ({one.became}): {one}")


def _in_other_states(chosen: Selection) -> str:
    """Return how many messages match a filter but for its state, and how they are listed; empty if there are none."""
    shown = chosen.filter.get("state", ())
    counts = {state: count for state, count in counted_beside(chosen, "state") if state not in shown}
    if not counts:
        return ""
    named = ", ".join(f"{state} ({count})" for state, count in counts.items())
    total = sum(counts.values())
    matches = "matches" if total == 1 else "match"
    return f"{total} {matches} in other states: {named}. To list them, add --state {','.join(counts)}"


def _step_after(options: Options, filtered: Mapping[str, object], found: Sequence[ParkedMessage], count: int) -> str:
    """Return the command that continues after this list: a preview of its requeue if one of it is parked."""
    if not any(row.state == State.PARKED for row in found):
        return f"show {found[0].pk}"
    states = {"state": options["state"]} if options["state"] else {}
    words = [f"--{option_of(name)} {quote(str(value))}" for name, value in {**filtered, **states}.items()]
    return f"{' '.join(['requeue', *words])}{reason_for(count, '')} --dry-run"


def _listed(rows: Iterable[ParkedMessage], *, terminal: bool) -> list[tuple[object, ...]]:
    known = list(rows)
    failed = failures_of(known)
    return [(row.pk, row.state, clock(row.parked_at, terminal=terminal), *_words(row, failed[row.pk])) for row in known]


def _elsewhere(command: RmqCommand, asked: str) -> tuple[str, str]:
    """Say where else a message is; return that in one sentence, or that it may be where nothing can search."""
    known = elsewhere(asked)
    for one in known.every:
        command.say(str(one))
    nameless = with_content(asked)[:MOST_LISTED]
    for row in nameless:
        command.say(f"In the content of a parked message without a business key: #{row.pk}")
    became = [*(one.became for one in known.every), *(["in the content of a parked message"] if nameless else [])]
    if not became:
        return "", f" {known.limits} manage.py rmq_status counts what waits in RabbitMQ."
    return f"No record has the key or id {short(asked, 80)}, but it was found: {listed(dict.fromkeys(became))}.", ""


def _named(command: RmqCommand, text: str) -> ParkedMessage:
    """Return the message with this number, else the one with this key or id; if there are several, list them."""
    rows = ParkedMessage.objects.select_related("group").prefetch_related("keys").order_by("-parked_at", "-pk")
    number = number_in(text.removeprefix("#"))
    found = list(rows.filter(pk=number)) if number is not None else []
    found = found or list(rows.filter(pk__in=numbers_of(text)[:MOST_LISTED]))
    if not found:
        acts = OperatorAction.objects.filter(actions_named(text))
        gone = f" Operators have acted on it: rmq_audit list --message {quote(text)}" if acts.exists() else ""
        other, unseen = _elsewhere(command, text)
        if other:
            raise CommandError(f"{other}{gone}", returncode=Exit.PARTLY)
        raise CommandError(f"There is no record of {text}.{gone}{unseen}", returncode=Exit.NOTHING)
    if len(found) > 1:
        _write_list(command, found)
        raise CommandError("Several messages match. Pass the number of one.", returncode=Exit.PARTLY)
    return found[0]


def _head(row: ParkedMessage, failed: int, handled: Handled) -> Iterator[str]:
    """Yield what happened to a message: its state and who decided it, then its error."""
    yield f"{row.type} {row}".strip() + f"  #{row.pk}"
    if row.came_back:
        yield discarded_before(row, discard_of(row))
    for request in missed_discards.of_messages([row.pk] if row.open else []).values():
        yield missed_discards.sentence(request)
    for other, sentence in (*copies_of(row), *others_of_key(row)):
        yield f"{sentence} #{other.pk}"
    parked = f"Parked {local(row.parked_at)}: {reason_text(row.reason)} after {plural(failed, 'attempt')}."
    yield " ".join(filter(None, (outcome_of(row, handled), "Earlier:" if not row.open else "", parked)))
    if handled.run:
        run = f"It was handled twice in requeue run {handled.run}."
        yield f"{run} {Code.HANDLED_TWICE.value.why}"
    acts = OperatorAction.objects.filter(acts_on([row.pk], runs=()), action=Action.CHECK)
    if act := check_of(row, acts.order_by("-number")[:1]):
        yield f"{checked_in_words(act)}."
    if row.open and (remains := what_may_remain(row)):
        yield remains
    if row.error or row.said:
        yield row.failure.replace("\n", " ")


def _place(given: str | None) -> PageEnd | None:
    if given is None:
        return None
    try:
        place = PageEnd.read(given)
    except ValueError:
        text = f"--after takes a record number, or “next” of the previous page, not {given!r}."
        raise usage_error(text) from None
    if place is None:
        raise CommandError(f"There is no message {given}.", returncode=Exit.NOTHING)
    return place


def show_keys(command: RmqCommand, options: Options) -> Exit:
    keys = keys_from(options["file"])
    lookup = current_matches(keys, look_up(keys))
    records = lookup.records()
    if options["json"]:
        command.document("parked_keys/1", **keys_data(lookup))
    else:
        kinds = {
            **dict.fromkeys(lookup.elsewhere, "elsewhere"),
            **dict.fromkeys(lookup.in_content, "in content"),
            **dict.fromkeys(lookup.found, "found"),
            **dict.fromkeys(lookup.missing, "not found"),
            **dict.fromkeys(lookup.several, "several"),
            **dict.fromkeys(lookup.copies, "copies"),
            **dict.fromkeys(lookup.held, "on hold"),
            **dict.fromkeys(lookup.closed, "not open"),
        }
        rows = [(key, kinds[key], *cells) for key in lookup.keys for cells in _matched(lookup, key)]
        command.table([("KEY", "RESULT", "ID", "STATE", "RUN", "DIFFERS IN CASE", "ELSEWHERE"), *rows])
    some = records or lookup.elsewhere or lookup.in_content
    return Exit.DONE if lookup.complete else Exit.PARTLY if some else Exit.NOTHING


def _matched(lookup: Lookup, key: str) -> list[tuple[object, ...]]:
    places = "; ".join(map(str, lookup.elsewhere.get(key, ()))) or "-"
    cells: list[tuple[object, ...]] = [
        (match.record, state_of(match), match.run or "-", "-", places)
        for match in lookup.matches.get(key) or lookup.in_content.get(key, ())
    ]
    return cells or [("-", "-", "-", " or ".join(lookup.alike.get(key, ())) or "-", places)]


def show_groups(command: RmqCommand, options: Options) -> Exit:
    rows = ErrorGroup.objects.order_by("-parked", "-last_seen")
    said = Subquery(last_parked().values(said=SAID)[:1])
    known = with_perhaps_handled(with_held(rows if options["all"] else rows.filter(parked__gt=0))).annotate(said=said)
    groups = list(known[: options["limit"]])
    lately = parked_lately([row.pk for row in groups], buckets=1)
    recent = {group: counts[-1] for group, counts in lately.counts.items()}
    now = database_clock.now(records_alias())
    runs = groups_of_runs([row.pk for row in groups])
    growing = {row.pk: group_grows(row, lately.newest[row.pk], now, run=runs.get(row.pk)) for row in groups}
    perhaps = sum(row.perhaps for row in groups)
    step = _next_step({row.pk: row.parked for row in groups if row.parked}, runs)
    if options["json"]:
        items = [
            {
                **_group_data(row),
                "parked": row.parked - row.held,
                "on_hold": row.held,
                "may_have_been_handled": row.perhaps,
                "growing": growing[row.pk],
                "recent": recent[row.pk],
            }
            for row in groups
        ]
        command.document("parked_groups/1", items=items, next=step)
    elif groups:
        terminal = command.stdout.isatty()
        doubts = ["MAY BE DONE"] if perhaps else []
        head = ("GROUP", "PARKED", "ON HOLD", *doubts, "LAST", "GROWING", "ERROR")
        places = _queues_of([row.pk for row in groups if not row.culprit])
        cells = [
            (
                row.pk,
                row.parked - row.held,
                row.held,
                *([row.perhaps] if perhaps else []),
                clock(row.last_seen, terminal=terminal),
                "yes" if growing[row.pk] else "no",
                " · ".join([_named_group(row), *places.get(row.pk, ())]),
            )
            for row in groups
        ]
        command.table([head, *cells], cut=True)
        if terminal and step:
            command.say(f"→ next: manage.py {step}")
        if perhaps:
            command.say(f"! {FINDING_TEXTS['worker_stopped'] % {'count': perhaps}}. A requeue leaves them out.")
    else:
        command.say("No message is parked.")
    return Exit.DONE if groups else Exit.NOTHING


def _named_group(row: Any) -> str:
    """Return the name of a group; without an error, also what the handler said that parked its last message."""
    said = row.said if row.title == row.reason == Reason.REQUESTED else ""
    return ": ".join(filter(None, (str(row), said))).replace("\n", " ")


def _queues_of(groups: Sequence[int]) -> Mapping[int, Sequence[str]]:
    """Return the queues of groups without a place in the code, such as those of workers that died."""
    found: dict[int, list[str]] = {}
    origins = ParkedOrigin.objects.filter(group__in=groups, count__gt=0).order_by("queue")
    for group, queue in origins.values_list("group", "queue").distinct():
        found.setdefault(group, []).append(queue)
    return found


def _next_step(parked: Mapping[int, int], runs: Mapping[int, RequeueRun]) -> str | None:
    """Return the command that continues with one of these groups, which have so many messages, and some active runs.

    It follows the group's requeue run, previews a requeue, or looks.
    """
    groups = list(parked)
    for group in groups:
        if group in runs:
            return f"rmq_parked requeue-run {runs[group].pk}"
        if sends_any(group):
            return f"rmq_parked requeue --group {group}{reason_for(parked[group], '')} --dry-run"
    if not groups:
        return None
    listed = ParkedMessage.objects.filter(group=groups[0], state=State.PARKED).exists()
    return f"rmq_parked list --group {groups[0]}{'' if listed else f' --state {State.ON_HOLD}'}"


def _group_data(row: ErrorGroup) -> Mapping[str, object]:
    names = ("title", "culprit", "reason", "parked", "requeued", "processed", "discarded", "note")
    times = {name: clock(getattr(row, name), terminal=False) for name in ("first_seen", "last_seen")}
    return {"id": row.pk, **{name: getattr(row, name) for name in names}, "failed_again": still_failing(row), **times}


def show_one(command: RmqCommand, options: Options) -> Exit:
    row = _named(command, options["message"])
    if options["reveal"]:
        log_action(Actor.of_shell(), Action.REVEAL, message=row.pk, group=row.group_id, subject=str(row))
    body = None if options["body"] == "none" else _body(row, options["body"], reveal=options["reveal"])
    died = _deaths(row)
    headers = dict(_headers(row, reveal=options["reveal"]))
    attempts = attempts_of(row)
    some = list(attempts if options["attempts"] == "all" else attempts[:1])
    lost = lost_attempts(row, next((found["n"] for found in failures_counted(row)), None))
    others = places_of([name for name in (row.business_key, row.message_id) if name]).beside
    links = message_links(row, [key.value for key in sorted(row.keys.all(), key=lambda key: key.pk)])
    begun = begun_of(row, attempts)
    handled = handled_of(row, begun=len(begun))
    items = list(row.items.select_related("run").order_by("-pk"))
    waiting, queue, failed = waits_in(items), queue_of(row, items), first_failed(row)
    stopped = table.stopped([queue], table.now()) if queue else []
    if options["json"]:
        entries = None if died is None else [_death(one) for one in died]
        command.document(
            "parked_show/1",
            message=as_data(row),
            first_failed=utc(failed),
            detail=row.detail,
            headers=headers,
            deaths=entries,
            attempts=[_attempt(one) for one in some],
            lost_attempts=lost.count if lost else 0,
            handled=handled.count,
            handled_twice_in_run=handled.run,
            begun=begun_data(begun),
            waits_in_runs=[run.pk for run in waiting],
            stopped_queues=[one.queue for one in stopped],
            body=body,
            links=links,
            elsewhere=[place_data(one) for one in others],
        )
        return Exit.DONE
    _say_elsewhere(command, others)
    counts = count_attempts(row, lost)
    attempted = [_attempt_line(one, terminal=command.stdout.isatty()) for one in some]
    told = [f"{'header':<16} {name}: {value}" for name, value in headers.items() if name != "x-death"]
    told += [f"{'begun and lost':<16} {in_words(begun)}"] if begun else []
    head = (*_head(row, counts.failed, handled), *(run.unsent_text for run in waiting), *stopped_lines(stopped))
    for line in (*head, "", *_facts(row, failed, links), *told, *_deaths_lines(died), *attempted):
        command.line(line)
    known = attempts.count()
    if len(some) < known:
        command.say(f"{len(some)} of {known} attempts; --attempts all shows all")
    if lost:
        command.say(str(lost))
    if body is not None:
        command.line()
        command.line(body)
    return Exit.DONE


def _facts(row: ParkedMessage, failed: datetime | None, links: Mapping[str, str]) -> Iterator[str]:
    """Yield what is stored of a message; its first failure is that of all cycles and copies."""
    data = {name: local(getattr(row, name)) if name.endswith("_at") else value for name, value in as_data(row).items()}
    data["failed_at"] = local(failed)
    for name, value in {**data, "group": f"{row.group_id} · {row.group}", "detail": row.detail, **links}.items():
        if value not in ("", None, [], ()):
            label = "first_failed" if name == "failed_at" else name
            yield f"{label:<16} {', '.join(value) if isinstance(value, list) else value}"


def _headers(row: ParkedMessage, *, reveal: bool) -> Iterator[tuple[str, str]]:
    """Yield the message's headers with their values in words; none of properties that cannot be decoded."""
    try:
        headers = decode_properties(bytes(row.properties)).headers
    except UndecodableHeaders:
        return
    masks = () if reveal else settings().operators.mask
    for name in headers:
        try:
            yield name, as_text(without(headers[name], [name], masks))
        except UndecodableHeaders as error:
            yield name, f"(cannot be decoded: {error.problem})"


def _deaths(row: ParkedMessage) -> Sequence[Death] | None:
    """Return the first entries of the message's x-death; None if it has a shape that no broker writes."""
    try:
        headers = decode_properties(bytes(row.properties)).headers
    except UndecodableHeaders:
        return None
    return deaths(headers)[:MOST_DEATHS_SHOWN] if well_formed(headers) else None


def _death(one: Death) -> Mapping[str, object]:
    return {
        "queue": short(one.queue),
        "reason": short(one.reason),
        "count": one.count,
        "exchange": short(one.exchange),
        "routing_keys": [short(key) for key in one.keys[:MOST_DEATHS_SHOWN]],
        "at": utc(stated_time(one.at)),
        "expiration": short(one.expiration),
    }


def _deaths_lines(died: Sequence[Death] | None) -> Iterator[str]:
    for line in ["not readable"] if died is None else map(_death_line, died):
        yield f"{'x-death':<16} {line}"


def _death_line(one: Death) -> str:
    entry = _death(one)
    keys = ", ".join(one.keys[:MOST_DEATHS_SHOWN])
    more = [f"{name} {value}" for name, value in (("exchange", one.exchange), ("key", keys)) if value]
    more += [f"first {entry['at']}"] if entry["at"] else []
    more += [f"original expiration {one.expiration} ms"] if one.expiration else []
    return ", ".join([f"{short(one.queue)} {short(one.reason)} x{one.count}", *map(short, more)])


def _attempt(one: Attempt) -> Mapping[str, object]:
    names = (
        "cycle",
        "number",
        "seconds",
        "verdict",
        "interrupted",
        "redelivered",
        "reason",
        "error",
        "error_text",
        "host",
        "pid",
        "deploy",
    )
    return {"started_at": clock(one.started_at, terminal=False), **{name: getattr(one, name) for name in names}}


def _attempt_line(one: Attempt, *, terminal: bool) -> str:
    at = clock(one.started_at, terminal=terminal)
    error = one.failure.replace("\n", " ")
    verdict = f"{one.verdict} (interrupted: delivered again)" if one.interrupted else one.verdict
    return f"attempt {one.number:<8} {at}  {one.seconds:.3f} s  {verdict}  {error}".rstrip()


def _body(row: ParkedMessage, form: str, *, reveal: bool) -> str:
    data = bytes(row.body)
    text = body_text(data, row.content_type) if reveal else masked(data, row.content_type, settings().operators.mask)[0]
    if form == "hex":
        return data.hex(" ", 4) if reveal else "(hidden: --reveal shows it)"
    if text is None:
        return "(not text: --body hex shows it)" if reveal else "(hidden: --reveal shows it)"
    if form != "pretty" or not is_json(text):
        return text
    return indented(text, most=FORMATTED_LIMIT) or text


def _words(row: ParkedMessage, failed: int) -> tuple[str, ...]:
    error = ": ".join(filter(None, (row.error or row.reason, row.said)))
    error = ", ".join(filter(None, (doubt_about(row), error)))
    key = row.business_key or row.message_id or "-"
    return key, row.type or "-", row.queue or "-", attempts_counted(row, failed), error.replace("\n", " ")[:200]
