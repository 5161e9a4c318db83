"""`python -m tests.chaos [--seed N] [--minutes M] [--short] [--only …] [--nemeses …]`"""

import argparse
import math
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.chaos import postgres, report
from tests.chaos.lanes import ALL
from tests.chaos.nemeses import ONE_NODE
from tests.chaos.parts import PARTS, Order, lack
from tests.chaos.storm import timed
from tests.tooling.services import Unavailable

EVERY = ("storm", "mariadb", "sweep", "cluster")
"""The parts that run on a version that is named on the command line."""
LONG_PARTS = (("storm", ""), ("mariadb", ""), ("sweep", ""), ("storm", "4.0"), ("storm", "4.3"), ("cluster", ""))
SHORT_PARTS = (("storm", ""),)
IN_TURN = (("sweep", ""), ("mariadb", ""), ("storm", "4.0"), ("storm", "4.3"))
"""The short form runs one of these, chosen by the seed."""
SHARES = {("storm", ""): 0.36, ("mariadb", ""): 0.12, ("sweep", ""): 0.12, ("cluster", ""): 0.2}
SHARE = 0.1
Chosen = tuple[str, str]
"""A part and the RabbitMQ version; an empty version stands for the first one installed."""
FOUND, UNABLE, TOO_FEW = 1, 2, 3
MILLION = 1_000_000
LONG, SHORT = 15.0, 3.0
PAYMENTS = 200_000
LANES = tuple(lane.name for lane in ALL)
PLANTS = (
    *("ack_first", "not_once", "no_breaker", "deaf", "no_rate", "host_clock"),
    *("task_acked", "task_at_once", "no_results"),
    *("batch_counted", "batch_rolled"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if all invariants hold, 1 if one is violated, 2 if a part cannot run, 3 for too few messages."""
    asked = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(UNABLE))
    seed = asked.seed if asked.seed is not None else secrets.randbelow(1_000_000)
    if postgres.lack():
        print(postgres.lack(), file=sys.stderr)
        return UNABLE
    if asked.lanes:
        os.environ["CHAOS_LANES"] = ",".join(asked.lanes)
    os.environ["CHAOS_PLACES"] = asked.places
    report.say(f"seed {seed}")
    with timed("in all"), tempfile.TemporaryDirectory(prefix="rmq-chaos-totals-") as folder:
        # Each part runs in its own process and appends its totals to this file.
        totals = Path(os.environ.setdefault("CHAOS_TOTALS", str(Path(folder, "totals"))))
        try:
            codes = run_all(asked, seed)
        except KeyboardInterrupt:
            codes = [UNABLE]
        confirmed = summed(totals) if totals.parent == Path(folder) else 0
    code = worst(codes)
    least = asked.at_least if asked.at_least is not None else 0 if restricted(asked) else MILLION
    if code == 0 and confirmed < least:
        code = TOO_FEW
    report.say(f"seed {seed}: {SAID.get(code, SAID[UNABLE]).format(least=least)}")
    return code


SAID = {
    0: "no invariant was violated",
    FOUND: "invariants were violated, see BROKEN above",
    UNABLE: "a part could not be run to its end",
    TOO_FEW: "no invariant was violated, but fewer than {least:,} messages were confirmed: the machine was too slow",
}


def worst(codes: Sequence[int]) -> int:
    """Return the worst exit code: violations first, then parts that could not run or were ended by a signal."""
    return FOUND if FOUND in codes else UNABLE if any(codes) else 0


def restricted(asked: argparse.Namespace) -> bool:
    """Return True if less than the long form was requested."""
    restrictions = (asked.short, asked.minutes, asked.only, asked.nemeses, asked.lanes, asked.plant, asked.places)
    return any(restrictions)


def summed(totals: Path) -> int:
    """Print the summary lines of all parts again; return the number of confirmed messages."""
    lines = totals.read_text().splitlines() if totals.exists() else []
    for line in lines if len(lines) > 1 else ():
        report.say(line.partition(" ")[2])
    confirmed = sum(int(line.partition(" ")[0]) for line in lines)
    if lines:
        report.say(f"{confirmed:,} messages were confirmed")
    return confirmed


def run_all(asked: argparse.Namespace, seed: int) -> list[int]:
    """Run each part on each version; the remaining time is divided among the remaining parts."""
    minutes = asked.minutes or (SHORT if asked.short else LONG)
    turns = chosen(asked, seed)
    if [len(turn) for turn in turns] == [1]:
        name, version = turns[0][0]
        # The soak ends when all payments are booked.
        bounded = math.inf if name == "soak" and not asked.minutes else minutes
        return [run_one(asked, name, seed, bounded, version)]
    codes = []
    for turn in turns:
        ends = time.monotonic() + minutes * 60
        for place, (name, version) in enumerate(turn):
            shares = [1.0 if asked.short else SHARES.get(one, SHARE) for one in turn[place:]]
            left = max(1.0, (ends - time.monotonic()) / 60)
            codes.append(in_a_process(name, seed, version, left * shares[0] / sum(shares)))
    return codes


def chosen(asked: argparse.Namespace, seed: int) -> list[list[Chosen]]:
    """Return the parts to run: one list for each requested version, else a single list. Each list gets the full time.

    Parts that were not requested by name and cannot run on this machine are skipped, with a line in the report.
    """
    named = asked.broker or os.environ.get("RMQ_TEST_BROKERS", "")
    versions = [name for name in named.split(",") if name]
    if asked.only or versions:
        parts = asked.only or (("storm",) if asked.short else EVERY)
        return [[(name, version) for name in parts] for version in versions or [""]]
    able = []
    for one in (*SHORT_PARTS, *IN_TURN) if asked.short else LONG_PARTS:
        why = lack(*one)
        if why:
            report.say(f"NOT RUN: {one[0]}{' on RabbitMQ ' + one[1] if one[1] else ''}. {why}")
        else:
            able.append(one)
    if asked.short:
        others = [one for one in able if one in IN_TURN]
        able = [*(one for one in able if one in SHORT_PARTS), *(others[seed % len(others) :][:1] if others else [])]
    return [able]


def run_one(asked: argparse.Namespace, name: str, seed: int, minutes: float, version: str) -> int:
    """Run one part in this process, because Django is set up once, for one broker and one database."""
    why = lack(name, version)
    if why:
        print(why, file=sys.stderr)
        return UNABLE
    order = Order(
        seed=seed,
        version=version or None,
        minutes=minutes,
        rate=asked.rate,
        plant=asked.plant,
        nemeses=asked.nemeses or (),
        payments=asked.payments,
    )
    try:
        return 0 if PARTS[name](order) else FOUND
    except Unavailable as unavailable:
        print(unavailable, file=sys.stderr)
        return UNABLE


def in_a_process(name: str, seed: int, version: str, minutes: float) -> int:
    """Run one of several parts in its own process; the appended options override the given ones."""
    words = ["--only", name, "--seed", str(seed), "--minutes", f"{minutes:.2f}", "--broker", version]
    words += ["--at-least", "0"]
    command = ["setpriv", "--pdeathsig", "TERM", sys.executable, "-m", "tests.chaos", *sys.argv[1:], *words]
    env = {**os.environ, "RMQ_TEST_BROKERS": version}
    return subprocess.run(command, env=env, check=False).returncode


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.chaos", description="Inject faults, and count the messages.")
    made.add_argument("--seed", type=int, help="repeat the load and the nemeses of an earlier run")
    made.add_argument(
        "--minutes",
        type=float,
        help=f"about how long the run takes (default: {LONG:g}; the soak: until it has finished)",
    )
    made.add_argument("--short", action="store_true", help=f"the short form, for every change: {SHORT:g} minutes")
    made.add_argument("--only", type=words(tuple(PARTS)), help=f"some of {','.join(PARTS)} (default: all but the soak)")
    made.add_argument(
        "--broker", metavar="VERSIONS", help="RabbitMQ versions, such as 4.0 or 3.10,4.0,4.3; see `make brokers`"
    )
    made.add_argument("--nemeses", type=words(tuple(ONE_NODE)), help=f"some of {','.join(ONE_NODE)}")
    made.add_argument("--lanes", type=words(LANES), help=f"some of {','.join(LANES)}")
    made.add_argument(
        "--places",
        default="",
        help="in the sweep, only functions whose file or name contains one of these words, each once before any again",
    )
    made.add_argument("--rate", type=float, default=5000, help="the most messages a second of the lane flood")
    made.add_argument("--plant", default="", help=f"planted bugs, to check that they are found: {','.join(PLANTS)}")
    made.add_argument(
        "--at-least", type=int, metavar="N", help=f"fail with fewer messages (default: {MILLION:,} for the long form)"
    )
    made.add_argument("--payments", type=int, default=PAYMENTS, help="the number of payments that the soak books")
    return made


def words(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a parser for a comma-separated list of known words."""

    def some(text: str) -> tuple[str, ...]:
        found = tuple(text.split(","))
        unknown = [word for word in found if word not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is unknown; choose from {', '.join(known)}")
        return found

    return some


if __name__ == "__main__":
    sys.exit(main())
