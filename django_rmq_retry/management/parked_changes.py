"""``rmq_parked``: discard, restore, hold, unhold, export, import and purge messages."""

import sys
from collections.abc import Callable
from pathlib import Path

from django.core.management.base import CommandParser
from django.db.models import Q

from django_rmq_retry.arguments import plural
from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.management.accounts import actor_of, add_user
from django_rmq_retry.management.arguments import age, later
from django_rmq_retry.management.command import Options, RmqCommand, add_yes, usage_error
from django_rmq_retry.management.parked_choice import (
    OPEN_STATES,
    add_act,
    add_choice,
    confirm_number,
    lists_data,
    refuse_doubtful,
    report_keys,
    selection_of,
    token_of,
)
from django_rmq_retry.models import DiscardCategory
from django_rmq_retry.models.parked import RESOLVED, State
from django_rmq_retry.parked.actions import Done, discard, hold, restore, unhold
from django_rmq_retry.parked.operators import Actor
from django_rmq_retry.parked.overdue import discardable, lost_sentence
from django_rmq_retry.parked.released import Released, released_by
from django_rmq_retry.parked.retention import purge
from django_rmq_retry.parked.selection import Selection
from django_rmq_retry.parked.transfer import Payload, export, import_lines

_CHANGES: dict[str, Callable[[Selection, Actor, Options], Done]] = {
    "discard": lambda chosen, actor, given: discard(chosen, actor, category=given["category"], text=given["reason"]),
    "restore": lambda chosen, actor, given: restore(chosen, actor, reason=given["reason"]),
    "hold": lambda chosen, actor, given: hold(chosen, actor, until=given["hold_until"], reason=given["reason"]),
    "unhold": lambda chosen, actor, given: unhold(chosen, actor, reason=given["reason"]),
}
_DONE = {"discard": "discarded", "restore": "restored", "hold": "put on hold", "unhold": "taken off hold"}


def add_arguments(add: Callable[..., CommandParser]) -> None:
    _add_changes(add)
    out = add("export", export_messages, help="write messages as JSON lines or CSV to stdout")
    add_choice(out)
    out.add_argument("--csv", action="store_true", help="as CSV, without bodies")
    out.add_argument(
        "--payload",
        choices=list(Payload),
        default=Payload.MASKED,
        help="form of the bodies; only whole can be imported",
    )
    out.add_argument("--reason", default="", help="the reason, kept in the audit log")
    into = add("import", import_messages, help="park exported messages; publishes nothing")
    into.add_argument("file", metavar="FILE", help="JSON lines with their whole payload; - is stdin")
    into.add_argument("--reason", default="", help="the reason, kept in the audit log")
    old = add("purge", purge_messages, help="delete messages resolved long ago; without --yes only count them")
    old.add_argument(
        "--older-than", type=age, required=True, metavar="AGE", help="the least age since then, such as 90d"
    )
    old.add_argument(
        "--state", "--status", default=",".join(RESOLVED), metavar="STATES", help="one or both of processed, discarded"
    )
    add_yes(old)


def _add_changes(add: Callable[..., CommandParser]) -> None:
    discarding = add("discard", change, help="close messages without handling them")
    add_choice(discarding)
    discarding.add_argument(
        "--category",
        required=True,
        choices=DiscardCategory.values,
        help="category of the reason; other requires --reason",
    )
    add_act(discarding)
    add_user(discarding)
    for name, words in (("restore", "reopen discarded messages"), ("unhold", "take messages off hold")):
        one = add(name, change, help=words)
        add_choice(one, states=False)
        add_act(one)
    holding = add("hold", change, help="put messages on hold until a time")
    add_choice(holding)
    holding.add_argument(
        "--for", dest="hold_until", type=later, required=True, metavar="AGE", help="30m, 2h, 1d or a time"
    )
    add_act(holding)


def change(command: RmqCommand, options: Options) -> Exit:
    name = options["subcommand"]
    states = {"restore": State.DISCARDED, "unhold": State.ON_HOLD}.get(name, OPEN_STATES)
    # A message on hold needs an operator's decision, so a list of keys alone does not select it.
    chosen = selection_of(options, states=states, states_of_keys=State.PARKED if states == OPEN_STATES else states)
    partly = report_keys(command, chosen)
    if not chosen.count:
        command.say("No message matches.")
        return Exit.NOTHING
    fit = chosen.queryset().filter(discardable() if name == "discard" else Q(state__in=states.split(",")))
    others = chosen.count - fit.count()
    if others:
        command.say(f"  Of the {chosen.count} chosen, the state of {others} forbids it: nothing is changed there.")
    released = released_by(fit) if name == "discard" else Released()
    if released.messages:
        command.say(f"  {released.sentence}")
    if lost := lost_sentence(fit):
        command.say(f"  {lost}")
    if options["dry_run"]:
        _show_token(command, chosen, options, chosen.count - others)
        return Exit.DONE
    refuse_doubtful(chosen, options)
    changed = chosen.count - others
    if changed:
        confirm_number(command, changed, f"{name.capitalize()} {plural(changed, 'message')}?", options)
    # Read the matches before the action: afterwards none of the messages is open.
    lists = lists_data(chosen) if options["json"] else {}
    done = _CHANGES[name](chosen, actor_of(options) if name == "discard" else Actor.of_shell(), options)
    if options["json"]:
        command.document(f"parked_{name}/1", changed=done.changed, left=done.left, **lists)
    else:
        left = f"; {done.left} not changed: they changed meanwhile, or their state forbids it" if done.left else ""
        command.line(f"{plural(done.changed, 'message')} {_DONE[name]}{left}.")
    return Exit.PARTLY if done.left else partly


def _show_token(command: RmqCommand, chosen: Selection, options: Options, changed: int) -> None:
    action = options["subcommand"]
    if options["json"]:
        facts = {"action": action, "count": chosen.count, "selection": token_of(chosen)}
        command.document("parked_preview/1", **facts, **lists_data(chosen))
    else:
        command.line(f"{action.capitalize()} {plural(changed, 'message')}.")
        command.line(f"--selection {token_of(chosen)}")


def export_messages(command: RmqCommand, options: Options) -> Exit:
    chosen = selection_of(options, states=",".join(State.values))
    partly = report_keys(command, chosen)
    form = "csv" if options["csv"] else "jsonl"
    payload = Payload.NONE if options["csv"] else Payload(options["payload"])
    for line in export(chosen, Actor.of_shell(), form=form, payload=payload, reason=options["reason"]):
        command.stdout.write(line, ending="")
    return partly


def import_messages(command: RmqCommand, options: Options) -> Exit:
    try:
        with sys.stdin.buffer if options["file"] == "-" else Path(options["file"]).open("rb") as lines:
            done = import_lines(lines, Actor.of_shell(), reason=options["reason"])
    except OSError as error:
        raise usage_error(f"{options['file']} cannot be read: {error.strerror}.") from error
    for number, why in done.problems:
        command.say(f"Line {number}: {why}")
    if options["json"]:
        command.document("parked_import/1", stored=done.stored, refused=done.refused, problems=done.problems)
    else:
        command.line(f"{done.stored} stored, {done.refused} refused.")
    if done.refused:
        return Exit.PARTLY if done.stored else Exit.ERROR
    return Exit.DONE if done.stored else Exit.NOTHING


def purge_messages(command: RmqCommand, options: Options) -> Exit:
    states = [one for one in options["state"].split(",") if one]
    age_of, actor = options["older_than"], Actor.of_shell()
    purged = purge(actor, older_than=age_of, states=states)
    if purged.total and not options["yes"] and sys.stdin.isatty() and command.stderr.isatty():
        command.confirm(f"Delete {plural(purged.total, 'message')} permanently?", yes=False)
        options["yes"] = True
    if options["yes"]:
        purged = purge(actor, older_than=age_of, states=states, dry=False)
    if options["json"]:
        command.document("parked_purge/1", counts=purged.counts, done=purged.done)
    else:
        text = ", ".join(f"{count} {state}" for state, count in sorted(purged.counts.items())) or "Nothing"
        command.line(f"{text} deleted." if purged.done else f"{text} would be deleted. Pass --yes to delete.")
    return Exit.DONE if purged.total else Exit.NOTHING
