"""Remembers declared queues and exchanges, and finds those that no handler uses any more."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass

from django.conf import settings as project
from django.core.exceptions import ImproperlyConfigured
from django.db import Error, router, transaction

from django_rmq_retry import __version__, database_clock
from django_rmq_retry.amqp.declarer import Declarer
from django_rmq_retry.amqp.inspection import look_at_rest
from django_rmq_retry.amqp.levels import Gauged, gauge
from django_rmq_retry.amqp.management_api import API_ANSWER_SECONDS, Inspector
from django_rmq_retry.amqp.refusals import Refusal
from django_rmq_retry.amqp.session import Session
from django_rmq_retry.conf import settings
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.layout import homes_of
from django_rmq_retry.messages.parked_copy import UNRECORDED_QUEUE
from django_rmq_retry.messages.texts import one_line
from django_rmq_retry.models import Declared
from django_rmq_retry.statements import missing_tables
from django_rmq_retry.topology.declarations import (
    AbandonedQueue,
    BindingDeclaration,
    ExchangeDeclaration,
    QueueDeclaration,
    Role,
    Topology,
)
from django_rmq_retry.topology.plan import Item, Plan, PlanState

EXISTING = (PlanState.SAME, PlanState.CREATE, PlanState.DIFFERS)


class DeclarationsUnavailable(Exception):
    """The database cannot read or store declarations; the text names the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPlace:
    """One virtual host of one broker, as one project sees it."""

    project: str
    broker: str
    vhost: str

    @classmethod
    def of(cls, session: Session) -> "BrokerPlace":
        """Return a session's place: a cluster's name, which its hosts share, or the folder of the embedded broker."""
        access = session.access
        hosts = ",".join(sorted(map(str, access.hosts)))
        broker = f"embedded://{settings().folder()}" if access.embedded else session.server.cluster or hosts
        return cls(project=_project(), broker=broker[-255:], vhost=access.vhost)

    def digest(self, kind: str, name: str) -> str:
        return Declared.digest_of(*astuple(self), kind, name)

    def has(self, row: Declared) -> bool:
        return row.digest == self.digest(row.kind, row.name)


def rows() -> list[Declared]:
    """Return everything that this project has declared, on all brokers."""
    return list(Declared.objects.filter(project=_project()).order_by("pk"))


def load() -> list[Declared]:
    """Return everything that the project has declared; raise DeclarationsUnavailable if the database cannot read it."""
    try:
        _check_table(router.db_for_read(Declared))
        return rows()
    except (Error, ImproperlyConfigured) as error:
        raise DeclarationsUnavailable(one_line(error)) from error


def declarer_on(session: Session, *, api_timeout: float = API_ANSWER_SECONDS) -> Declarer:
    """Return what looks at queues over a session, and by the management API if the settings name one."""
    url, vhost = settings().operators.management_url, session.access.vhost
    return Declarer(session, None if url is None else Inspector(url=url, vhost=vhost, timeout=api_timeout))


def gauged(declarer: Declarer, known: Iterable[Declared]) -> Gauged:
    """Return the levels of the project's queues, and of those that it had declared before."""
    topology = registry.topology()
    return gauge(declarer, topology, abandoned_queues(known, topology, BrokerPlace.of(declarer.session)))


def abandoned_queues(known: Iterable[Declared], topology: Topology, place: BrokerPlace) -> tuple[AbandonedQueue, ...]:
    """Return the queues that were declared at a place and are no longer in the topology, work queues first."""
    here = [row for row in known if row.kind == "queue" and row.name not in topology.queues and place.has(row)]
    found = {row.name: _abandoned(row) for row in here}
    for one in list(found.values()):
        aside = one.queue.name + UNRECORDED_QUEUE
        if one.queue.role is Role.PARKED and aside not in topology.queues:
            beside = QueueDeclaration(name=aside, role=Role.PARKED)
            found.setdefault(aside, AbandonedQueue(queue=beside, home=one.home))
    return tuple(found.values())


def still_consumed(declarer: Declarer, abandoned: Sequence[AbandonedQueue]) -> dict[str, str]:
    """Return the abandoned queues with consumers, and those that belong to them, each with the reason to keep it."""
    heads = {one.queue.name: one.home or one.queue.name for one in abandoned}
    read: dict[str, str] = {}
    for name, head in heads.items():
        try:
            holding = look_at_rest(declarer.session, declarer.inspector, name)
        except Refusal as refusal:
            read.setdefault(head, f"{refusal.sentence()} The number of its consumers is unknown.")
            continue
        if holding is not None and holding.consumers:
            read[head] = f"no handler of this project uses it, but {name!r} has a consumer."
    return {
        name: f"{read[head]} Delete it by name: manage.py rmq_delete {name} --force"
        for name, head in heads.items()
        if head in read
    }


def abandoned_exchanges(known: Iterable[Declared], topology: Topology, place: BrokerPlace) -> list[str]:
    """Return the exchanges that were declared at a place and are no longer in the topology."""
    there = [row.name for row in known if row.kind == "exchange" and place.has(row)]
    return [name for name in there if name not in topology.exchanges]


def save(declarer: Declarer, topology: Topology, plan: Plan) -> str:
    """Store the plan's declarations, and delete the rows of objects that are gone or belong to others.

    Return why the database could not do that; empty if it did, or if its table is missing and records are off.
    """
    place = BrokerPlace.of(declarer.session)
    try:
        alias = router.db_for_write(Declared)
        _check_table(alias)
        known = {row.digest: row for row in Declared.objects.using(alias).filter(project=place.project)}
        known = {digest: row for digest, row in known.items() if place.has(row)}
        gone = [row.pk for row in known.values() if _is_gone(declarer, row, topology)]
        homes = homes_of(registry.work_queues())
        rows = [_row(place, item, topology, homes) for item in plan.items if _is_ours(item)]
        _write(alias, known, rows)
        Declared.objects.using(alias).filter(pk__in=gone).delete()
    except (Error, ImproperlyConfigured, DeclarationsUnavailable) as error:
        return "" if isinstance(error, DeclarationsUnavailable) and not settings().records else one_line(error)
    return ""


def delete(declarer: Declarer, queues: Sequence[str], exchanges: Sequence[str] = ()) -> None:
    """Delete the rows of deleted queues and exchanges. If the database is down, the next declaration deletes them."""
    place = BrokerPlace.of(declarer.session)
    digests = [place.digest("queue", name) for name in queues]
    digests += [place.digest("exchange", name) for name in exchanges]
    try:
        alias = router.db_for_write(Declared)
        _check_table(alias)
        Declared.objects.using(alias).filter(digest__in=digests).delete()
    except (Error, ImproperlyConfigured, DeclarationsUnavailable):
        return


def _project() -> str:
    """Return the project's name in a shared database; it is the same for all its settings, hosts and releases."""
    return str(getattr(project, "ROOT_URLCONF", "") or project.SETTINGS_MODULE or "")[:255]


def _check_table(alias: str) -> None:
    if missing_tables([Declared], alias):
        raise DeclarationsUnavailable(f"the tables are missing in {alias!r}: manage.py migrate")


def _abandoned(row: Declared) -> AbandonedQueue:
    role = Role(row.role) if row.role in set(Role) else Role.OTHER
    return AbandonedQueue(
        queue=QueueDeclaration(name=row.name, role=role, arguments=row.arguments),
        home=row.home,
        bindings=tuple(
            BindingDeclaration(source=source, destination=row.name, key=key, arguments=arguments)
            for source, key, arguments in row.bindings
        ),
    )


def _is_ours(item: Item) -> bool:
    declaration = item.declaration
    return item.state in EXISTING and not isinstance(declaration, BindingDeclaration) and not declaration.existing


def _is_gone(declarer: Declarer, row: Declared, topology: Topology) -> bool:
    """True if the broker has no object of this project by that name any more. If that is unknown, the row is kept."""
    known = (topology.queues if row.kind == "queue" else topology.exchanges).get(row.name)
    if known is not None:
        return known.existing
    named = QueueDeclaration(name=row.name) if row.kind == "queue" else ExchangeDeclaration(name=row.name)
    try:
        return not declarer.there(named)
    except Refusal:
        return False


def _row(place: BrokerPlace, item: Item, topology: Topology, homes: Mapping[str, str]) -> Declared:
    declaration, now = item.declaration, database_clock.now(router.db_for_write(Declared))
    bindings = [
        [one.source, one.key, _plain(one.arguments)]
        for one in topology.bindings
        if one.destination == item.name and not one.to_exchange and item.kind == "queue"
    ]
    return Declared(
        digest=place.digest(item.kind, item.name),
        project=place.project,
        broker=place.broker,
        vhost=place.vhost,
        kind=item.kind,
        name=item.name,
        role=declaration.role.value if isinstance(declaration, QueueDeclaration) else "",
        home=homes.get(item.name, "") if item.kind == "queue" else "",
        arguments={} if isinstance(declaration, BindingDeclaration) else _plain(declaration.arguments),
        bindings=bindings,
        first_at=now,
        last_at=now,
        version=__version__,
    )


def _plain(arguments: Mapping[str, object]) -> object:
    """Return arguments as JSON values."""
    return json.loads(json.dumps(dict(arguments), default=str))


def _write(alias: str, known: Mapping[str, Declared], rows: Sequence[Declared]) -> None:
    for row in rows:
        before = known.get(row.digest)
        if before is not None:
            row.pk, row.first_at = before.pk, before.first_at
    fields = ["role", "home", "arguments", "bindings", "last_at", "version"]
    with transaction.atomic(using=alias):
        objects = Declared.objects.using(alias)
        objects.bulk_update([row for row in rows if row.pk], fields, batch_size=100)
        objects.bulk_create([row for row in rows if not row.pk], batch_size=100, ignore_conflicts=True)
