"""``manage.py rmq_relay``: publish the messages of the outbox; list, retry or discard those that failed."""

import logging
from collections.abc import Sequence

from django.core.management.base import CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS, connections

from django_rmq_retry.alerts.watch import AlertWatcher
from django_rmq_retry.arguments import plural
from django_rmq_retry.conf import settings
from django_rmq_retry.consumer import supervisor
from django_rmq_retry.database_connections import FreshConnections
from django_rmq_retry.embedded.wire import server
from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.handlers import registry
from django_rmq_retry.management.accounts import actor_of, add_user
from django_rmq_retry.management.arguments import add_limit, http_address, seconds
from django_rmq_retry.management.command import Options, RmqCommand, add_yes, check_known, usage_error
from django_rmq_retry.management.terminal import clock, install, utc
from django_rmq_retry.models import OutboxMessage
from django_rmq_retry.parked.operators import Actor
from django_rmq_retry.parked.outbox_actions import discard_outbox, failing, retry_outbox
from django_rmq_retry.publishing import outbox_rows, sender
from django_rmq_retry.publishing.relay_thread import RelayThread
from django_rmq_retry.recurring import Recurring
from django_rmq_retry.telemetry.figures import Figures, Notice
from django_rmq_retry.telemetry.http import Address, AddressUnusable, HttpServer, HttpThread
from django_rmq_retry.telemetry.meter import Board
from django_rmq_retry.telemetry.probes import RelayProbes

log = logging.getLogger("django_rmq_retry")

NO_OUTBOX = "No database has an outbox. Run `manage.py migrate`."


class Command(RmqCommand):
    help = "Publish the messages of the outbox until the process is stopped. Every rmq_consume process does so too."
    examples = ("rmq_relay", "rmq_relay --burst", "rmq_relay retry --all --yes")

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--burst", action="store_true", help="exit when all due messages are sent")
        parser.add_argument("--max-runtime", type=seconds, metavar="S", help="exit after S seconds")
        parser.add_argument("--json-logs", action="store_true", help="write log lines as JSON")
        parser.add_argument(
            "--http",
            type=http_address,
            metavar="HOST:PORT",
            help="serve /metrics, /livez and /readyz there; a bare port listens on 127.0.0.1",
        )
        add = self.subcommands(parser, required=False)
        parser.set_defaults(act=self._relay, outbox=DEFAULT_DB_ALIAS)
        listed = add("list", self._list, "list messages in the outbox, the oldest first")
        listed.add_argument("--failed", action="store_true", help="only failed messages, which need an operator")
        add_limit(listed, "messages")
        again = add("retry", self._retry, "send messages again that could not be sent")
        again.add_argument("--all", action="store_true", help="all failed messages")
        gone = add("discard", self._discard, "delete messages that could not be sent; they are never sent")
        gone.add_argument("--reason", required=True, metavar="TEXT", help="the reason, kept in the audit log")
        add_user(gone)
        for one in (again, gone):
            one.add_argument(
                "ids", nargs="*", type=int, metavar="ID", help="numbers that `rmq_relay list` shows in the column ID"
            )
            add_yes(one)
        for one in (listed, again, gone):
            # A name of its own, because the audit log stays in the database of the project's records.
            text = "alias of the database with the outbox; “default” by default"
            one.add_argument("--using", dest="outbox", default=DEFAULT_DB_ALIAS, metavar="ALIAS", help=text)

    def run(self, options: Options) -> Exit | None:
        check_known("database", [options["outbox"]], connections)
        return super().run(options)

    def _relay(self, options: Options) -> Exit:
        served = [alias for alias in outbox_rows.served() if outbox_rows.table_exists(alias)]
        if not served:
            raise CommandError(NO_OUTBOX, returncode=Exit.NOTHING)
        if settings().access().embedded:
            server.ensure(settings().folder())
        install(self.stdout, self.style, verbosity=options["verbosity"], json_logs=options["json_logs"], with_pid=False)
        log.info("Relaying the outbox of %s", ", ".join(served), extra={"event": "started"})
        relaying, over = _run(options)
        log.info(
            "The relay ended: %s messages were sent", relaying.sent, extra={"event": "stopped", "sent": relaying.sent}
        )
        if not over:
            raise CommandError(
                "The relay did not stop in time: the database or the broker did not answer.", returncode=Exit.ERROR
            )
        if not options["burst"]:
            return Exit.DONE
        if relaying.away:
            raise CommandError(f"Some messages were not sent: {relaying.away}", returncode=Exit.UNREACHABLE)
        left = [OutboxMessage.objects.using(alias).pending() for alias in served]
        return Exit.PARTLY if any(one.waiting or one.failed for one in left) else Exit.DONE

    def _list(self, options: Options) -> Exit:
        rows = OutboxMessage.objects.using(options["outbox"]).order_by("pk").defer("body", "properties")
        if options["failed"]:
            rows = rows.filter(failed_at__isnull=False)
        messages = list(rows[: options["limit"]])
        if options["json"]:
            count = OutboxMessage.objects.using(options["outbox"]).pending()
            totals = {"waiting": count.waiting, "failed": count.failed}
            self.document("relay_list/1", database=options["outbox"], **totals, items=[_data(row) for row in messages])
        elif messages:
            terminal = self.stdout.isatty()
            head = ("ID", "WRITTEN", "STATE", "ATTEMPTS", "TO", "ORDER", "MESSAGE", "ERROR")
            self.table([head, *(_cells(row, terminal=terminal) for row in messages)])
        else:
            waiting = OutboxMessage.objects.using(options["outbox"]).pending().waiting
            failed = f"No message has failed; {plural(waiting, 'message')} {'waits' if waiting == 1 else 'wait'}."
            self.say(failed if waiting else "The outbox is empty.")
        return Exit.DONE if messages else Exit.NOTHING

    def _retry(self, options: Options) -> Exit:
        using, ids = options["outbox"], options["ids"]
        if bool(ids) is options["all"]:
            raise usage_error("Pass either IDs or --all.")
        known = failing(using).filter(pk__in=ids) if ids else failing(using).filter(failed_at__isnull=False)
        count = known.count()
        if count:
            self.confirm(f"Send {plural(count, 'message')} again?", yes=options["yes"])
            count = retry_outbox(Actor.of_shell(), ids or None, using=using)
        return self._report(options, count, "will be sent again")

    def _discard(self, options: Options) -> Exit:
        using, ids = options["outbox"], options["ids"]
        if not ids:
            raise usage_error("Pass the IDs of the messages to discard.")
        count = failing(using).filter(pk__in=ids).count()
        if count:
            self.confirm(f"Discard {plural(count, 'message')}? What is discarded is never sent.", yes=options["yes"])
            count = discard_outbox(actor_of(options), ids, using=using, reason=options["reason"])
        return self._report(options, count, "discarded")

    def _report(self, options: Options, count: int, what: str) -> Exit:
        if options["json"]:
            self.document(f"relay_{options['subcommand']}/1", database=options["outbox"], count=count)
        else:
            self.line(f"{plural(count, 'message')} {what}.")
        if not count:
            return Exit.NOTHING
        return Exit.PARTLY if count < len(options["ids"]) else Exit.DONE


def _run(options: Options) -> tuple[RelayThread, bool]:
    """Run until a signal, a limit, or the end of a burst; return True if the relay stopped within its timeout."""
    relaying = RelayThread(with_connections=FreshConnections, burst=options["burst"])
    served = [*_served(options["http"], relaying)]
    if settings().alerts and not options["burst"]:
        served.append(AlertWatcher(with_connections=FreshConnections))
    supervisor.listen(lambda _why: relaying.over.set())
    relaying.start()
    for one in served:
        one.start()
    relaying.over.wait(options["max_runtime"])
    over = relaying.stop(timeout=settings().shutdown_timeout)
    for one in served:
        one.stop()
    sender.close()
    connections.close_all()
    return relaying, over


def _served(address: Address | None, relaying: RelayThread) -> Sequence[HttpThread | Recurring]:
    """Return the threads that serve metrics and health; none without an address."""
    if address is None:
        return ()
    notice = Notice()
    try:
        server = HttpServer(address, RelayProbes(relaying, notice).answer)
    except AddressUnusable as error:
        raise usage_error(str(error)) from error
    board, threads = Board(registry.work_queues()), settings().threads
    figures = Figures(notice, board, registry.work_queues(), threads=threads, with_connections=FreshConnections)
    return figures, HttpThread(server)


def _data(row: OutboxMessage) -> dict[str, object]:
    names = ("message_id", "exchange", "routing_key", "order_key", "size")
    shown = {name: getattr(row, name) for name in names} | {"attempts": row.attempts, "error": row.error}
    moments = {name: utc(getattr(row, name)) for name in ("created_at", "due_at", "failed_at")}
    return {"id": row.pk, **shown, **moments}


def _cells(row: OutboxMessage, *, terminal: bool) -> tuple[object, ...]:
    state = "failed" if row.failed_at else "retrying" if row.attempts else "waiting"
    to = f"{row.exchange} {row.routing_key}".strip()
    return row.pk, clock(row.created_at, terminal=terminal), state, row.attempts, to, row.order_key, row, row.error
