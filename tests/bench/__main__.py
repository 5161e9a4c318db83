"""`python -m tests.bench [--quick] [--only consume,publish,retry,idle] [--rounds N]`"""

import argparse
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.bench import report, trials
from tests.bench.queues import prepared
from tests.bench.suites import AT_REST, NAMES, SUITES, Contender, Suite
from tests.tooling.node import Node
from tests.tooling.services import Services, Unavailable

ROUNDS, QUICK_ROUNDS, QUICK_SHARE = 5, 3, 4
NO_BROKER = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return 0 whatever the numbers say: a benchmark is not a test."""
    asked = _parser().parse_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rmq-bench-") as folder:
        services = Services(folder=Path(folder), owner=os.getpid())
        try:
            node = services.private()
        except Unavailable as lack:
            print(lack, file=sys.stderr)
            return NO_BROKER
        try:
            print(f"RabbitMQ {node.version}, Python {sys.version.split()[0]}; ratios are to the first of each table")
            findings = _measure(node, asked)
        finally:
            node.remove()
    report.summary(findings)
    print(f"{time.monotonic() - began:.0f} s")
    return 0


def _measure(node: Node, asked: argparse.Namespace) -> list[report.Finding]:
    findings: list[report.Finding] = []
    for suite in SUITES:
        if suite.name in asked.only:
            task = suite.task
            if asked.quick:
                task = replace(task, messages=task.messages // QUICK_SHARE, skip=task.skip // QUICK_SHARE)
            sized = replace(suite, task=task)
            rounds = [_round(node, sized) for _ in range(asked.rounds or (QUICK_ROUNDS if asked.quick else ROUNDS))]
            findings += report.timed(sized, rounds)
    if AT_REST.name in asked.only:
        rounds = [_round(node, AT_REST) for _ in range(1 if asked.quick else 3)]
        findings += report.at_rest(AT_REST, rounds)
    return findings


def _round(node: Node, suite: Suite) -> report.Round:
    """Each contender once."""
    return {contender.name: _trial(node, suite, contender) for contender in suite.contenders}


def _trial(node: Node, suite: Suite, contender: Contender) -> trials.Result:
    task = replace(
        suite.task,
        url=node.url(),
        queue=f"bench.{secrets.token_hex(4)}",
        threads=contender.threads,
        window=contender.window,
    )
    with prepared(task, bare_loop=contender.bare_loop, filled=suite.filled):
        return (trials.at_rest if suite is AT_REST else trials.timed)(contender.module, task)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="How fast, beside bare pika.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds of fewer messages, for a first look")
    parser.add_argument("--rounds", type=int, help=f"how often each contender runs (default: {ROUNDS})")
    parser.add_argument("--only", type=_names, default=NAMES, help=f"some of {','.join(NAMES)}")
    return parser


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is not measured; there are {', '.join(NAMES)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
