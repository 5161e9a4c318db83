"""``manage.py rmq_audit``: show, export and verify operators' actions, and delete old ones."""

import argparse
import datetime
import re

from django.core.management.base import CommandParser
from django.db.models import QuerySet

from django_rmq_retry.conf import settings
from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.health.doubts import finding_of
from django_rmq_retry.management.arguments import add_limit, age, moment
from django_rmq_retry.management.command import Options, RmqCommand, add_yes
from django_rmq_retry.management.terminal import clock
from django_rmq_retry.models import Action, OperatorAction
from django_rmq_retry.parked.audit import (
    actions_named,
    acts_by,
    acts_in,
    acts_meant,
    audit_head,
    keys_left_out,
    leaving_out,
    names_asked,
    verify,
)
from django_rmq_retry.parked.operators import Actor
from django_rmq_retry.parked.retention import purge_audit
from django_rmq_retry.parked.transfer import audit_lines

HEAD_OF_LOG = re.compile("0:|[1-9][0-9]{0,17}:[0-9a-f]{64}")
NUMBER_OPTIONS = ("message", "group", "run")


class Command(RmqCommand):
    help = "List, verify, export or purge the audit log of operators' actions."
    examples = (
        "rmq_audit list --message 812",
        'rmq_audit list --search "paid by hand"',
        "rmq_audit verify",
        "rmq_audit export --since 30d --csv",
    )
    common = ("using",)

    def add_arguments(self, parser: CommandParser) -> None:
        add = self.subcommands(parser)
        listed = add("list", self._list, "list actions, the latest first")
        add_limit(listed, "actions")
        out = add("export", self._export, "write actions as JSON lines or CSV to stdout", json=False)
        out.add_argument("--csv", action="store_true", help="as CSV")
        for one in (listed, out):
            one.add_argument("--message", metavar="MESSAGE", help="actions on this message: number, key or message id")
            for name in ("group", "run"):
                one.add_argument(f"--{name}", type=int, metavar="N", help=f"actions on this {name}")
            one.add_argument("--action", choices=Action.values, help="only this action")
            one.add_argument("--by", metavar="NAME", help="by operators with this in their name")
            one.add_argument(
                "--search", metavar="TEXT", help="words of reasons, operators' names or messages, as in the admin"
            )
            one.add_argument("--since", type=moment, metavar="AGE", help="since: 90s, 10m, 1h, 7d, or a time")
        checked = add("verify", self._verify, "verify that no row was changed or deleted; exit code 1 if one was")
        checked.add_argument(
            "--head", type=head_of_log, metavar="NUMBER:SEAL", help="the head that `rmq_audit head` printed earlier"
        )
        add("head", self._head, "print number and seal of the last action, to keep in another place")
        old = add("purge", self._purge, "delete the oldest actions; without --yes only count them")
        days = datetime.timedelta(days=settings().operators.audit_days)
        old.add_argument(
            "--older-than", type=age, default=days, metavar="AGE", help="the least age; AUDIT_DAYS by default"
        )
        add_yes(old)

    def _list(self, options: Options) -> Exit:
        actions = list(_chosen(options).order_by("-number")[: options["limit"]])
        if options["json"]:
            self.document("audit_list/1", items=[_data(one) for one in actions])
        elif actions:
            terminal = self.stdout.isatty()
            head = ("NUMBER", "AT", "BY", "ACTION", "COUNT", "SUBJECT", "REASON")
            left_out = keys_left_out(actions, names_asked(options["message"] or options["search"] or ""))
            cells = [_cells(one, left_out.get(one.number, ""), terminal=terminal) for one in actions]
            self.table([head, *cells], cut=True)
        else:
            self.say("No action matches.")
        return Exit.DONE if actions else Exit.NOTHING

    def _verify(self, options: Options) -> Exit:
        problems = list(verify(options["head"] or ""))
        if options["json"]:
            self.document("audit_verify/1", rows=OperatorAction.objects.count(), problems=problems)
        elif not problems:
            self.line(f"The audit log is complete: {OperatorAction.objects.count()} rows.", "SUCCESS")
        else:
            for problem in problems:
                self.line(problem, "ERROR")
        return Exit.ERROR if problems else Exit.DONE

    def _head(self, options: Options) -> Exit:
        if options["json"]:
            self.document("audit_head/1", head=audit_head())
        else:
            self.stdout.write(audit_head())
        return Exit.DONE

    def _export(self, options: Options) -> Exit:
        form = "csv" if options["csv"] else "jsonl"
        for line in audit_lines(_chosen(options), Actor.of_shell(), form=form):
            self.stdout.write(line, ending="")
        return Exit.DONE

    def _purge(self, options: Options) -> Exit:
        count = purge_audit(Actor.of_shell(), older_than=options["older_than"], dry=not options["yes"])
        if options["json"]:
            self.document("audit_purge/1", count=count, done=options["yes"])
        else:
            self.line(
                f"{count} rows deleted." if options["yes"] else f"{count} rows would be deleted. Pass --yes to delete."
            )
        return Exit.DONE if count else Exit.NOTHING


def head_of_log(text: str) -> str:
    if not HEAD_OF_LOG.fullmatch(text):
        raise argparse.ArgumentTypeError(f"takes what `rmq_audit head` printed, such as 812:9f3c…, not {text!r}")
    return text


def _chosen(options: Options) -> QuerySet[OperatorAction]:
    rows: QuerySet[OperatorAction] = OperatorAction.objects.all()
    if options["message"]:
        rows = rows.filter(actions_named(options["message"]) | leaving_out(names_asked(options["message"])))
    given = {name: options[name] for name in ("run", "action") if options[name] is not None}
    if options["group"] is not None:
        rows = rows.filter(acts_in(options["group"]))
    if options["search"]:
        rows = rows.filter(acts_meant(options["search"]))
    if options["by"]:
        rows = rows.filter(acts_by(options["by"]))
    if options["since"]:
        given["at__gte"] = options["since"]
    return rows.filter(**given)


def _data(one: OperatorAction) -> dict[str, object]:
    names = ("number", "action", "reason", *NUMBER_OPTIONS, "subject", "count", "facts", "ip", "source", "seal")
    who = {"by": one.actor_name, "account": one.actor_key, "behalf": one.behalf}
    return {"at": clock(one.at, terminal=False), **who, **{name: getattr(one, name) for name in names}}


def _cells(one: OperatorAction, left_out: str, *, terminal: bool) -> tuple[object, ...]:
    who = f"{one.who} ({one.behalf})" if one.behalf else one.who
    places = [f"{name} {getattr(one, name)}" for name in NUMBER_OPTIONS if getattr(one, name) is not None]
    name = one.get_action_display()
    # A queue is paused and resumed as a run is.
    about = finding_of(one) or ("" if name == dict(Action.choices).get(one.action, one.action) else name)
    told = (about and f"{about}:", *places, one.subject, left_out and f"({left_out} was left out)")
    count = "-" if one.messages is None else one.messages
    reason = " · ".join(filter(None, (one.reason, " → ".join(f"{rate:g}" for rate in one.rates))))
    subject = " ".join(filter(None, told))
    return one.number, clock(one.at, terminal=terminal), who, one.action, count, subject, reason
