"""A handler that outlives the broker's consumer timeout: its ordering key keeps its order."""

from pathlib import Path

import pytest

from tests.ordering.ledger import Ledger
from tests.tooling.marks import NIGHTLY_ON_SQLITE
from tests.tooling.vhosts import Vhost, outlast
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.contract, pytest.mark.database, pytest.mark.slow, *NIGHTLY_ON_SQLITE]
MORE_THAN_THE_PREFETCH = range(2, 21)


@pytest.fixture
def vhost(impatient: object, private_broker: Vhost) -> Vhost:  # noqa: ARG001 - it shortens the timeout
    return private_broker


@pytest.mark.nightly
def test_no_message_overtakes_a_handler_that_outlives_the_consumer_timeout(
    ledger: Ledger, vhost: Vhost, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with ledger.consumer():
        ledger.subscribed(1)
        ledger.publish("A", 1, holds=str(gate))
        ledger.publish("A", *MORE_THAN_THE_PREFETCH)
        wait_until(lambda: ledger.seen("A") == [("begin", 1)], what="the handler runs")
        with ledger.consumer():
            for _ in range(3):
                outlast(vhost)
            gate.touch()
            ledger.posts("A", 1, *MORE_THAN_THE_PREFETCH)

    assert ledger.overtaken("A") == []
