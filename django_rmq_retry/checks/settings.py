"""Checks of settings, handlers and the outbox."""

import difflib
import ipaddress
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from django.apps import apps
from django.conf import settings as project
from django.core.checks import CheckMessage, Error, Warning, register  # noqa: A004  # Django's own names
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections, router
from django.db.models import Model
from django.views.debug import get_default_exception_reporter_filter

from django_rmq_retry import conf
from django_rmq_retry.amqp.address import GUEST, Access, Secret
from django_rmq_retry.conf import Settings
from django_rmq_retry.errors import ConfigurationError, ExtraMissing, TopologyConflict
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.handler import Handler
from django_rmq_retry.handlers.subscription import Subscription, WorkQueue
from django_rmq_retry.health.rules import Code
from django_rmq_retry.policies.carriers import AckFirst, InPlace, NackRequeue, Republish
from django_rmq_retry.policies.dead_letter import WaitQueue
from django_rmq_retry.policies.policy import RetryThenPark
from django_rmq_retry.topology.declarations import name_of

TAG = "rmq_retry"
Check = Callable[..., list[CheckMessage]]

CONSUMER_TIMEOUT_SECONDS = 1800
"""Seconds after which RabbitMQ takes back an unacked delivery, by default."""
LONG_WAIT_SECONDS = 60
"""Seconds of waiting with an unacked message that deserve a warning."""
SHARED_OPTIONS_HINT = "The handlers of one queue share its options, and differ in type=…, routing_key=… or headers={…}."
LONG_HEARTBEAT_SECONDS = 60
CHEAP_TO_OPEN = ("django.db.backends.sqlite3", "django.db.backends.dummy")
_LOGIN = re.compile(r"\b(?:amqps?|https?)://[^/\s@]*:[^/\s]+@", re.IGNORECASE)


def error(number: str, text: str, *, hint: str, at: str | None = None) -> CheckMessage:
    return Error(text, hint=hint, obj=at, id=f"{TAG}.{number}")


def warning(number: str, text: str, *, hint: str, at: str | None = None) -> CheckMessage:
    return Warning(text, hint=hint, obj=at, id=f"{TAG}.{number}")


def with_settings(check: Callable[[Settings], Iterable[CheckMessage]]) -> Check:
    """Skip a check while settings or handlers are invalid; check_settings and check_joining report those."""

    def run(*, app_configs: Sequence[object] | None, **_: object) -> list[CheckMessage]:  # noqa: ARG001  # Django's call
        try:
            return list(check(conf.settings()))
        except (ImproperlyConfigured, ConfigurationError):
            return []

    return run


def joined() -> list[str]:
    """Return the names of the handlers that fit their queue and policy."""
    return [name for name in registry.registrations() if not problem(name)]


def problem(name: str) -> ConfigurationError | None:
    """Return the reason why a handler does not fit its queue and policy, or names a type that cannot be used."""
    try:
        registry.subscription(name)
    except ConfigurationError as wrong:
        return wrong
    return None


@register(TAG)
def check_settings(*, app_configs: Sequence[object] | None, **_: object) -> list[CheckMessage]:  # noqa: ARG001
    try:
        settings = conf.settings()
    except ImproperlyConfigured as wrong:
        return [error("E001", str(wrong), hint="Correct RMQ_RETRY in the settings file.")]
    return [
        warning(
            "W011",
            f"RMQ_RETRY['REPLY_TO'] contains {pattern!r}: every client that may publish can direct answers to any "
            "queue.",
            hint="List the queues of the callers, such as ['amq.rabbitmq.reply-to.*', 'bank.answers.*'].",
        )
        for pattern in settings.reply_to
        if not pattern.strip("*?")
    ]


@register(TAG)
@with_settings
def check_alerts(settings: Settings) -> Iterator[CheckMessage]:
    """Check what only the rules of health, and other settings, can tell."""
    alerts = settings.alerts
    for code in alerts.without:
        if code not in Code.__members__:
            near = difflib.get_close_matches(code, Code.__members__, n=1)
            yield error(
                "E060",
                f"RMQ_RETRY['ALERTS']['WITHOUT'] contains {code!r}, which is no code of a finding.",
                hint=f"Did you mean {near[0]!r}?" if near else f"The codes are {', '.join(Code.__members__)}.",
            )
    if alerts and not settings.records:
        yield error(
            "E061",
            "RMQ_RETRY['ALERTS'] needs RECORDS: the lease of the sender, and what was sent, are in the database.",
            hint="Set RECORDS to True, or remove ALERTS and alert by rmq_status --check.",
        )
    if alerts.mail == conf.ADMINS and not project.ADMINS:
        yield error(
            "E062",
            "RMQ_RETRY['ALERTS']['MAIL'] is 'admins', and the setting ADMINS is empty: nobody gets a mail.",
            hint="Add recipients to ADMINS, or list addresses in MAIL.",
        )
    if alerts and not alerts.admin_url:
        yield warning(
            "W060",
            "RMQ_RETRY['ALERTS'] has no ADMIN_URL, so alerts have no link to the page Live status.",
            hint="Set ADMIN_URL to the address of the admin, such as 'https://bank.example/admin/'.",
        )


@register(TAG)
@with_settings
def check_joining(settings: Settings) -> Iterator[CheckMessage]:
    """Check each handler, then the handlers of each queue, then the whole topology."""
    wrong = [(name, refusal) for name in registry.registrations() if (refusal := problem(name))]
    for name, refusal in wrong:
        number, hint = "E002", "Correct the arguments of @handler, or RMQ_RETRY['POLICY']."
        if isinstance(refusal, ExtraMissing):
            number, hint = "E009", "Install it wherever the project runs, or write Delivery without a type."
        yield error(number, str(refusal), hint=hint, at=name)
    if wrong:
        return
    try:
        work_queues = registry.work_queues()
    except ConfigurationError as disagreement:
        yield error("E003", str(disagreement), hint=SHARED_OPTIONS_HINT)
        return
    try:
        registry.topology()
    except TopologyConflict as conflict:
        yield error("E004", str(conflict), hint="Define each name once, in a handler or in RMQ_RETRY['TOPOLOGY'].")
    except ConfigurationError as disagreement:
        yield error("E003", str(disagreement), hint=SHARED_OPTIONS_HINT)
    yield from _idle(settings, work_queues)


@register(TAG)
@with_settings
def check_policies(settings: Settings) -> Iterator[CheckMessage]:  # noqa: ARG001
    subscriptions = [registry.subscription(name) for name in joined()]
    yield from _wait_in_one_line(subscriptions)
    for subscription in subscriptions:
        for check in (_hidden, _outlasts, _loses, _waits_in_line, _goes_round, _holds_too_long, _loses_order):
            yield from check(subscription)


def _idle(settings: Settings, work_queues: Sequence[WorkQueue]) -> Iterable[CheckMessage]:
    unacked = sum(1 if work_queue.ordered else settings.prefetch for work_queue in work_queues)
    configured = "THREADS" in getattr(project, conf.NAME, {})
    if configured and work_queues and settings.threads > unacked:
        yield warning(
            "W012",
            f"RMQ_RETRY['THREADS'] is {settings.threads}, but at most {unacked} messages of all queues are unacked at "
            "once: some threads stay idle.",
            hint="Raise RMQ_RETRY['PREFETCH'], or lower THREADS.",
        )


def _loses(subscription: Subscription) -> Iterable[CheckMessage]:
    if isinstance(subscription.policy.via, AckFirst):
        yield warning(
            "W001",
            "AckFirst acknowledges a message before its copy is stored: if the process dies in between, the message "
            "is lost.",
            hint="Use via=Republish(), which may duplicate but not lose a message, or the default, via=Ladder().",
            at=subscription.name,
        )
    if subscription.ack == "auto":
        yield warning(
            "W019",
            "With ack='auto' the broker deletes a message when it sends it. Failed messages, messages waiting in a "
            "process that ends, and messages on a lost connection are lost.",
            hint="If that is intended, silence this check. Otherwise omit ack.",
            at=subscription.name,
        )


def _hidden(subscription: Subscription) -> Iterable[CheckMessage]:
    """Warn of a decorator above @handler: consumers call the function below it."""
    function: Any = subscription.run
    found = layer = getattr(sys.modules.get(function.__module__), function.__qualname__, None)
    while layer is not None and not isinstance(layer, Handler):
        layer = getattr(layer, "__wrapped__", None)
    if layer is not None and layer is not found and layer.name == subscription.name:
        yield warning(
            "W029",
            f"A decorator stands above @handler of {subscription.name}: consumers call the function without it.",
            hint="Write @handler(…) as the first line, and the other decorators below it.",
            at=subscription.name,
        )


def _outlasts(subscription: Subscription) -> Iterable[CheckMessage]:
    if subscription.timeout is not None and subscription.timeout >= CONSUMER_TIMEOUT_SECONDS:
        yield warning(
            "W017",
            f"Its timeout of {subscription.timeout:g} s is not below RabbitMQ's consumer_timeout, by default "
            f"{CONSUMER_TIMEOUT_SECONDS} s: the broker delivers the message again before the deadline ends the first "
            "attempt.",
            hint="Lower timeout=…, or raise consumer_timeout on the broker and silence this check.",
            at=subscription.name,
        )


def _waits_in_line(subscription: Subscription) -> Iterable[CheckMessage]:
    mixed = len(_waits(subscription)) > 1 or any(backoff.spread for backoff in subscription.policy.backoffs)
    if mixed and isinstance(subscription.policy.via, WaitQueue):
        yield warning(
            "W004",
            "WaitQueue mixes waits of different lengths in one queue: a long wait delays the shorter ones behind it.",
            hint="Use via=Ladder(), which has a queue for each wait, or one fixed wait without jitter.",
            at=subscription.name,
        )


def _wait_in_one_line(subscriptions: Sequence[Subscription]) -> Iterable[CheckMessage]:
    """Find handlers with one wait each, but different waits, in the same wait queue."""
    lines: dict[str, dict[str, float]] = {}
    for subscription in subscriptions:
        via, waits = subscription.policy.via, _waits(subscription)
        if isinstance(via, WaitQueue) and len(waits) == 1:
            lines.setdefault(name_of(via.queue), {})[subscription.name] = waits.pop()
    for queue, line in lines.items():
        if len(set(line.values())) > 1:
            listed = ", ".join(f"{name} {wait:g} s" for name, wait in line.items())
            yield warning(
                "W004",
                f"WaitQueue mixes waits of different lengths in queue {queue!r} ({listed}): a long wait delays "
                "the shorter ones behind it.",
                hint="Give each handler its own wait queue or the same wait, or use via=Ladder().",
                at=next(iter(line)),
            )


def _waits(subscription: Subscription) -> set[float]:
    return {step for backoff, attempts in subscription.policy.waits for step in backoff.steps(attempts)}


def _goes_round(subscription: Subscription) -> Iterable[CheckMessage]:
    if isinstance(subscription.policy.via, NackRequeue) and subscription.policy.attempts is None:
        yield warning(
            "W005",
            "NackRequeue with attempts=None never gives up: a message that always fails is redelivered forever.",
            hint="Use attempts=2, or via=Ladder() to count further.",
            at=subscription.name,
        )


def _holds_too_long(subscription: Subscription) -> Iterable[CheckMessage]:
    held = isinstance(subscription.policy.via, (AckFirst, Republish, NackRequeue))
    in_place = isinstance(subscription.policy, RetryThenPark) and isinstance(subscription.policy.via, InPlace)
    if not held and not (in_place and subscription.queue.lasting):
        return
    longest = subscription.policy.via.longest(subscription.route)
    if longest >= LONG_WAIT_SECONDS:
        yield warning(
            "W008",
            f"{type(subscription.policy.via).__name__} waits up to {longest:.9g} s with the message unacked, which "
            "occupies a prefetch slot for that time.",
            hint="Set a lower cap on the back-off, or use via=Ladder(), which waits on the broker.",
            at=subscription.name,
        )


def _loses_order(subscription: Subscription) -> Iterable[CheckMessage]:
    queue = subscription.queue
    if not subscription.policy.ordered and subscription.order_by is None:
        return
    by = "StopTheLine" if subscription.policy.ordered else "order_by"
    if queue.max_priority is not None or "x-max-priority" in queue.arguments:
        yield warning(
            "W013",
            f"Queue {queue.name!r} has priorities, so messages overtake each other despite {by}.",
            hint="Remove max_priority.",
            at=subscription.name,
        )
    if queue.existing:
        yield warning(
            "W014",
            f"Queue {queue.name!r} is declared elsewhere. {by} keeps the order only if it was declared with "
            "x-single-active-consumer.",
            hint="Verify it with `manage.py rmq_declare --check`, then silence this check.",
            at=subscription.name,
        )


@register(TAG)
@with_settings
def check_outbox(settings: Settings) -> Iterator[CheckMessage]:
    named = settings.outbox
    if named is False:
        return
    if named is True:
        yield from _without_outbox()
    aliases = [DEFAULT_DB_ALIAS] if named is True else list(named)
    for alias in aliases:
        if alias not in connections:
            yield error(
                "E040",
                f"RMQ_RETRY['OUTBOX'] names the database {alias!r}, which DATABASES does not have.",
                hint=f"Configured databases: {', '.join(connections)}.",
            )
        elif not router.allow_migrate_model(alias, apps.get_model("rmq_retry", "OutboxMessage")):
            yield warning(
                "W040",
                f"The database {alias!r} has no outbox because a router excludes its table: a message published inside "
                "a transaction is sent after the commit, and is lost if the process ends in between.",
                hint="Let allow_migrate() return True for the app label 'rmq_retry' there, or list the "
                "intended databases in 'OUTBOX'.",
            )


def _without_outbox() -> Iterator[CheckMessage]:
    """Warn of each database that the project writes to, and that a router keeps without an outbox."""
    for alias, writer in written_databases().items():
        if not router.allow_migrate_model(alias, apps.get_model("rmq_retry", "OutboxMessage")):
            yield no_outbox(
                alias, writer, "because a router excludes its table", "Let allow_migrate() return True for it"
            )


def no_outbox(alias: str, writer: str, why: str, fix: str) -> CheckMessage:
    return warning(
        "W041",
        f"The project writes to the database {alias!r} ({writer}), which has no outbox, {why}: a message published "
        "inside its transactions is sent after the commit, and lost if the process ends or no broker answers.",
        hint=f"{fix}. If nothing is published inside its transactions, list the others: "
        f"'OUTBOX': {_with_outbox(alias)}.",
    )


def _with_outbox(other: str) -> list[str]:
    """Return the databases that have an outbox besides this one, as far as a router knows."""
    model = apps.get_model("rmq_retry", "OutboxMessage")
    return [alias for alias in connections if alias != other and router.allow_migrate_model(alias, model)]


def written_databases() -> dict[str, str]:
    """Return each database but the default one that the project writes to, and a model or a handler that does."""
    written: dict[str, str] = {}
    for model in apps.get_models():
        if not model._meta.managed:  # noqa: SLF001 - a documented API
            # The table belongs to another program, which may be the only one that writes to it.
            continue
        written.setdefault(_database_of(model), model._meta.label)  # noqa: SLF001 - a documented API
    for one in map(registry.subscription, joined()):
        if one.once and one.using:
            written.setdefault(one.using, one.name)
    return {alias: written[alias] for alias in sorted(written) if alias in connections and alias != DEFAULT_DB_ALIAS}


def _database_of(model: type[Model]) -> str:
    try:
        return router.db_for_write(model)
    except Exception:  # noqa: BLE001 - a router may need a request, and a check has none
        return DEFAULT_DB_ALIAS


@register(TAG, deploy=True)
@with_settings
def check_deployment(settings: Settings) -> Iterator[CheckMessage]:
    yield from _shown_settings()
    if project.DEBUG:
        yield warning(
            "W026",
            "DEBUG is on: each worker records every query it makes, which costs time and memory.",
            hint="Set DEBUG = False in processes that consume.",
        )
    yield from _connections()
    # A URL function may read a vault or the network, which a check must not.
    if not callable(settings.url) and not callable(settings.password):
        yield from _access(settings.address())


def _access(access: Access) -> Iterable[CheckMessage]:
    if access.embedded:
        # Without DEBUG this is a deployment, so the embedded broker is an error.
        report, number = (warning, "W024") if project.DEBUG else (error, "E024")
        yield report(
            number,
            "The broker is embedded://, which is for development and tests: one process, one file, no users.",
            hint="Set RMQ_RETRY['URL'] to a RabbitMQ, such as amqps://user:password@host/vhost.",
        )
        return
    remote = [str(host) for host in access.hosts if not _loopback(host.name)]
    if remote and access.tls is None:
        yield warning(
            "W021",
            f"Messages and the password travel unencrypted to {', '.join(remote)} (amqp://).",
            hint="Use amqps://, with RMQ_RETRY['TLS'] = {'CA_FILE': …} for your own CA.",
        )
    if access.tls is not None and not access.tls.verify:
        yield warning(
            "W025",
            "RMQ_RETRY['TLS'] has VERIFY False: any machine on the path can pose as the broker.",
            hint="Name your CA with CA_FILE, and the certificate's name with SERVER_NAME if it differs from the "
            "host's.",
        )
    if access.user == GUEST and (remote or access.password == Secret(GUEST)):
        yield warning(
            "W020",
            "The broker is used as 'guest', whose password is public; by default it may only log in locally.",
            hint="Create a user for this project, with permissions on its virtual host only.",
        )
    if access.heartbeat > LONG_HEARTBEAT_SECONDS:
        yield warning(
            "W022",
            f"The heartbeat is {access.heartbeat} s: a lost broker is noticed only after twice that time.",
            hint="Use RMQ_RETRY['HEARTBEAT'] = 15, the default.",
        )


def _connections() -> Iterable[CheckMessage]:
    """Check the database connections, which Django by default closes after each message."""
    for alias, database in connections.settings.items():
        if database["ENGINE"] in CHEAP_TO_OPEN or database["OPTIONS"].get("pool"):
            continue
        if database["CONN_MAX_AGE"] == 0:
            yield warning(
                "W027",
                f"Each message opens a new connection to the database {alias!r}: its CONN_MAX_AGE is 0.",
                hint=f"In processes that consume, set 'CONN_MAX_AGE': 60 and 'CONN_HEALTH_CHECKS': True in "
                f"DATABASES[{alias!r}], or a pool in its OPTIONS.",
            )
        elif not database["CONN_HEALTH_CHECKS"]:
            yield warning(
                "W028",
                f"Connections to the database {alias!r} are kept without health checks: after each restart of the "
                "database, the first message of every thread fails one attempt.",
                hint=f"Set 'CONN_HEALTH_CHECKS': True in DATABASES[{alias!r}].",
            )


def _shown_settings() -> Iterable[CheckMessage]:
    """Find passwords in the settings as Django's error pages and mails show them."""
    shown = get_default_exception_reporter_filter().get_safe_settings()
    for name, value in shown.items():
        for place in _logins(name, value):
            yield warning(
                "W023",
                f"The setting {place} holds a URL with a password, which Django's error pages and mails show.",
                hint="Wrap it: Secret(url) from django_rmq_retry.env, which rmq_settings() does for you; or move the "
                "password from the URL to RMQ_RETRY['PASSWORD'].",
            )


def _logins(place: str, value: object) -> Iterator[str]:
    if isinstance(value, str) and _LOGIN.search(value):
        yield place
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _logins(f"{place}[{key!r}]" if isinstance(key, (str, int)) else place, part)
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            yield from _logins(f"{place}[{index}]", part)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
