"""``rmq_parked edit``: a new version of one message, or one change by path for many."""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from django.core.management.base import CommandError, CommandParser

from django_rmq_retry.arguments import plural
from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.management.accounts import actor_of, add_user
from django_rmq_retry.management.command import Options, RmqCommand, usage_error
from django_rmq_retry.management.parked_choice import (
    OPEN_STATES,
    add_act,
    add_choice,
    confirm_number,
    refuse_doubtful,
    report_keys,
    selection_of,
    token_of,
)
from django_rmq_retry.messages.json_fields import path_of
from django_rmq_retry.messages.texts import short
from django_rmq_retry.models import State
from django_rmq_retry.parked.edit import Proposal, editable, editable_text, propose, store
from django_rmq_retry.parked.edit_many import Act, EditResult, PathChange, others_of, results_of, store_many
from django_rmq_retry.parked.edited_keys import Others, others_with
from django_rmq_retry.parked.selection import Selection

MOST_OTHERS_NAMED = 10
LONGEST_VALUE = 80
"""Characters of a value, before and after a change, that a line shows."""


def add_arguments(add: Callable[..., CommandParser]) -> None:
    editing = add("edit", edit, help="store new versions of messages; requeue sends them")
    add_choice(editing)
    by_path = editing.add_argument_group("one change by path, for all chosen messages")
    path = by_path.add_mutually_exclusive_group()
    path.add_argument("--set", metavar="PATH=JSON", help="set the value there: amount=8.50, headers.tenant=north")
    path.add_argument(
        "--replace", nargs=3, metavar=("PATH", "OLD", "NEW"), help="replace a text within the value: amount , ."
    )
    path.add_argument("--remove", metavar="PATH", help="remove the value there")
    by_path.add_argument("--as-number", action="store_true", help="a text becomes a number, with --replace")
    whole = editing.add_argument_group("the whole of one message")
    source = whole.add_mutually_exclusive_group()
    source.add_argument("--body-file", metavar="FILE", help="the new body; - is stdin")
    source.add_argument("--editor", action="store_true", help="open the body in $EDITOR")
    whole.add_argument("--header", action="append", default=[], metavar="NAME=TEXT", help="set a header; repeatable")
    whole.add_argument(
        "--without-header", action="append", default=[], metavar="NAME", help="remove a header; repeatable"
    )
    whole.add_argument("--new-id", default="", metavar="ID", help="new message id, which makes it another message")
    editing.add_argument(
        "--same-key", action="store_true", help="store it although other messages have the new business key already"
    )
    add_act(editing)
    add_user(editing)


def edit(command: RmqCommand, options: Options) -> Exit:
    change = _change(options)
    if change is None:
        return _edit_one(command, options)
    if any(options[name] for name in ("body_file", "editor", "header", "without_header", "new_id")):
        raise usage_error("A change by path cannot be combined with a new body or header. Pass one of them.")
    if change.wrong:
        raise usage_error(change.wrong)
    chosen = selection_of(options, states=OPEN_STATES, states_of_keys=State.PARKED)
    partly = report_keys(command, chosen)
    results = results_of(chosen, change)
    meant, left = [one for one in results if not one.why], [one for one in results if one.why]
    for line in result_lines(change, results):
        command.say(line)
    taken = others_of(meant)
    show_others(command, taken)
    if options["dry_run"]:
        return _preview(command, chosen, meant, left, options)
    if not meant:
        command.say("The change fits none of the messages." if results else "No message matches.")
        return Exit.NOTHING
    if not options["reason"].strip():
        raise usage_error("Pass --reason: the reason is kept in the audit log.")
    refuse_doubtful(chosen, options)
    refuse_taken(taken, options)
    confirm_number(command, len(meant), f"Edit {plural(len(meant), 'message')}?", options)
    revisions = {one.message.pk: one.message.revision for one in meant}
    done = store_many(change, actor_of(options), revisions=revisions, reason=options["reason"], known=taken.mark)
    left += done.left
    if options["json"]:
        left_out = [{"id": one.message.pk, "why": one.why} for one in left]
        command.document("parked_edit_many/1", edited=done.edited, left=left_out)
    else:
        command.line(f"{plural(done.edited, 'message')} edited, {len(left)} left out.")
        edited = Selection.of_filter({"edited_at": done.at.isoformat()}).token()
        command.say(f"To send what was edited: manage.py rmq_parked requeue --selection {edited}")
    return Exit.PARTLY if left else partly


def _change(options: Options) -> PathChange | None:
    """Return the change by path that the arguments name; None if they name none."""
    number, change = options["as_number"], None
    if options["set"] is not None:
        path, value = _assignment(options["set"])
        change = PathChange(path=path, act=Act.SET, value=value)
    elif options["replace"] is not None:
        path, find, value = options["replace"]
        return PathChange(path=path, act=Act.REPLACE, find=find, value=value, number=number)
    elif options["remove"] is not None:
        change = PathChange(path=options["remove"], act=Act.REMOVE)
    if number:
        raise usage_error("--as-number takes --replace PATH OLD NEW; both texts may be empty.")
    return change


def _assignment(text: str) -> tuple[str, str]:
    """Split PATH=JSON at the sign behind the path; a name in quotes may contain another one."""
    for place, character in enumerate(text):
        if character == "=":
            with suppress(ValueError):
                path_of(text[:place])
                return text[:place], text[place + 1 :]
    raise usage_error(f"--set takes PATH=JSON, such as amount=8.50, not {short(text, LONGEST_VALUE)!r}.")


def _preview(
    command: RmqCommand, chosen: Selection, meant: Sequence[EditResult], left: Sequence[EditResult], options: Options
) -> Exit:
    revisions = {one.message.pk: one.message.revision for one in meant}
    token = token_of(Selection(revisions=revisions, as_of=chosen.as_of, count=len(meant)))
    if options["json"]:
        command.document(
            "parked_edit_preview/1",
            count=len(meant),
            left=[{"id": one.message.pk, "why": one.why} for one in left],
            selection=token,
        )
    else:
        command.line(f"Edit {plural(len(meant), 'message')}, {len(left)} left out.")
        if meant and token:
            command.line(f"--selection {token}")
    return Exit.DONE if meant else Exit.NOTHING


def result_lines(change: PathChange, results: Sequence[EditResult]) -> Iterator[str]:
    """Yield the result for each message."""
    for one in results:
        if one.why:
            result = f"left out: {one.why}"
        else:
            after = "(removed)" if one.after is None else change.shown(one.after)
            result = f"{short(change.shown(one.before), LONGEST_VALUE)} → {short(after, LONGEST_VALUE)}"
            keys = one.proposal.keys if one.proposal else None
            result += f"  (business key {short(str(keys), LONGEST_VALUE)})" if keys else ""
        yield f"#{one.message.pk} {one.message}  {result}"


def _edit_one(command: RmqCommand, options: Options) -> Exit:
    chosen = selection_of(options, states=OPEN_STATES)
    if chosen.count > 1:
        raise usage_error("Pass one message, or a change by path for many: --set, --replace or --remove.")
    row = chosen.queryset().first()
    if row is None:
        raise CommandError("There is no such message.", returncode=Exit.NOTHING)
    refusal = editable(row)
    if refusal:
        raise CommandError(refusal, returncode=Exit.UNCONFIRMED)
    before = editable_text(row) or ""
    proposal = propose(row, text=_new_text(options, before), headers=_headers(options), new_id=options["new_id"])
    show_proposal(command, proposal)
    taken = others_with({row.pk: proposal.keys})
    show_others(command, taken)
    if proposal.problems:
        raise usage_error(" ".join(proposal.problems))
    if options["dry_run"]:
        return Exit.DONE
    refuse_taken(taken, options)
    command.confirm(f"Store this as version {row.version + 1} of message {row.pk}?", yes=options["yes"])
    version = store(
        row.pk, actor_of(options), proposal, version=row.version, reason=options["reason"], known=taken.mark
    )
    if options["json"]:
        command.document("parked_edit/1", id=row.pk, version=version.number, sha256=version.sha256)
    else:
        command.line(f"Version {version.number} of message {row.pk} is stored.")
        command.say(f"To send it: manage.py rmq_parked requeue {row.pk}")
    return Exit.DONE


def _new_text(options: Options, before: str) -> str:
    if options["editor"]:
        return _edit_in_editor(before)
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


def _edit_in_editor(before: str) -> str:
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


def show_proposal(command: RmqCommand, proposal: Proposal) -> None:
    for line in proposal.difference:
        command.say(f"{line.sign} {line.text}")
    for name, (before, after) in proposal.headers.items():
        command.say(f"header {name}: {before!r} → {after!r}")
    if proposal.keys:
        command.say(f"business key: {proposal.keys}")
    for warning in proposal.warnings:
        command.say(f"! {warning}")


def show_others(command: RmqCommand, taken: Others) -> None:
    """Name the other messages that have a new business key already, each with its state."""
    for pk, keys in list(taken.keys.items())[:MOST_OTHERS_NAMED]:
        command.say(f"! {', '.join(keys)} is already a business key of message {pk} ({taken.states[pk]}).")
    if len(taken) > MOST_OTHERS_NAMED:
        command.say(f"! … and of {plural(len(taken) - MOST_OTHERS_NAMED, 'more message')}.")


def refuse_taken(taken: Others, options: Options) -> None:
    """Raise a CommandError if other messages have a new business key, and the operator did not say that it is right."""
    if taken and not options["same_key"]:
        have = "has" if len(taken) == 1 else "have"
        raise CommandError(
            f"{plural(len(taken), 'other message')} {have} the new business key already. Nothing was stored. "
            "Check above, then pass --same-key.",
            returncode=Exit.UNCONFIRMED,
        )
