"""``make foreign``: the tests of pika, amqpstorm and node's amqplib against the embedded broker, or another one.

Django's tests of task backends run against the backend of this package; they delete the queues with the names in them.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.embedded.served import served
from tests.foreign.judging import EXPECTED, Outcomes, expected, problems
from tests.foreign.running import run
from tests.foreign.sources import Missing, home, unpacked
from tests.foreign.suites import SUITES, Suite

NAMES = tuple(suite.name for suite in SUITES)


def main() -> int:
    """Return 0 if all suites had the expected outcomes."""
    parser = argparse.ArgumentParser(prog="make foreign", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="suite", help=f"some of: {', '.join(NAMES)}")
    parser.add_argument("--on", type=port_of, metavar="URL", help="a RabbitMQ on 127.0.0.1, with guest and guest")
    parser.add_argument("--like", default="4.0", metavar="VERSION", help="the version of the embedded broker")
    asked = parser.parse_args()
    unknown = set(asked.suites) - set(NAMES)
    if unknown:
        parser.error(f"There is no suite {', '.join(sorted(unknown))}: take {', '.join(NAMES)}.")
    differences = expected(EXPECTED.read_text())
    wrong = 0
    for suite in SUITES:
        if not asked.suites or suite.name in asked.suites:
            known = {} if asked.on and not suite.of_backend else differences.get(suite.name, {})
            wrong += one(suite, known, port=asked.on, like=asked.like)
    print("All as expected." if not wrong else f"{wrong} not as expected.")
    return 1 if wrong else 0


def port_of(url: str) -> int:
    """Return the port of a URL that the suites can use."""
    parts = urlsplit(url)
    if parts.scheme != "amqp" or parts.hostname not in ("127.0.0.1", "localhost"):
        raise argparse.ArgumentTypeError(f"{url} is not amqp://guest:guest@127.0.0.1:PORT: the suites reach no other.")
    return parts.port or 5672


def one(suite: Suite, differences: dict[str, str], *, port: int | None, like: str) -> int:
    """Run one suite and print its figures; return the number of unexpected outcomes."""
    log = home() / f"{suite.name}.log"
    log.unlink(missing_ok=True)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            copy = unpacked(suite.source, folder)
            with broker(folder, port, like) as found:
                suite.prepare(copy, found)
                outcomes = run(suite, copy, found, log)
    except Missing as missing:
        print(f"{suite.name}: {missing}")
        return 1
    wrong = problems(outcomes, differences)
    print(figures(suite, outcomes, differences))
    for sentence in wrong:
        print(f"  {sentence}")
    if wrong:
        print(f"  The whole output is in {log}.")
    return len(wrong)


@contextmanager
def broker(folder: Path, port: int | None, like: str) -> Iterator[int]:
    """Yield the port of the requested broker; the embedded one uses a file."""
    if port is not None:
        yield port
        return
    with served(like, file=folder / "broker.sqlite3") as server:
        yield server.port


def figures(suite: Suite, outcomes: Outcomes, differences: dict[str, str]) -> str:
    awaited = sum(test in differences for test in outcomes.failed)
    return (
        f"{suite.name} {suite.source.version}: {len(outcomes.passed)} passed, {len(outcomes.failed)} failed, "
        f"{awaited} of them as expected, {len(outcomes.skipped)} skipped"
    )


if __name__ == "__main__":
    sys.exit(main())
