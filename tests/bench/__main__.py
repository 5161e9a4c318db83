"""`python -m tests.bench [--quick] [--only consume,…,million,incident] [--rounds N]`; ``--help`` names them all."""

import argparse
import json
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import django

from tests.bench import report, trials, turns
from tests.bench.asyncs import NAME as ASYNCS
from tests.bench.asyncs import asyncs, side_by_side
from tests.bench.batches import batches
from tests.bench.embedding import embedded
from tests.bench.million.running import filled
from tests.bench.million.shapes import INCIDENT, MILLION
from tests.bench.onces import onces
from tests.bench.orders import orders
from tests.bench.outboxes import outboxes
from tests.bench.parking import parking
from tests.bench.queues import prepared
from tests.bench.scrapes import NAME as SCRAPES
from tests.bench.scrapes import scrapes
from tests.bench.suites import AT_REST, NAMES, SUITES, Contender, Suite
from tests.bench.tasks import NAME as TASKS
from tests.bench.tasks import tasks
from tests.bench.types import NAME as TYPES
from tests.bench.types import types
from tests.bench.waiting import waiting
from tests.tooling.filled import own_database
from tests.tooling.node import Node
from tests.tooling.services import Services, Unavailable

ROUNDS, QUICK_ROUNDS, QUICK_SHARE = 5, 3, 4
NO_BROKER = 2
EMBEDDED, WAITING = "embedded", 100_000
PARK = "park"
FILLED = {"million": MILLION, "incident": INCIDENT}
"""These suites need up to three gigabytes of disk and no broker, so they run only if they are named."""
KNOWN = (*NAMES, *FILLED)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 0 even if targets are missed, because a benchmark is not a test."""
    asked = _parser().parse_args(arguments)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    began = time.monotonic()
    findings: list[report.Finding] = []
    if set(asked.only) - FILLED.keys():
        found = _with_a_broker(asked)
        if found is None:
            return NO_BROKER
        findings += found
    for name, shape in FILLED.items():
        if name in asked.only:
            findings += filled(replace(shape, messages=shape.messages // (QUICK_SHARE if asked.quick else 1)))
    report.summary(findings)
    print(f"{time.monotonic() - began:.0f} s")
    return 0


def _with_a_broker(asked: argparse.Namespace) -> list[report.Finding] | None:
    """Measure on a private node; return None if no broker can be started."""
    with tempfile.TemporaryDirectory(prefix="rmq-bench-") as folder:
        services = Services(folder=Path(folder), owner=os.getpid())
        try:
            node = services.private()
        except Unavailable as lack:
            print(lack, file=sys.stderr)
            return None
        try:
            print(
                f"RabbitMQ {node.version}, Python {sys.version.split()[0]}; ratios are to the first row of each table"
            )
            return _measure(node, asked)
        finally:
            node.remove()


def _measure(node: Node, asked: argparse.Namespace) -> list[report.Finding]:
    findings: list[report.Finding] = []
    for suite in (*SUITES, *onces(), *batches(), *orders(), *outboxes(), *asyncs()):
        if suite.name in asked.only:
            task = suite.task
            if asked.quick:
                task = replace(task, messages=task.messages // QUICK_SHARE, skip=task.skip // QUICK_SHARE)
            sized = replace(suite, task=task)
            number = asked.rounds or (QUICK_ROUNDS if asked.quick else ROUNDS)
            findings += report.timed(sized, _rounds(node, sized, number))
    if PARK in asked.only:
        rounds_asked = asked.rounds or (1 if asked.quick else 3)
        findings += parking(node, rounds=rounds_asked, share=QUICK_SHARE if asked.quick else 1)
    if SCRAPES in asked.only:
        findings += scrapes(node, share=QUICK_SHARE if asked.quick else 1)
    if ASYNCS in asked.only:
        findings += side_by_side(node)
    findings += _without_a_broker(asked)
    if EMBEDDED in asked.only:
        findings += waiting(WAITING // (QUICK_SHARE if asked.quick else 1))
    if AT_REST.name in asked.only:
        rounds = [_round(node, AT_REST) for _ in range(1 if asked.quick else 3)]
        findings += report.at_rest(AT_REST, rounds)
    return findings


def _without_a_broker(asked: argparse.Namespace) -> list[report.Finding]:
    parts = [part for name, part in ((TYPES, types), (TASKS, tasks)) if name in asked.only]
    return [finding for part in parts for finding in part(share=QUICK_SHARE if asked.quick else 1)]


def _rounds(node: Node, suite: Suite, number: int) -> list[report.Round]:
    if suite.turns:
        return turns.rounds(node, suite, number)
    return [_round(node, suite, backwards=bool(turn % 2)) for turn in range(number)]


def _round(node: Node, suite: Suite, *, backwards: bool = False) -> report.Round:
    """Run each contender once. Every second round runs backwards, which evens out the effect of the order."""
    order = suite.contenders[::-1] if backwards else suite.contenders
    return {contender.name: _trial(node, suite, contender) for contender in order}


def _trial(node: Node, suite: Suite, contender: Contender) -> trials.Result:
    with _broker(node, contender) as url, _database(contender) as database:
        return _on(url, suite, contender, database)


@contextmanager
def _broker(node: Node, contender: Contender) -> Iterator[str]:
    """Return the URL of the broker that a contender uses."""
    if contender.broker == "rabbitmq":
        yield node.url()
    else:
        with embedded(durable=contender.broker == "file") as broker:
            yield broker.url


@contextmanager
def _database(contender: Contender) -> Iterator[str]:
    """Create a fresh database for a contender that records attempts."""
    if not contender.database:
        yield ""
        return
    with (
        tempfile.TemporaryDirectory(prefix="rmq-bench-") as folder,
        own_database(Path(folder), kind=contender.database) as own,
    ):
        yield json.dumps(own.settings)


def _on(url: str, suite: Suite, contender: Contender, database: str) -> trials.Result:
    task = contender.task(suite.task, url=url, queue=f"bench.{secrets.token_hex(4)}", database=database)
    with prepared(task, bare_loop=contender.bare_loop, filled=suite.filled):
        return (trials.at_rest if suite is AT_REST else trials.timed)(contender.module, task)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description="Measure the rate, compared with bare pika."
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds with fewer messages")
    parser.add_argument(
        "--rounds", type=int, help=f"rounds, in each of which each contender runs once (default: {ROUNDS})"
    )
    parser.add_argument(
        "--only", type=_names, default=NAMES, help=f"some of {','.join(KNOWN)} (default: all but the last two)"
    )
    return parser


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in KNOWN]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is unknown; choose from {', '.join(KNOWN)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
