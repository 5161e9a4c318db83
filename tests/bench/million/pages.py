"""Admin pages over very many messages, for a user with all permissions and one with few."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from django_rmq_retry.models import ConsumerProcess, ParkedMessage
from django_rmq_retry.parked.key_text import MOST_KEYS_OF_LIST
from tests.admin import made
from tests.admin.budgets import ADMIN, budget_of
from tests.bench.million import tables
from tests.bench.million.shapes import Shape
from tests.bench.million.timing import USUAL_PACE, Timed, timed
from tests.bench.report import Finding, table

LIST = ADMIN + "parkedmessage/"
LOOKS = ("view_parkedmessage", "view_errorgroup", "view_requeuerun", "view_operatoraction", "view_livestatus")
MAY = (*LOOKS, "requeue", "bulk_requeue")
DEAD_CONSUMERS = 200
"""The processes of a crash loop, each with a message in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A page and its targets; without targets only the figure is printed. Its queries have their budget."""

    name: str
    address: str
    served: float | None = 60.0
    sql: float | None = None
    further: int = 0
    """The queries beside the budget: what is found here, but not on the tests' page, asks for more."""
    posted: Mapping[str, str] | None = None
    """The form that is posted to the address; the page that answers is measured with it."""

    @property
    def own(self) -> int | None:
        """The most queries; a form has no budget."""
        budget = None if self.posted else budget_of(self.address)
        return None if budget is None else budget + self.further

    def verdict(self, took: Timed) -> bool | None:
        """Return True if all targets are met."""
        wanted = ((self.served, took.usually), (self.own, took.own), (self.sql, took.slowest_usually))
        aims = [found <= aim for aim, found in wanted if aim is not None]
        return all(aims) if aims else None


def pages(shape: Shape) -> Iterator[Shown]:
    """Return all measured pages."""
    preview = f"{ADMIN}requeuerun/preview/?"
    if shape.parked == 1:
        yield from _whole(f"{preview}{'&'.join(f'group={group}' for group in range(1, shape.groups + 1))}")
    group, middle = tables.BIGGEST, ParkedMessage.objects.order_by("-pk").values_list("pk", flat=True)[1000]
    yield Shown(name="parked list", address=LIST)
    yield Shown(name="… of the biggest group", address=f"{LIST}?group={group}")
    yield Shown(name="… of a small group", address=f"{LIST}?group={shape.groups}")
    yield Shown(name="… of a queue", address=f"{LIST}?queue=ledger.main")
    yield Shown(name="… of a type", address=f"{LIST}?type=card.settle")
    yield Shown(name="… of a reason", address=f"{LIST}?reason=permanent+error")
    yield Shown(name="… requeued before", address=f"{LIST}?cycle_min=2")
    yield Shown(name="… of the last 24 hours", address=f"{LIST}?parked=24h")
    yield Shown(name="… processed", address=f"{LIST}?state=processed")
    yield Shown(name="… on hold", address=f"{LIST}?state=on_hold")
    yield Shown(name="… in all states", address=f"{LIST}?state=all")
    yield Shown(name="… page 3", address=f"{LIST}?p=3")
    yield Shown(name="… page 20", address=f"{LIST}?p=20")
    yield Shown(name="search, message id", address=f"{LIST}?q=9f3c-{middle}", sql=5.0)
    yield Shown(name="search, correlation id of 3", address=f"{LIST}?q=corr-{middle // 3}", sql=5.0)
    yield Shown(name="search, business key", address=f"{LIST}?q=PAY-{middle | 1}", sql=5.0)
    yield Shown(name="search, account of several", address=f"{LIST}?q=account:{middle // 10 * 5 % 70000}", sql=5.0)
    yield Shown(name="search, nothing", address=f"{LIST}?q=no-such-thing", sql=5.0)
    yield Shown(name="group list", address=f"{ADMIN}errorgroup/")
    yield Shown(name="… by words", address=f"{ADMIN}errorgroup/?q=gateway17")
    yield Shown(name="… by queue", address=f"{ADMIN}errorgroup/?by=queue", served=None)
    yield Shown(name="biggest group", address=f"{ADMIN}errorgroup/{group}/change/")
    yield Shown(name="message", address=f"{LIST}{middle}/change/")
    yield Shown(name="run of 10,000", address=f"{ADMIN}requeuerun/{tables.LARGE_RUN}/change/", further=3)
    yield Shown(name="run list", address=f"{ADMIN}requeuerun/")
    yield Shown(name="audit log", address=f"{ADMIN}operatoraction/")
    yield Shown(name="live status", address=f"{ADMIN}livestatus/", further=1)
    # Its key is looked up wherever messages may be, for who may see all of that.
    yield Shown(name="preview of one message", address=f"{preview}message={middle}", further=6)
    yield Shown(name="preview of the biggest group", address=f"{preview}group={group}", served=None, further=3)


def _whole(preview: str) -> Iterator[Shown]:
    """Return the pages on which an operator acts on all messages of an incident."""
    keys = "\n".join(f"PAY-{number}" for number in range(1, MOST_KEYS_OF_LIST + 1))
    yield Shown(name="preview of all", address=preview, served=300.0, further=3)
    yield Shown(name="10,000 pasted keys", address=f"{LIST}keys/", posted={"keys": keys}, served=1000.0)
    left_out = {"except": keys, "leave_out": "1"}
    yield Shown(name="10,000 keys left out", address=preview, posted=left_out, served=1000.0)


def in_crash_loop() -> Iterator[Shown]:
    """Return the pages that tell of consumers, after very many of them died; the others are measured before."""
    for place in range(DEAD_CONSUMERS - ConsumerProcess.objects.count()):
        lived: dict[str, Any] = {
            "seconds": 40 + 8 * place,
            "pid": place,
            "in_flight": [made.in_flight(message_id=f"9f3c-{place + 1}")],
        }
        began = timezone.now() - timedelta(seconds=46 + 8 * place)
        made.consumer(started_at=began, queues=["ledger.main"], **lived)
    yield Shown(name="consumers, 200 dead", address=f"{ADMIN}consumerprocess/", further=3)
    yield Shown(name="live status, 200 dead", address=f"{ADMIN}livestatus/", served=None, further=3)


def measure(shape: Shape) -> list[Finding]:
    """Request all pages in several rounds and print; return the findings for the targets."""
    rows: list[Sequence[str]] = [
        (
            *("page", "who", "at the usual pace", "server ms", "CPU ms", "by the clock"),
            *("queries", "with Django's", "slowest ms", "target", ""),
        )
    ]
    findings: list[Finding] = []
    slow: list[str] = []
    paces: list[float] = []
    people = [(who, _signed_in(person)) for who, person in _people()]
    rounds = [(who, client, pages(shape)) for who, client in people]
    if shape.parked == 1:
        rounds += [(who, client, in_crash_loop()) for who, client in people]
    for who, client, some in rounds:
        shown = list(some)
        for page, took in zip(shown, timed([_asking(client, page) for page in shown]), strict=True):
            met = page.verdict(took)
            rows.append(_row(page, who, took, met))
            paces.append(took.pace)
            if met is not None:
                took_all, slowest = f"{took.usually:.0f} ms", f"slowest {took.slowest_usually:.1f} ms"
                what = f"{page.name}, {who}: {took_all}, {took.own} queries, {slowest}"
                findings.append(Finding(what=what, met=met))
            if not met and took.slowest > 10:
                slow.append(f"{page.name}, {who}, {took.slowest:.0f} ms: {_short(took.sql)}")
    table(rows)
    said = f"{min(paces):.1f} to {max(paces):.1f} ms of CPU"
    print(f"\nA fixed calculation took {said} between the pages. Targets are those of a core on which it takes")
    print(
        f"{USUAL_PACE:g} ms, and the first column is a page's time there: only these compare with those of another run."
    )
    if slow:
        print("\nThe slowest query of each page above its target:", *slow, sep="\n")
    print(flush=True)
    return findings


def _signed_in(person: User) -> Client:
    client = Client()
    client.force_login(person)
    return client


def _people() -> Iterator[tuple[str, User]]:
    yield "may all", made.person("lead", superuser=True)
    yield "may little", made.person("support", *MAY)


def _asking(client: Client, page: Shown) -> Callable[[], Any]:
    """Return the address to measure; a page that first freezes a selection redirects to it."""
    address = page.address
    if "preview" in address:
        address = client.get(address).headers["Location"]
    form = page.posted
    ask = partial(client.get, address) if form is None else partial(client.post, address, form, follow=True)
    found = ask()
    if found.status_code not in (200, 302):
        raise AssertionError(f"{address}: {found.status_code}")
    return ask


def _row(page: Shown, who: str, took: Timed, met: bool | None) -> Sequence[str]:
    aims = ((page.served, "ms"), (page.own, "queries"), (page.sql, "ms SQL"))
    return (
        page.name,
        who,
        f"{took.usually:.1f}",
        f"{took.served:.1f}",
        f"{took.cpu:.1f}",
        f"{took.by_the_clock:.1f}",
        str(took.own),
        str(took.all),
        f"{took.slowest:.1f}",
        ", ".join(f"{aim:g} {unit}" for aim, unit in aims if aim is not None),
        "" if met is None else "met" if met else "not met",
    )


def _short(sql: str) -> str:
    """Shorten a query by its many columns."""
    return re.sub(r"^SELECT (.{60}).*? FROM ", r"SELECT \1… FROM ", sql)[:700]
