"""The messages that `rmq_parked` acts on: chosen by its arguments, with the matches of lists of keys."""

import codecs
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db.models import Count

from django_rmq_retry.arguments import plural
from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.management.arguments import moment
from django_rmq_retry.management.command import Options, RmqCommand, add_yes, usage_error
from django_rmq_retry.messages.texts import short
from django_rmq_retry.models import KeyList, State
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.found import Found
from django_rmq_retry.parked.key_lists import (
    Excluded,
    KeyMatch,
    Lookup,
    excluded,
    list_filter,
    look_up,
    matches_of_list,
    store,
)
from django_rmq_retry.parked.key_text import parse
from django_rmq_retry.parked.operators import Actor, lacks_reason
from django_rmq_retry.parked.requeue import TYPED_FROM
from django_rmq_retry.parked.selection import EXCEPT, FIELDS, LISTED, MOST_IDS, Selection

IN_CONTENT = "only in the content of a parked message without a business key"
OPEN_STATES = f"{State.PARKED.value},{State.ON_HOLD.value}"
MOST_NAMED_IN_REMARK = 20
"""The most keys, and messages of one key, that a remark names; rmq_parked keys shows all."""
MOST_VALUES = 10
"""The most values of a field that a remark names, those of most messages first."""


def add_choice(parser: CommandParser, *, states: bool = True) -> None:
    parser.add_argument("ids", nargs="*", metavar="ID", help="record numbers; - reads them from stdin")
    chosen = parser.add_argument_group("messages")
    for name, field in FIELDS.items():
        if field.help:
            parse = moment if field.metavar == "AGE" else str
            chosen.add_argument(f"--{option_of(name)}", type=parse, metavar=field.metavar, help=field.help)
    if states:
        known = ", ".join(State.values)
        chosen.add_argument("--state", metavar="STATES", help=f"one or more of {known}, separated by commas")
    chosen.add_argument("--keys-from", metavar="FILE", help="with a business key or message id in FILE; - is stdin")
    chosen.add_argument(
        "--except-from", metavar="FILE", help="without the business keys and message ids in FILE; - is stdin"
    )
    chosen.add_argument("--all", action="store_true", help="all messages; never the default")
    chosen.add_argument("--selection", metavar="TOKEN", help="the exact selection that --dry-run or the admin showed")


def selection_of(options: Options, *, states: str, states_of_keys: str = "", narrow: bool = True) -> Selection:
    """Return the selection of the arguments, by default with these ``states``, or with ``states_of_keys`` by key.

    With ``narrow`` the arguments must name messages, a filter or --all.
    """
    chosen = _chosen(options, states=states, states_of_keys=states_of_keys or states, narrow=narrow)
    keys = keys_from(options["except_from"])
    if keys and EXCEPT in chosen.filter:
        raise usage_error(
            "This selection excludes a list of keys already, and --except-from would replace that list. Write all "
            "keys into one file and select the messages again."
        )
    return chosen.leaving_out(list_filter(store(keys, Actor.of_shell()))) if keys else chosen


def counts_beside(chosen: Selection, name: str) -> str:
    """Return the values of a field, with their numbers, that messages have which match the rest of the filter."""
    found = counted_beside(chosen, name)
    more = ", …" if len(found) > MOST_VALUES else ""
    return ", ".join(f"{value or 'none'} ({count})" for value, count in found[:MOST_VALUES]) + more


def counted_beside(chosen: Selection, name: str) -> Sequence[tuple[str, int]]:
    """Return the same as data, those of most messages first; empty if the filter does not name the field."""
    if name not in chosen.filter:
        return ()
    others = Selection.of_filter({word: value for word, value in chosen.filter.items() if word != name})
    counted = others.queryset().order_by().values_list(name).annotate(count=Count("pk"))
    return list(counted.order_by("-count", name)[: MOST_VALUES + 1])


def _chosen(options: Options, *, states: str, states_of_keys: str, narrow: bool) -> Selection:
    if [options["keys_from"], options["except_from"], *options["ids"]].count("-") > 1:
        raise usage_error("Only one argument can be read from stdin. Pass a file for the others.")
    keys = keys_from(options["keys_from"])
    if keys and (options["selection"] or options["ids"] or options["all"]):
        raise usage_error("--keys-from cannot be combined with IDs, --all or --selection. Pass one of them.")
    if options["selection"]:
        return Selection.read(options["selection"])
    ids = _ids(options["ids"])
    given = given_filter(options)
    if ids is not None and (given or options["all"]):
        raise usage_error("IDs cannot be combined with a filter or --all. Pass one of them.")
    if ids is not None:
        return Selection.of_ids(ids)
    if keys:
        given[LISTED] = list_filter(store(keys, Actor.of_shell(), look_up(keys)))
    if not given and not options["all"] and narrow:
        raise usage_error(_nothing_selected(options.get("state")))
    usual = states_of_keys if keys else states
    return Selection.of_filter({"state": (options.get("state") or usual).split(","), **given})


def _nothing_selected(states: str | None) -> str:
    if not states:
        return "No messages are selected. Pass IDs, a filter, --keys-from or --all."
    return (
        f"--state {short(states, 100)} only narrows a selection. Pass a filter, such as --group or --queue, or "
        "--keys-from with it, or --all for every message in that state."
    )


def keys_from(name: str | None) -> list[str]:
    """Read the keys from a file, or from stdin; an empty list if no file is named."""
    if name is None:
        return []
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        # Excel calls UTF-16 "Unicode text".
        keys = parse(data.decode("utf-16" if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8"))
    except OSError as error:
        raise usage_error(f"{name} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError:
        raise usage_error(f"{name} is not UTF-8 text. Save it as UTF-8.") from None
    if not keys:
        raise usage_error(f"{name} contains no keys.")
    return keys


def answer_of(chosen: Selection) -> Lookup | None:
    """Return the matches of the keys by which messages were chosen; None without a list of keys."""
    listed = chosen.filter.get(LISTED)
    return matches_of_list(KeyList.objects.using(records_alias()).get(pk=listed["list"])) if listed else None


def excluded_from(chosen: Selection) -> Excluded | None:
    """Return the messages that a list of keys took out of the selection; None without such a list."""
    listed = chosen.filter.get(EXCEPT)
    return excluded(listed["list"], chosen.undiminished()) if listed else None


def report_keys(command: RmqCommand, chosen: Selection) -> Exit:
    """Write the matches of the keys by which messages were chosen; return PARTLY if a key matches no message."""
    lookup, left = answer_of(chosen), excluded_from(chosen)
    if lookup:
        command.say(
            f"{plural(len(lookup.keys), 'key')}: {len(lookup.found)} found and parked, "
            f"{len(lookup.missing)} not found, {len(lookup.several)} found several times, "
            f"{len(lookup.held)} on hold, {len(lookup.closed)} not open."
        )
        _say_some(command, "elsewhere, not parked", _placed(lookup.elsewhere))
        _say_some(command, IN_CONTENT, _otherwise(lookup.in_content))
        _say_some(command, "not found", lookup.missing)
        _say_some(command, "differs in case only", _spelled(lookup.alike))
        _say_some(command, "no key, but a correlation id or a number", _otherwise(lookup.otherwise))
        _say_some(command, "not the first key, such as a customer's", _counted(lookup.matches, lookup.further))
        copies = set(lookup.copies)
        named = {key: f"{key} ({_states(lookup.matches[key])})" for key in lookup.several}
        _say_some(command, "copies of one message", [text for key, text in named.items() if key in copies])
        _say_some(command, "found several times", [text for key, text in named.items() if key not in copies])
        _say_some(command, "on hold", lookup.held)
        _say_some(command, "not open", [f"{key} ({_states(lookup.matches[key])})" for key in lookup.closed])
    if left:
        command.say(f"{plural(left.messages, 'message')} left out by {plural(len(left.keys), 'key')}.")
        _say_some(command, "elsewhere, not parked, so no message is left out", _placed(left.unparked))
        _say_some(command, f"{IN_CONTENT}, which is not left out", _otherwise(left.in_content))
        _say_some(command, "not found, so no message is left out", left.missing)
        _say_some(command, "differs in case only", _spelled(left.alike))
        outside = {key: f"{key} ({_states(some)})" for key, some in left.elsewhere.items()}
        on_way = [outside.pop(key) for key in left.on_way]
        _say_some(command, "in a requeue run, and may still be handled", on_way)
        _say_some(command, "not in the selection", list(outside.values()))
        _say_some(command, "leaves out several messages", [f"{key} ({count})" for key, count in left.several.items()])
    absent = [lookup.missing, lookup.elsewhere, lookup.in_content] if lookup else []
    absent += [left.missing, left.unparked, left.in_content] if left else []
    return Exit.PARTLY if any(absent) else Exit.DONE


def refuse_doubtful(chosen: Selection, options: Options) -> None:
    """Raise a CommandError if a key is doubtful, and the operator did not say that it is right."""
    if options["keys_checked"] or options["dry_run"]:
        return
    lookup, left = answer_of(chosen), excluded_from(chosen)
    states = chosen.filter.get("state", State.values)
    doubtful = [*(lookup.doubtful(states) if lookup else []), *(left.doubtful if left else [])]
    if doubtful:
        raise CommandError(
            f"{plural(len(doubtful), 'key')} {'matches' if len(doubtful) == 1 else 'match'} no message, several, one "
            "elsewhere or on hold. Nothing was changed. Check the keys above, then pass --keys-checked.",
            returncode=Exit.UNCONFIRMED,
        )


def _say_some(command: RmqCommand, what: str, keys: Sequence[str]) -> None:
    if keys:
        more = f" and {len(keys) - MOST_NAMED_IN_REMARK} more" if len(keys) > MOST_NAMED_IN_REMARK else ""
        command.say(f"  {what}: {', '.join(keys[:MOST_NAMED_IN_REMARK])}{more}")


def _spelled(alike: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"{key} → {' or '.join(others)}" for key, others in alike.items()]


def _placed(elsewhere: Mapping[str, Sequence[Found]]) -> list[str]:
    return [f"{key} ({'; '.join(map(str, found))})" for key, found in elsewhere.items()]


def _otherwise(named: Mapping[str, Sequence[KeyMatch]]) -> list[str]:
    return [f"{key} ({_states(matches)})" for key, matches in named.items()]


def _counted(matches: Mapping[str, Sequence[KeyMatch]], keys: Sequence[str]) -> list[str]:
    return [f"{key} ({plural(len(matches[key]), 'message')})" for key in keys]


def state_of(one: KeyMatch) -> str:
    return f"{one.state}, {one.doubt.label}" if one.doubt else one.state


def _states(matches: Sequence[KeyMatch]) -> str:
    some = ", ".join(f"#{one.record} {state_of(one)}" for one in matches[:MOST_NAMED_IN_REMARK])
    return f"{some} and {len(matches) - MOST_NAMED_IN_REMARK} more" if len(matches) > MOST_NAMED_IN_REMARK else some


def keys_data(lookup: Lookup) -> dict[str, Any]:
    matches = {key: [_match(one) for one in lookup.matches.get(key, ())] for key in lookup.keys}
    return {
        "keys": len(lookup.keys),
        "found": len(lookup.found),
        "not_parked": _places(lookup.elsewhere),
        "in_content": _matches(lookup.in_content),
        "not_found": lookup.missing,
        "several": {key: matches[key] for key in lookup.several},
        "copies": lookup.copies,
        "on_hold": {key: matches[key] for key in lookup.held},
        "not_open": {key: matches[key] for key in lookup.closed},
        "in_doubt": _matches({key: some for key, some in lookup.matches.items() if any(one.doubt for one in some)}),
        "differs_in_case": lookup.alike,
    }


def _matches(named: Mapping[str, Sequence[KeyMatch]]) -> dict[str, list[dict[str, object]]]:
    return {key: [_match(one) for one in some] for key, some in named.items()}


def _match(one: KeyMatch) -> dict[str, object]:
    return {"id": one.record, "state": one.state, "run": one.run, "doubt": one.doubt and one.doubt.value}


def _places(elsewhere: Mapping[str, Sequence[Found]]) -> dict[str, list[dict[str, object]]]:
    return {key: [place_data(one) for one in found] for key, found in elsewhere.items()}


def place_data(one: Found) -> dict[str, object]:
    return {"room": one.room.name.lower(), "place": one.place, "text": str(one), "became": one.became}


def excluded_data(left: Excluded) -> dict[str, Any]:
    return {
        "keys": len(left.keys),
        "messages": left.messages,
        "not_parked": _places(left.unparked),
        "in_content": _matches(left.in_content),
        "not_found": left.missing,
        "elsewhere": _matches(left.elsewhere),
        "several": left.several,
        "differs_in_case": left.alike,
    }


def lists_data(chosen: Selection) -> dict[str, Any]:
    """Return a selection's key lists as JSON data; null for a list that it does not use."""
    lookup, left = answer_of(chosen), excluded_from(chosen)
    return {"keys": keys_data(lookup) if lookup else None, "except": excluded_data(left) if left else None}


def option_of(name: str) -> str:
    """Return the option, without its hyphens, for a field of the filter."""
    return (FIELDS[name].option or name).replace("_", "-")


def given_filter(options: Options) -> dict[str, Any]:
    given = {name: options[field.option or name] for name, field in FIELDS.items() if field.help}
    times = {name: value.isoformat() for name, value in given.items() if isinstance(value, datetime)}
    return {name: value for name, value in {**given, **times}.items() if value is not None}


def _ids(given: list[str]) -> list[int] | None:
    if not given:
        return None
    words: list[str] = []
    for one in given:
        words += sys.stdin.read().split() if one == "-" else [one]
    try:
        return [int(word.removeprefix("#")) for word in words]
    except ValueError:
        text = "An ID is not a record number. Pass the numbers that `manage.py rmq_parked list` shows in the column ID."
        raise usage_error(text) from None


def reason_for(count: int, given: str) -> str:
    """Return the option that so many messages need besides those that choose them, for a command line that is shown."""
    return " --reason TEXT" if lacks_reason(count, given) else ""


def add_keys_checked(parser: CommandParser) -> None:
    text = (
        "go on although keys of a list match no message, several, or one elsewhere: without it the command changes "
        "nothing and exits with code 7, or with 6 if no message is left to act on"
    )
    parser.add_argument("--keys-checked", action="store_true", help=text)


def add_act(parser: CommandParser) -> None:
    parser.add_argument("--reason", default="", help="the reason, kept in the audit log")
    add_keys_checked(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="change nothing; show the messages and a token for --selection"
    )
    add_yes(parser)


def token_of(chosen: Selection) -> str:
    """Return the token for --selection; empty if it would be too long."""
    return chosen.token() if len(chosen.revisions) <= MOST_IDS else ""


def confirm_number(command: RmqCommand, count: int, question: str, options: Options) -> None:
    """Ask for confirmation: none for a single message chosen by id, the typed number for very many."""
    if options["yes"] or (count == 1 and options["ids"]):
        return
    if count <= TYPED_FROM or not (sys.stdin.isatty() and command.stderr.isatty()):
        command.confirm(question, yes=False)
        return
    command.stderr.write(f"{question} Type {count} to confirm: ", lambda text: text, ending="")
    command.stderr.flush()
    if sys.stdin.readline().strip() != str(count):
        raise CommandError("Not confirmed; nothing was changed.", returncode=Exit.UNCONFIRMED)
