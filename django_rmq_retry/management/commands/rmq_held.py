"""``manage.py rmq_held``: the keys on which a message has failed, and what waits there; lets them go on."""

from django.core.management.base import CommandError, CommandParser

from django_rmq_retry.management.arguments import clock, refused
from django_rmq_retry.management.command import Exit, Options, RmqCommand, add_common, add_json, add_yes
from django_rmq_retry.models import BlockedKey, ParkedMessage
from django_rmq_retry.ordering.keys import records_of, standing
from django_rmq_retry.parked.controls import blocked, let_go, named
from django_rmq_retry.parked.operators import Actor, Outdated, Refused


class Command(RmqCommand):
    help = "Show behind which failed messages others of their key wait; let a key go on without its first one."
    examples = (
        "rmq_held list",
        "rmq_held list --handler bank.post",
        'rmq_held release bank.post ACC-7 --reason "booked by hand"',
    )
    common = ("using",)

    def add_arguments(self, parser: CommandParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True, metavar="ACT")
        listed = acts.add_parser("list", help="each blocked key, the one that has stood longest first")
        listed.add_argument("--handler", default="", metavar="NAME", help="of this handler only")
        listed.add_argument("--limit", type=int, default=50, metavar="N", help="at most so many; 50 by default")
        release = acts.add_parser("release", help="the next message of a key goes first, as if that one were resolved")
        release.add_argument("handler", metavar="HANDLER")
        release.add_argument("keys", nargs="+", metavar="KEY")
        release.add_argument("--reason", default="", metavar="TEXT", help="why the first one need not be waited for")
        add_yes(release)
        for one in (listed, release):
            add_json(one)
            add_common(one, self.common)

    def run(self, options: Options) -> Exit | None:
        return self._list(options) if options["act"] == "list" else self._release(options)

    def _list(self, options: Options) -> Exit:
        if options["limit"] < 1:
            raise CommandError("--limit is a number from 1.", returncode=Exit.USAGE)
        found = list(blocked(handler=options["handler"])[: options["limit"]])
        now = standing()
        if options["json"]:
            records = records_of(found)
            self.document(
                "held_list/1",
                keys=now.keys,
                waiting=now.waiting,
                full=now.full,
                items=[_data(one, records.get(one.pk)) for one in found],
            )
            return Exit.DONE if found else Exit.NOTHING
        if not found:
            self.say("No key is blocked.")
            return Exit.NOTHING
        terminal = self.stdout.isatty()
        head = ("HANDLER", "KEY", "GOES FIRST", "PARKED", "SINCE", "WAITING")
        self.table([head, *(_cells(one, terminal=terminal) for one in found)])
        if now.full:
            self.say("Too many messages wait, more than HELD_PER_KEY or HELD_IN_ALL: they hold up their queue.")
        if now.keys > len(found) and not options["handler"]:
            self.say(f"{now.keys - len(found)} more; --limit shows them.")
        return Exit.DONE

    def _release(self, options: Options) -> Exit:
        try:
            rows = named(options["handler"], options["keys"])
            self.confirm(_question(rows), yes=options["yes"])
            done = [one.key for one in rows if self._let_go(one, options["reason"])]
        except Refused as refusal:
            raise refused(refusal) from refusal
        if options["json"]:
            self.document("held_release/1", handler=options["handler"], released=done)
        return Exit.DONE if len(done) == len(rows) else Exit.PARTLY if done else Exit.NOTHING

    def _let_go(self, one: BlockedKey, reason: str) -> bool:
        try:
            now = let_go(one, Actor.of_shell(), reason=reason)
        except Outdated as refusal:
            self.say(str(refusal))
            return False
        first = f"{now.blocker} goes first, {now.waiting} wait behind it" if now else "nothing waits there any more"
        self.say(f"{one.handler} {one.key}: {first}.")
        return True


def _question(rows: list[BlockedKey]) -> str:
    said = ", ".join(f"{one.key} (first {one.blocker}, {one.waiting} waiting)" for one in rows)
    return f"Let what waits go on without its first message: {said}?"


def _data(one: BlockedKey, record: ParkedMessage | None) -> dict[str, object]:
    return {
        "handler": one.handler,
        "key": one.key,
        "queue": one.queue,
        "goes_first": one.blocker,
        "parked": one.parked,
        "record": record.pk if record else None,
        "since": clock(one.since, terminal=False),
        "waiting": one.waiting,
    }


def _cells(one: BlockedKey, *, terminal: bool) -> tuple[object, ...]:
    parked = "yes" if one.parked else "no"
    return one.handler, one.key, one.blocker, parked, clock(one.since, terminal=terminal), one.waiting
