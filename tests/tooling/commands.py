"""The reference of commands, written from their parsers whenever the documentation is built."""

import argparse
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from copy import copy

from django.core.management import get_commands, load_command_class

DJANGOS = {"help", "version", "verbosity", "settings", "pythonpath", "traceback", "no_color", "force_color"}
DJANGOS |= {"skip_checks"}
SELECTION = "Selection of messages"
SELECTING = ("ids", "group", "queue", "failed_of_run", "keys_from", "except_from", "all", "selection")
"""Options that only the commands with a selection of messages have, all of them."""
COMMON = "Common options"
COMMONS = (
    *("json", "using", "yes", "dry_run", "reason", "user", "keys_checked", "timeout", "limit"),
    *("rate", "stop_at", "canary", "no_wait", "wait", "http", "json_logs"),
)
"""Options with one meaning, which stands once; a command with another help for one of them keeps it in its list."""
USUAL = ("json", "using")
"""Common options that nearly every command has: the commands without it are named instead."""
DEFAULT = re.compile(r"; (\S+) by default$")
SELECTED = """## Selection of messages

Select by record numbers, filters (all must match), a list of keys, a token, or `--all`. `--state` only narrows these.
By default it is `parked` for `list`, all for `export`, and `parked,on_hold` for `requeue`, `discard` and `hold`. But
`discard` and `hold` with `--keys-from` take `parked` only, and `requeue` leaves out messages on hold unless you pass
`--include on_hold`. `restore` and `unhold` have no `--state`.

"""


def names() -> list[str]:
    return sorted(name for name, app in get_commands().items() if app == "django_rmq_retry")


def page() -> str:
    """Return the sections of all commands."""
    commands = {name: load_command_class("django_rmq_retry", name) for name in names()}
    parsers = {name: command.create_parser("manage.py", name) for name, command in commands.items()}
    parts = []
    common = commons(parsers.values())
    for name, command in commands.items():
        examples = "\n".join(f"manage.py {one}" for one in getattr(command, "examples", ()))
        parts.append(f"## {name}\n\n{command.help}\n\n```\n{examples}\n```\n")
        parts.extend(sections(name, parsers[name], common))
    shared = next(filter(selects, subparsers(parsers["rmq_parked"]).values()))
    parts.append(f"## {COMMON}\n\n" + listed(list(common.values()), without(parsers)))
    parts.append(SELECTED + listed([one for one in arguments(shared) if one.dest in selecting(shared)]))
    return "\n".join(parts)


def anchor(name: str) -> str:
    return name.replace("_", "-").replace(" ", "-")


def leaves(parsers: Mapping[str, argparse.ArgumentParser]) -> dict[str, argparse.ArgumentParser]:
    """The commands that do something, by the words that start them."""
    found: dict[str, argparse.ArgumentParser] = {}
    for name, one in parsers.items():
        subs = {f"{name} {sub}": its for sub, its in subparsers(one).items()}
        found |= subs if subs and shared(one) else {name: one, **subs}
    return found


def shared(parser: argparse.ArgumentParser) -> bool:
    """Whether each subcommand takes the command's own options too."""
    own = {one.dest for one in arguments(parser)}
    return all(own <= {one.dest for one in its._actions} for its in subparsers(parser).values())


def without(parsers: Mapping[str, argparse.ArgumentParser]) -> dict[str, str]:
    """The sentence that names the commands without a usual option, by the option."""
    found = leaves(parsers)
    lacking = {
        dest: [words for words, one in found.items() if f"--{dest}" not in one._option_string_actions] for dest in USUAL
    }
    return {dest: f". All have it but {', '.join(f'`{one}`' for one in names)}" for dest, names in lacking.items()}


def commons(parsers: Iterable[argparse.ArgumentParser]) -> dict[tuple[str, str], argparse.Action]:
    """The most frequent form of each common option, by its name and help."""
    found = [one for parent in parsers for leaf in (parent, *subparsers(parent).values()) for one in arguments(leaf)]
    counts = Counter(form(one) for one in found)
    best = [max((known for known in counts if known[0] == dest), key=counts.__getitem__) for dest in COMMONS]
    chosen = {known: copy(next(one for one in found if form(one) == known)) for known in best}
    for (_, meant), one in chosen.items():
        one.help = meant
    return chosen


def form(one: argparse.Action) -> tuple[str, str]:
    """The name and the meaning of an option, without what differs between commands that mean the same by it."""
    text = DEFAULT.sub("", one.help or "") if one.dest == "timeout" else one.help or ""
    return one.dest, re.sub(r"(?<=at most N) \w+(?: \w+)?(?=;)", "", text)


def split(
    found: list[argparse.Action], common: dict[tuple[str, str], argparse.Action], before: dict[tuple[str, str], str]
) -> str:
    """The list of a command's own options, and below it the names of the common ones and of those listed before."""
    known = [one for one in found if form(one) in common]
    again = [one for one in found if form(one) in before and one not in known]
    own = [one for one in found if one not in known and one not in again]
    names = [f"`{one.option_strings[0]}`{default(one)}" for one in known if one.dest not in USUAL]
    line = f"Also {', '.join(names)}.\n"
    like = " and ".join(f"`{sub}`" for sub in sorted({before[form(one)] for one in again}))
    as_before = f"As {like}: {', '.join(f'`{first(one)}`' for one in again)}.\n"
    return "\n".join([listed(own)] * bool(own) + [as_before] * bool(again) + [line] * bool(names))


def default(one: argparse.Action) -> str:
    found = DEFAULT.search(one.help or "") if one.dest == "timeout" else None
    return f" ({found[1]} by default)" if found else ""


def first(one: argparse.Action) -> str:
    return one.option_strings[0] if one.option_strings else written(one).strip("[]`… ")


def sections(
    name: str, parser: argparse.ArgumentParser, common: dict[tuple[str, str], argparse.Action]
) -> Iterator[str]:
    """The list of a command's options, and a section for each of its subcommands."""
    own = arguments(parser)
    subs = subparsers(parser)
    if own and (text := split(own, common, {})):
        intro = "Each subcommand takes:\n\n" if shared(parser) else "Without a subcommand:\n\n"
        yield ((intro if subs else "") + text).replace("takes:\n\nAlso", "takes")
    helps = {choice.dest: choice.help for one in groups(parser) for choice in one._choices_actions}
    before: dict[tuple[str, str], str] = {}
    for sub, its in subs.items():
        if sub not in helps:
            continue
        known = {one.dest for one in own}
        left = [one for one in arguments(its) if one.dest not in known]
        text = f"### {name} {sub}\n\n{sentence(helps[sub])}"
        if selects(its):
            left = [one for one in left if one.dest not in selecting(its)]
            text += f" Takes a [selection](#{anchor(SELECTION.lower())})."
        options = split(left, common, before)
        yield text + "\n" + ("\n" + options if options else "")
        before = {**{form(one): sub for one in left}, **before}


def groups(parser: argparse.ArgumentParser) -> "list[argparse._SubParsersAction[argparse.ArgumentParser]]":
    return [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]


def subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return {name: sub for one in groups(parser) for name, sub in one.choices.items()}


def arguments(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The arguments of the command itself: positional ones first, then options by their place in the help."""
    own = [one for one in parser._actions if one.dest not in DJANGOS and one.help != argparse.SUPPRESS]
    own = [one for one in own if not isinstance(one, argparse._SubParsersAction)]
    return sorted(own, key=lambda one: bool(one.option_strings))


def selects(parser: argparse.ArgumentParser) -> bool:
    return {*SELECTING} <= {one.dest for one in parser._actions}


def selecting(parser: argparse.ArgumentParser) -> set[str]:
    """The arguments from the record numbers to the token, which all commands with a selection have in this order."""
    dests = [one.dest for one in parser._actions]
    return {*dests[dests.index("ids") : dests.index("selection") + 1]}


def listed(found: list[argparse.Action], more: dict[str, str] | None = None) -> str:
    return "".join(f"- {written(one)}: {meaning(one)}{(more or {}).get(one.dest, '')}\n" for one in found)


def has_many(one: argparse.Action) -> bool:
    """Whether its choices would make the first column wider than the second."""
    return not one.metavar and len([*(one.choices or ())]) > 6


def meaning(one: argparse.Action) -> str:
    choices = ", ".join(f"`{choice}`" for choice in one.choices or ())
    text = (one.help or "").replace("%%", "%")
    return f"{text}: {choices}" if has_many(one) else text


def written(one: argparse.Action) -> str:
    metavar = one.metavar if isinstance(one.metavar, str) else " ".join(one.metavar or ())
    choices = "|".join(one.choices or ()) if not has_many(one) else ""
    value = metavar or choices or one.dest.upper()
    if not one.option_strings:
        value = {"*": f"[{value} …]", "+": f"{value} …", "?": f"[{value}]"}.get(str(one.nargs), value)
        return f"`{value}`"
    *others, last = one.option_strings
    return "".join(f"`{option}`, " for option in others) + (f"`{last}`" if one.nargs == 0 else f"`{last} {value}`")


def sentence(text: str | None) -> str:
    return f"{(text or '')[:1].upper()}{(text or '')[1:]}."
