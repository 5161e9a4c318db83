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
"""The parts that a version gets which was asked for by name."""
LONG_PARTS = (("storm", ""), ("mariadb", ""), ("sweep", ""), ("storm", "4.0"), ("storm", "4.3"), ("cluster", ""))
SHORT_PARTS = (("storm", ""),)
IN_TURN = (("sweep", ""), ("mariadb", ""), ("storm", "4.0"), ("storm", "4.3"))
"""Of these the short form has one, by its seed."""
SHARES = {("storm", ""): 0.36, ("mariadb", ""): 0.12, ("sweep", ""): 0.12, ("cluster", ""): 0.2}
SHARE = 0.1
Chosen = tuple[str, str]
"""A part, and the version of RabbitMQ; without one the first that there is."""
FOUND, UNABLE, TOO_FEW = 1, 2, 3
MILLION = 1_000_000
LONG, SHORT = 15.0, 3.0
PAYMENTS = 200_000
LANES = tuple(lane.name for lane in ALL)
PLANTS = ("ack_first", "not_once", "no_breaker", "deaf", "no_rate", "host_clock")


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if nothing was found, 1 if something was, 2 without a broker to do it to, 3 if too few messages were sent."""
    asked = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(UNABLE))
    seed = asked.seed if asked.seed is not None else secrets.randbelow(1_000_000)
    if postgres.lack():
        print(postgres.lack(), file=sys.stderr)
        return UNABLE
    if asked.lanes:
        os.environ["CHAOS_LANES"] = ",".join(asked.lanes)
    report.say(f"seed {seed}")
    with timed("in all"), tempfile.TemporaryDirectory(prefix="rmq-chaos-totals-") as folder:
        # One that runs a part of several writes where the one that started it looks.
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
    0: "nothing was found",
    FOUND: "FOUND, see BROKEN above",
    UNABLE: "it could not be run to its end",
    TOO_FEW: "nothing was found, but fewer than {least:,} messages went through: the machine was too busy or too slow",
}


def worst(codes: Sequence[int]) -> int:
    """What was found counts most, then what could not be run; a signal is such an end as well."""
    return FOUND if FOUND in codes else UNABLE if any(codes) else 0


def restricted(asked: argparse.Namespace) -> bool:
    """Whether it is less than the long form."""
    return bool(asked.short or asked.minutes or asked.only or asked.nemeses or asked.lanes or asked.plant)


def summed(totals: Path) -> int:
    """What all parts have said, once more and together; how many were confirmed."""
    lines = totals.read_text().splitlines() if totals.exists() else []
    for line in lines if len(lines) > 1 else ():
        report.say(line.partition(" ")[2])
    confirmed = sum(int(line.partition(" ")[0]) for line in lines)
    if lines:
        report.say(f"{confirmed:,} messages were confirmed")
    return confirmed


def run_all(asked: argparse.Namespace, seed: int) -> list[int]:
    """Each part on each version; what time is left is shared by those that are to come."""
    minutes = asked.minutes or (SHORT if asked.short else LONG)
    turns = chosen(asked, seed)
    if [len(turn) for turn in turns] == [1]:
        name, version = turns[0][0]
        # The soak is over when its payments are booked.
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
    """What is run, in turns of one time each: a turn for each version that was asked for, else a single one.

    Of the parts that nobody asked for by name, those that this machine cannot run are left out, and said.
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
    """One part, in this process: Django is set up once, for one broker and one database."""
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
    """One part of several; the later words win over those that we were given."""
    words = ["--only", name, "--seed", str(seed), "--minutes", f"{minutes:.2f}", "--broker", version]
    words += ["--at-least", "0"]
    command = ["setpriv", "--pdeathsig", "TERM", sys.executable, "-m", "tests.chaos", *sys.argv[1:], *words]
    env = {**os.environ, "RMQ_TEST_BROKERS": version}
    return subprocess.run(command, env=env, check=False).returncode


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.chaos", description="Kill everything, and count.")
    made.add_argument("--seed", type=int, help="the same load and the same nemeses as in another run")
    made.add_argument(
        "--minutes", type=float, help=f"about how long it takes (default: {LONG:g}; the soak: as long as it takes)"
    )
    made.add_argument("--short", action="store_true", help=f"the form for every change, {SHORT:g} minutes")
    made.add_argument("--only", type=words(tuple(PARTS)), help=f"some of {','.join(PARTS)} (default: all but the soak)")
    made.add_argument(
        "--broker", metavar="VERSIONS", help="RabbitMQ such as 4.0, or 3.10,4.0,4.3 one after the other: `make brokers`"
    )
    made.add_argument("--nemeses", type=words(tuple(ONE_NODE)), help=f"some of {','.join(ONE_NODE)}")
    made.add_argument("--lanes", type=words(LANES), help=f"some of {','.join(LANES)}")
    made.add_argument("--rate", type=float, default=5000, help="messages a second of the flood, at most")
    made.add_argument("--plant", default="", help=f"bugs to plant, to see them caught: {','.join(PLANTS)}")
    made.add_argument("--at-least", type=int, metavar="N", help=f"messages (default: {MILLION:,} for the long form)")
    made.add_argument("--payments", type=int, default=PAYMENTS, help="how many the soak books")
    return made


def words(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """A list of some of the known ones."""

    def some(text: str) -> tuple[str, ...]:
        found = tuple(text.split(","))
        unknown = [word for word in found if word not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is not known; there are {', '.join(known)}")
        return found

    return some


if __name__ == "__main__":
    sys.exit(main())
