"""``manage.py rmq_doctor``: examine the installation; report each problem, its consequence and its repair."""

from collections import Counter

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandParser

from django_rmq_retry.alerts.ways import TEST, TimeLimitedWay, ways
from django_rmq_retry.conf import settings
from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.health.problems import Limits
from django_rmq_retry.health.rules import PARKED_TOO_LONG, Area
from django_rmq_retry.management import findings
from django_rmq_retry.management.arguments import age, positive
from django_rmq_retry.management.broker_examination import BrokerExamination
from django_rmq_retry.management.command import Options, RmqCommand, add_json
from django_rmq_retry.management.examination import RecordExamination, examine_settings, looked
from django_rmq_retry.management.findings import Finding, Grade

MOST_READY = 10_000


class Command(RmqCommand):
    help = "Examine settings, broker, database, queues and records, and show what is wrong and what repairs it."
    examples = ("rmq_doctor", "rmq_doctor --json", "rmq_doctor --deploy --fail-on warning")
    common = ("timeout", "using")
    patience = 3.0

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add(
            "--max-parked-age",
            type=age,
            default=PARKED_TOO_LONG,
            metavar="AGE",
            help="report a problem if a message is parked for longer; 4h by default",
        )
        add(
            "--max-ready",
            type=positive,
            default=MOST_READY,
            metavar="N",
            help=f"report a warning if more messages are ready in a work queue; {MOST_READY} by default",
        )
        add("--deploy", action="store_true", help="also run the system checks for deployment")
        add(
            "--fail-on",
            choices=("warning", "error"),
            default="error",
            help="exit code 8 from this level on; error by default",
        )
        add("--alerts", choices=("test",), help="examine nothing, and send one test alert by each way of ALERTS")
        add_json(parser)

    def run(self, options: Options) -> Exit | None:
        if options["alerts"]:
            return self._test_alerts(options)
        limits = Limits(parked_age=options["max_parked_age"], max_ready=options["max_ready"])
        found, lost = examine(limits, timeout=options["timeout"], deploy=options["deploy"])
        counts = Counter(finding.level for finding in found)
        unknown = list(dict.fromkeys(one.area.value for one in found if one.level is Grade.UNKNOWN))
        if options["json"]:
            self.document(
                "doctor/1",
                problems=counts[Grade.ERROR],
                warnings=counts[Grade.WARNING],
                not_looked_at=unknown,
                findings=[finding.as_data() for finding in found],
            )
        else:
            findings.write(self, found, by_area=True)
            rest = f" Not fully examined: {', '.join(unknown)}." if unknown else ""
            self.line(*findings.conclusion(found, rest))
        if lost:
            return Exit.UNREACHABLE
        failed = counts[Grade.ERROR] or (options["fail_on"] == "warning" and counts[Grade.WARNING])
        return Exit.UNHEALTHY if failed else Exit.DONE

    def _test_alerts(self, options: Options) -> Exit:
        tried = [(one, TimeLimitedWay(one).send(TEST)) for one in ways(settings())]
        if options["json"]:
            items = [
                {"way": one.name, "to": one.to, "sent": not why, "reason": why or one.remark} for one, why in tried
            ]
            self.document("doctor_alerts/1", items=items)
        for one, why in [] if options["json"] else tried:
            said = f"not sent, {why}" if why else ", ".join(filter(None, ("sent", one.remark)))
            self.line(f"{one.name} to {one.to}: {said}", "ERROR" if why else "WARNING" if one.remark else "SUCCESS")
        if not tried:
            self.say("RMQ_RETRY['ALERTS'] names no way.")
            return Exit.NOTHING
        return Exit.UNHEALTHY if any(why for _, why in tried) else Exit.DONE


def examine(limits: Limits, *, timeout: float, deploy: bool) -> tuple[list[Finding], bool]:
    """Return all findings by area, and True if the broker is unreachable."""
    found = list(looked(Area.SETTINGS, lambda: examine_settings(deploy=deploy)))
    try:
        settings()
    except ImproperlyConfigured:
        unseen = [Finding.unseen(area, "RMQ_RETRY is invalid") for area in Area if area is not Area.SETTINGS]
        return [*found, *unseen], False
    records = RecordExamination(limits, timeout)
    found += records.findings()
    broker = BrokerExamination(records.health, timeout)
    found += [*broker.findings(), *broker.judged(), *records.growing()]
    order = list(Area)
    return sorted(found, key=lambda finding: order.index(finding.area)), broker.lost
