"""`python -m tests.chaos [--seed N] [--minutes M] [--short] [--only …] [--nemeses …]`"""

import argparse
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from tests.chaos import postgres, report
from tests.chaos.lanes import ALL
from tests.chaos.nemeses import ONE_NODE
from tests.chaos.parts import PARTS, Order
from tests.chaos.storm import timed
from tests.tooling.services import Unavailable

LONG_PARTS, SHORT_PARTS = ("storm", "cluster"), ("storm",)
SHARES = {"storm": 0.75, "cluster": 0.25}
FOUND, UNABLE = 1, 2
LONG, SHORT = 15.0, 3.0
PAYMENTS = 200_000
LANES = tuple(lane.name for lane in ALL)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if nothing was found, 1 if something was, 2 if there is no broker to do it to."""
    asked = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(UNABLE))
    seed = asked.seed if asked.seed is not None else secrets.randbelow(1_000_000)
    if postgres.lack():
        print(postgres.lack(), file=sys.stderr)
        return UNABLE
    if asked.lanes:
        os.environ["CHAOS_LANES"] = ",".join(asked.lanes)
    report.say(f"seed {seed}")
    with timed("in all"):
        codes = run_all(asked, seed)
    found = {0: "nothing was found", FOUND: "FOUND, see BROKEN above"}
    code = abs(max(codes, key=abs))
    report.say(f"seed {seed}: {found.get(code, 'it could not be run to its end')}")
    return code


def run_all(asked: argparse.Namespace, seed: int) -> list[int]:
    """Each part on each version; what time is left is shared by those that are to come."""
    minutes = asked.minutes or (SHORT if asked.short else LONG)
    versions = [name for name in os.environ.get("RMQ_TEST_BROKERS", "").split(",") if name] or [""]
    parts = asked.only or (SHORT_PARTS if asked.short else LONG_PARTS)
    if len(versions) * len(parts) == 1:
        return [run_one(asked, parts[0], seed, minutes)]
    codes = []
    for version in versions:
        ends = time.monotonic() + minutes * 60
        for place, name in enumerate(parts):
            shares = [SHARES.get(one, 1.0) for one in parts[place:]]
            left = max(1.0, (ends - time.monotonic()) / 60)
            codes.append(in_a_process(name, seed, version, left * shares[0] / sum(shares)))
    return codes


def run_one(asked: argparse.Namespace, name: str, seed: int, minutes: float) -> int:
    """One part, in this process: Django is set up once, for one broker and one database."""
    order = Order(
        seed=seed,
        version=os.environ.get("RMQ_TEST_BROKERS") or None,
        minutes=minutes,
        rate=asked.rate,
        plant=asked.plant,
        nemeses=asked.nemeses or (),
        payments=asked.payments,
    )
    try:
        return 0 if PARTS[name](order) else FOUND
    except Unavailable as lack:
        print(lack, file=sys.stderr)
        return UNABLE


def in_a_process(name: str, seed: int, version: str, minutes: float) -> int:
    """One part of several; the later words win over those that we were given."""
    words = ["--only", name, "--seed", str(seed), "--minutes", f"{minutes:.2f}"]
    command = ["setpriv", "--pdeathsig", "TERM", sys.executable, "-m", "tests.chaos", *sys.argv[1:], *words]
    env = {**os.environ, "RMQ_TEST_BROKERS": version}
    return subprocess.run(command, env=env, check=False).returncode


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.chaos", description="Kill everything, and count.")
    made.add_argument("--seed", type=int, help="the same load and the same nemeses as in another run")
    made.add_argument("--minutes", type=float, help=f"about how long it takes (default: {LONG:g})")
    made.add_argument("--short", action="store_true", help=f"the form for every change, {SHORT:g} minutes")
    made.add_argument(
        "--only", type=words(tuple(PARTS)), help=f"some of {','.join(PARTS)} (default: {','.join(LONG_PARTS)})"
    )
    made.add_argument("--nemeses", type=words(tuple(ONE_NODE)), help=f"some of {','.join(ONE_NODE)}")
    made.add_argument("--lanes", type=words(LANES), help=f"some of {','.join(LANES)}")
    made.add_argument("--rate", type=float, default=4000, help="messages a second of the flood, at most")
    made.add_argument("--plant", default="", help="bugs to plant, to see them caught: ack_first,not_once")
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
    with suppress(KeyboardInterrupt):
        sys.exit(main())
