"""Messages behind a running handler of their key count towards the prefetch limit."""

from pathlib import Path

import pytest

from tests.ordering.ledger import Ledger
from tests.tooling.marks import nightly_on_sqlite
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.database, pytest.mark.slow]
PREFETCH = 4


def hold(ledger: Ledger, gate: Path, *, behind: int) -> None:
    """Begin a posting of account A that does not end before the gate opens, with others of A behind it."""
    ledger.publish("A", 1, holds=str(gate))
    ledger.publish("A", *range(2, 2 + behind))
    ledger.publish("B", 1)
    wait_until(lambda: ledger.seen("A") == [("begin", 1)], what="the handler runs")


def test_a_burst_of_a_slow_key_below_the_prefetch_limit_delays_no_other_key(ledger: Ledger, tmp_path: Path) -> None:
    with ledger.consumer("--prefetch", str(PREFETCH)):
        hold(ledger, tmp_path / "gate", behind=PREFETCH - 2)

        ledger.posts("B", 1)

        assert ledger.seen("A") == [("begin", 1)]


@nightly_on_sqlite
def test_a_burst_of_a_slow_key_that_fills_the_prefetch_limit_delays_the_other_keys(
    ledger: Ledger, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with ledger.consumer("--prefetch", str(PREFETCH)):
        hold(ledger, gate, behind=PREFETCH - 1)

        wait_until(lambda: ledger.counts() == (1, PREFETCH), what="the broker delivers no more")
        assert ledger.seen("B") == []

        gate.touch()
        ledger.posts("B", 1)
        ledger.posts("A", *range(1, 1 + PREFETCH))
    assert ledger.overtaken("A") == []
