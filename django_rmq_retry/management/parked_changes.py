"""``rmq_parked``: discard, restore, hold, unhold, edit, export, import and purge messages."""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from django.core.management.base import CommandError, CommandParser

from django_rmq_retry.arguments import plural
from django_rmq_retry.management.arguments import age, later
from django_rmq_retry.management.command import Exit, Options, RmqCommand, add_yes, usage_error
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
from django_rmq_retry.models import DiscardCategory, ParkedMessage
from django_rmq_retry.models.parked import RESOLVED, State
from django_rmq_retry.parked.actions import Done, discard, hold, restore, unhold
from django_rmq_retry.parked.edit import Proposal, editable, propose, store, text_of
from django_rmq_retry.parked.operators import Actor
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
    editing = add("edit", edit, help="store a new version of a message; requeue sends it")
    editing.add_argument("id", type=int, metavar="ID", help="the record's number")
    source = editing.add_mutually_exclusive_group()
    source.add_argument("--body-file", metavar="FILE", help="the new body; - is stdin")
    source.add_argument("--editor", action="store_true", help="open the body in $EDITOR")
    editing.add_argument("--header", action="append", default=[], metavar="NAME=TEXT", help="set a header; repeatable")
    editing.add_argument(
        "--without-header", action="append", default=[], metavar="NAME", help="remove a header; repeatable"
    )
    editing.add_argument("--new-id", default="", metavar="ID", help="new message id, which makes it another message")
    editing.add_argument("--reason", default="", help="the reason, kept in the audit log; required")
    editing.add_argument("--dry-run", action="store_true", help="change nothing; show the difference")
    add_yes(editing)
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
    if options["dry_run"]:
        _show_token(command, chosen, options)
        return Exit.DONE
    refuse_doubtful(chosen, options)
    confirm_number(command, chosen.count, f"{name.capitalize()} {plural(chosen.count, 'message')}?", options)
    # Read the matches before the action: afterwards none of the messages is open.
    lists = lists_data(chosen) if options["json"] else {}
    done = _CHANGES[name](chosen, Actor.of_shell(), options)
    if options["json"]:
        command.document(f"parked_{name}/1", changed=done.changed, left=done.left, **lists)
    else:
        left = f"; {done.left} not changed: they changed meanwhile, or their state forbids it" if done.left else ""
        command.line(f"{plural(done.changed, 'message')} {_DONE[name]}{left}.")
    return Exit.PARTLY if done.left else partly


def _show_token(command: RmqCommand, chosen: Selection, options: Options) -> None:
    action = options["subcommand"]
    if options["json"]:
        facts = {"action": action, "count": chosen.count, "selection": token_of(chosen)}
        command.document("parked_preview/1", **facts, **lists_data(chosen))
    else:
        command.line(f"{action.capitalize()} {plural(chosen.count, 'message')}.")
        command.line(f"--selection {token_of(chosen)}")


def edit(command: RmqCommand, options: Options) -> Exit:
    row = ParkedMessage.objects.filter(pk=options["id"]).first()
    if row is None:
        raise CommandError(f"There is no message {options['id']}.", returncode=Exit.NOTHING)
    refusal = editable(row)
    if refusal:
        raise CommandError(refusal, returncode=Exit.UNCONFIRMED)
    before = text_of(row) or ""
    proposal = propose(row, text=_new_text(options, before), headers=_headers(options), new_id=options["new_id"])
    _show(command, proposal)
    if proposal.problems:
        raise usage_error(" ".join(proposal.problems))
    if options["dry_run"]:
        return Exit.DONE
    command.confirm(f"Store this as version {row.version + 1} of message {row.pk}?", yes=options["yes"])
    version = store(row.pk, Actor.of_shell(), proposal, version=row.version, reason=options["reason"])
    if options["json"]:
        command.document("parked_edit/1", id=row.pk, version=version.number, sha256=version.sha256)
    else:
        command.line(f"Version {version.number} of message {row.pk} is stored.")
        command.say(f"To send it: manage.py rmq_parked requeue {row.pk}")
    return Exit.DONE


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


def _new_text(options: Options, before: str) -> str:
    if options["editor"]:
        return _edited(before)
    if options["body_file"] is None:
        return before
    try:
        data = sys.stdin.buffer.read() if options["body_file"] == "-" else Path(options["body_file"]).read_bytes()
        return data.decode()
    except OSError as error:
        text = f"{options['body_file']} cannot be read: {error.strerror}."
        raise usage_error(text) from error
    except UnicodeDecodeError:
        raise usage_error("The new body is not UTF-8 text.") from None


def _edited(before: str) -> str:
    """Return the text as saved in the editor; only the user can read the temporary folder."""
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "body"
        path.write_bytes(before.encode())
        try:
            subprocess.run([*editor, str(path)], check=True)  # noqa: S603 - the operator's own editor
        except (OSError, subprocess.CalledProcessError) as error:
            raise CommandError(f"The editor {editor[0]} failed: {error}.", returncode=Exit.ERROR) from error
        after = path.read_bytes().decode()
    # Editors add a newline at the end of a file.
    return after if before.endswith("\n") else after.removesuffix("\n")


def _headers(options: Options) -> Mapping[str, str | None]:
    headers: dict[str, str | None] = dict.fromkeys(options["without_header"])
    for one in options["header"]:
        name, equals, text = one.partition("=")
        if not equals:
            raise usage_error(f"--header takes NAME=TEXT, not {one!r}.")
        headers[name] = text
    return headers


def _show(command: RmqCommand, proposal: Proposal) -> None:
    for line in proposal.difference:
        command.say(f"{line.sign} {line.text}")
    for name, (before, after) in proposal.headers.items():
        command.say(f"header {name}: {before!r} → {after!r}")
    for warning in proposal.warnings:
        command.say(f"! {warning}")
