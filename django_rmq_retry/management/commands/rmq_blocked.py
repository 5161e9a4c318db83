"""``manage.py rmq_blocked``: list blocked ordering keys and unblock them."""

from django.core.management.base import CommandParser

from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.management.arguments import add_limit
from django_rmq_retry.management.command import Options, RmqCommand, add_yes
from django_rmq_retry.management.terminal import clock
from django_rmq_retry.models import BlockedKey, ParkedMessage
from django_rmq_retry.ordering.keys import blocked_figures, records_of
from django_rmq_retry.parked.blocked_keys import blocked, blocked_by_name, unblock
from django_rmq_retry.parked.operators import Actor, Outdated


class Command(RmqCommand):
    help = "List blocked ordering keys and waiting messages; unblock a key without resolving its first message."
    examples = (
        "rmq_blocked list",
        "rmq_blocked list --handler bank.post",
        'rmq_blocked unblock bank.post ACC-7 --reason "booked by hand"',
    )
    common = ("using",)

    def add_arguments(self, parser: CommandParser) -> None:
        add = self.subcommands(parser)
        listed = add("list", self._list, "list blocked keys, the oldest first")
        listed.add_argument("--handler", default="", metavar="NAME", help="only keys of this handler")
        add_limit(listed, "keys")
        unblock = add(
            "unblock", self._unblock, "let a key continue with its next message, as if the first were resolved"
        )
        unblock.add_argument("handler", metavar="HANDLER", help="the handler's name")
        unblock.add_argument("keys", nargs="+", metavar="KEY", help="ordering keys of this handler")
        unblock.add_argument(
            "--reason", default="", metavar="TEXT", help="why the key need not wait for its first message"
        )
        add_yes(unblock)

    def _list(self, options: Options) -> Exit:
        keys = list(blocked(handler=options["handler"])[: options["limit"]])
        now = blocked_figures()
        if options["json"]:
            records = records_of(keys)
            self.document(
                "blocked_list/1",
                keys=now.keys,
                waiting=now.waiting,
                full=now.full,
                items=[_data(one, records.get(one.pk)) for one in keys],
            )
            return Exit.DONE if keys else Exit.NOTHING
        if not keys:
            self.say("No key is blocked.")
            return Exit.NOTHING
        terminal = self.stdout.isatty()
        head = ("HANDLER", "KEY", "FIRST MESSAGE", "PARKED", "SINCE", "WAITING")
        self.table([head, *(_cells(one, terminal=terminal) for one in keys)])
        if now.full:
            self.say("The limit BLOCKED_PER_KEY or BLOCKED_TOTAL is reached: waiting messages slow down their queue.")
        if now.keys > len(keys) and not options["handler"]:
            self.say(f"{now.keys - len(keys)} more keys. Raise --limit to see them.")
        return Exit.DONE

    def _unblock(self, options: Options) -> Exit:
        rows = blocked_by_name(options["handler"], options["keys"])
        first = ", ".join(f"{row.key} (first {row.blocker}, {row.waiting} waiting)" for row in rows)
        self.confirm(f"Unblock without resolving the first message: {first}?", yes=options["yes"])
        done = [one.key for one in rows if self._unblock_one(one, options["reason"])]
        if options["json"]:
            self.document("blocked_unblock/1", handler=options["handler"], unblocked=done)
        return Exit.DONE if len(done) == len(rows) else Exit.PARTLY if done else Exit.NOTHING

    def _unblock_one(self, one: BlockedKey, reason: str) -> bool:
        try:
            now = unblock(one, Actor.of_shell(), reason=reason)
        except Outdated as refusal:
            self.say(str(refusal))
            return False
        first = f"{now.blocker} is first now, {now.waiting} wait behind it" if now else "no message waits"
        self.say(f"{one.handler} {one.key}: {first}.")
        return True


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
