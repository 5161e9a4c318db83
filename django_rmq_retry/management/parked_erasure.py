"""``rmq_parked erase``: the personal data of one customer's messages, for good."""

from collections.abc import Callable
from dataclasses import asdict

from django.core.management.base import CommandParser

from django_rmq_retry.arguments import plural
from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.management.command import Options, RmqCommand, add_yes, usage_error
from django_rmq_retry.management.parked_choice import confirm_number, keys_from
from django_rmq_retry.parked.erasure import Traces, erase, traces
from django_rmq_retry.parked.operators import Actor


def add_arguments(add: Callable[..., CommandParser]) -> None:
    one = add("erase", erase_keys, help="erase contents, keys and texts of one customer's resolved messages, for good")
    one.add_argument(
        "--key", action="append", default=[], metavar="KEY", help="a business key or message id; repeatable"
    )
    one.add_argument("--keys-from", metavar="FILE", help="the business keys and message ids in FILE; - is stdin")
    one.add_argument("--reason", default="", help="the reason, kept in the audit log; required")
    one.add_argument("--dry-run", action="store_true", help="change nothing; show what would be erased")
    add_yes(one)


def erase_keys(command: RmqCommand, options: Options) -> Exit:
    keys = list(dict.fromkeys([*filter(None, options["key"]), *keys_from(options["keys_from"])]))
    if not keys:
        raise usage_error("Pass --key or --keys-from: the keys of the customer.")
    found = traces(keys)
    if options["dry_run"]:
        _show(command, found, options, done=False)
        return Exit.DONE if any(asdict(found).values()) else Exit.NOTHING
    question = f"Erase {_words(found)}, for good?"
    confirm_number(command, found.messages, question, {**options, "ids": []})
    _show(command, erase(keys, Actor.of_shell(), reason=options["reason"]), options, done=True)
    return Exit.DONE


def _show(command: RmqCommand, found: Traces, options: Options, *, done: bool) -> None:
    if options["json"]:
        command.document("parked_erase/1", done=done, **asdict(found))
        return
    command.line(f"{_words(found)} {'erased' if done else 'would be erased'}.")
    command.say("Copies on the broker, in the outbox, in logs and in backups are not reached.")


def _words(found: Traces) -> str:
    names = plural(found.listed + found.former + found.early + found.states, "stored name")
    parts = (
        plural(found.messages, "message"),
        f"{plural(found.versions, 'edited version')}, {plural(found.attempts, 'attempt')}",
        f"the texts of {plural(found.actions, 'row')} of the audit log and of {plural(found.runs, 'requeue run')}",
    )
    return f"{', '.join(parts)}, and {names}"
