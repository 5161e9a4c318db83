"""The reference of commands, written from their parsers: ``python -m tests.tooling.commands`` writes the page."""

import argparse
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import django
from django.core.management import get_commands, load_command_class

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"
DJANGOS = {"help", "version", "verbosity", "settings", "pythonpath", "traceback", "no_color", "force_color"}
DJANGOS |= {"skip_checks"}
SELECTION = "Selection of messages"
SELECTING = ("ids", "group", "queue", "failed_of_run", "keys_from", "except_from", "all", "selection")
"""Options that only the commands with a selection of messages have, all of them."""
HEAD = """<!-- Written by `python -m tests.tooling.commands`; a test compares this page with the commands. -->

# Commands

Each command prints its options and examples with `--help`. Data goes to stdout, everything else to stderr. All commands
share one list of [exit codes](exit-codes.md), and accept Django's own options: `--settings`, `--pythonpath`,
`--verbosity`, `--traceback`, `--no-color`, `--force-color` and `--skip-checks`. Options with one meaning
everywhere stand [at the end](#common-options), and so does the [selection of messages](#selection-of-messages).

| Command | Purpose |
|---|---|
"""
COMMON = "Common options"
COMMONS = ("json", "yes", "using", "timeout", "reason", "keys_checked", "dry_run", "user")
"""Options with one meaning, which stands once; a command with another help for one of them keeps it in its table."""
SELECTED = """## Selection of messages

The subcommands of `rmq_parked` that act on messages select them by record numbers, by a filter, by a list of keys, by a
token, or by `--all`, which must be given explicitly. Several filters must all match. `--state` alone selects nothing;
it narrows a filter, a list of keys or `--all`.

| Subcommand | Default of `--state` | With `--keys-from` |
|---|---|---|
| `list` | `parked` | `parked` |
| `requeue` | `parked,on_hold`; messages on hold are left out unless you pass `--include on_hold` | the same |
| `discard`, `hold` | `parked,on_hold` | `parked` |
| `export` | all states | all states |

`restore` and `unhold` have no `--state`, because they act on discarded messages and on messages on hold.

"""


def names() -> list[str]:
    return sorted(name for name, app in get_commands().items() if app == "django_rmq_retry")


def page() -> str:
    """Return the whole page."""
    commands = {name: load_command_class("django_rmq_retry", name) for name in names()}
    parsers = {name: command.create_parser("manage.py", name) for name, command in commands.items()}
    parts = [HEAD + "".join(f"| [`{name}`](#{anchor(name)}) | {one.help} |\n" for name, one in commands.items())]
    common = commons(parsers.values())
    for name, command in commands.items():
        examples = "\n".join(f"manage.py {one}" for one in getattr(command, "examples", ()))
        parts.append(f"## {name}\n\n{command.help}\n\n```\n{examples}\n```\n")
        parts.extend(sections(name, parsers[name], common))
    shared = next(filter(selects, subparsers(parsers["rmq_parked"]).values()))
    parts.append(f"## {COMMON}\n\n" + table(list(common.values())))
    parts.append(SELECTED + table([one for one in arguments(shared) if one.dest in selecting(shared)]))
    return "\n".join(parts)


def anchor(name: str) -> str:
    return name.replace("_", "-").replace(" ", "-")


def commons(parsers: Iterable[argparse.ArgumentParser]) -> dict[tuple[str, str | None], argparse.Action]:
    """The most frequent form of each common option, by its name and help."""
    leaves = [leaf for one in parsers for leaf in (one, *subparsers(one).values())]
    found = [one for leaf in leaves for one in arguments(leaf)]
    counts = Counter((one.dest, one.help) for one in found)
    best = [max((form for form in counts if form[0] == dest), key=counts.__getitem__) for dest in COMMONS]
    return {form: next(one for one in found if (one.dest, one.help) == form) for form in best}


def split(found: list[argparse.Action], common: dict[tuple[str, str | None], argparse.Action]) -> str:
    """The table of a command's own options, and below it the names of the common ones."""
    shared = [f"`{one.option_strings[0]}`" for one in found if (one.dest, one.help) in common]
    own = [one for one in found if (one.dest, one.help) not in common]
    line = f"[Common](#{anchor(COMMON.lower())}): {', '.join(shared)}\n"
    return "\n".join([table(own)] * bool(own) + [line] * bool(shared))


def sections(
    name: str, parser: argparse.ArgumentParser, common: dict[tuple[str, str | None], argparse.Action]
) -> Iterator[str]:
    """The table of a command's options, and a section for each of its subcommands."""
    own = arguments(parser)
    subs = subparsers(parser)
    shared = all({one.dest for one in own} <= {one.dest for one in its._actions} for its in subs.values())
    if own:
        intro = "Each subcommand takes:\n\n" if shared else "Without a subcommand:\n\n"
        text = (intro if subs else "") + split(own, common)
        yield text.replace("takes:\n\n[Common]", "takes [common options]")
    helps = {choice.dest: choice.help for one in groups(parser) for choice in one._choices_actions}
    for sub, its in subs.items():
        if sub not in helps:
            continue
        known = {one.dest for one in own}
        left = [one for one in arguments(its) if one.dest not in known]
        text = f"### {name} {sub}\n\n{sentence(helps[sub])}\n"
        if selects(its):
            left = [one for one in left if one.dest not in selecting(its)]
            text += f"\nTakes a [selection of messages](#{anchor(SELECTION.lower())}).\n"
        yield text + ("\n" + split(left, common) if left else "")


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


def table(found: list[argparse.Action]) -> str:
    rows = "".join(f"| {written(one)} | {cell(meaning(one))} |\n" for one in found)
    return f"| Argument | Meaning |\n|---|---|\n{rows}"


def has_many(one: argparse.Action) -> bool:
    """Whether its choices would make the first column wider than the second."""
    return not one.metavar and len([*(one.choices or ())]) > 6


def meaning(one: argparse.Action) -> str:
    choices = ", ".join(f"`{choice}`" for choice in one.choices or ())
    return f"{one.help}: {choices}" if has_many(one) else one.help or ""


def written(one: argparse.Action) -> str:
    metavar = one.metavar if isinstance(one.metavar, str) else " ".join(one.metavar or ())
    value = metavar or (" \\| ".join(f"`{choice}`" for choice in one.choices or ()) if not has_many(one) else "")
    value = value or one.dest.upper()
    value = value if value.startswith("`") else f"`{value}`"
    if not one.option_strings:
        return {"*": f"[{value} …]", "+": f"{value} …", "?": f"[{value}]"}.get(str(one.nargs), value)
    options = ", ".join(f"`{option}`" for option in one.option_strings)
    return options if one.nargs == 0 else f"{options} {value}"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("%%", "%")


def sentence(text: str | None) -> str:
    return f"{(text or '')[:1].upper()}{(text or '')[1:]}."


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    PAGE.write_text(page())
    print(f"{PAGE} is written.")
