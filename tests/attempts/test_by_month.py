"""The attempts in partitions of a month, by the statements of docs/recipes/partitions.md."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections

from django_rmq_retry.attempts.buffer import write
from django_rmq_retry.attempts.rows import RowBuilder, draft_of
from django_rmq_retry.models import Attempt
from django_rmq_retry.parked import retention
from tests.attempts.attempted import failure
from tests.handlers.factories import delivery
from tests.tooling import databases
from tests.tooling.filled import ALIAS
from tests.tooling.owned import routed
from tests.tooling.pages import blocks, page

pytestmark = [
    pytest.mark.database,
    pytest.mark.skipif(databases.chosen() != databases.POSTGRESQL, reason="the statements are PostgreSQL's"),
]
BUILDER = RowBuilder(deploy="a1b2c3", host="worker-3")
MONTHS = {"2026_11": datetime(2026, 11, 10, tzinfo=UTC), "2026_12": datetime(2026, 12, 10, tzinfo=UTC)}
LATER = datetime(2028, 2, 1, tzinfo=UTC)


SPLIT = page("partitions.md").with_name("partitions.sql").read_text()


def attempt(number: int, at: datetime) -> None:
    row = BUILDER.row(draft_of(failure(delivery(message_id=f"m-{number}")), None))
    write([row._replace(started_at=at)])


def tables() -> dict[str, int]:
    """The number of rows in each part."""
    with connections[ALIAS].cursor() as cursor:
        cursor.execute("SELECT tableoid::regclass::text, count(*) FROM rmq_retry_attempt GROUP BY 1")
        return {name.removeprefix("rmq_retry_attempt_"): count for name, count in cursor.fetchall()}


def run(statements: str) -> None:
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(statements)


@pytest.mark.usefixtures("own_database")
def test_attempts_in_monthly_partitions_are_written_read_and_dropped(settings: Any) -> None:
    routed(settings)
    bring_over, next_month = (one.text for one in blocks(page("partitions.md")) if one.kind == "sql")
    attempt(1, MONTHS["2026_11"])
    before = Attempt.objects.get().pk

    run(SPLIT)
    attempt(2, MONTHS["2026_12"])
    attempt(3, LATER)
    run(bring_over)
    assert tables() == {"2026_11": 1, "2026_12": 1, "others": 1}
    assert sorted(Attempt.objects.values_list("message_id", flat=True)) == ["m-1", "m-2", "m-3"]
    assert len(set(Attempt.objects.values_list("pk", flat=True))) == 3
    assert Attempt.objects.get(message_id="m-1").pk == before

    run(next_month)
    attempt(4, MONTHS["2026_12"] + timedelta(days=31))
    assert tables() == {"2026_12": 1, "2027_01": 1, "others": 1}
    assert retention.delete_attempts(before=datetime(2027, 1, 1, tzinfo=UTC)) == 1
    assert tables() == {"2027_01": 1, "others": 1}


@pytest.mark.usefixtures("own_database")
def test_the_partitioned_table_has_the_indexes_of_the_plain_table() -> None:
    def indexes() -> set[str]:
        with connections[ALIAS].cursor() as cursor:
            cursor.execute("SELECT indexname FROM pg_indexes WHERE tablename = 'rmq_retry_attempt'")
            return {name for (name,) in cursor.fetchall() if "pkey" not in name}

    plain = indexes()
    run(SPLIT)

    assert indexes() == plain
    assert len(plain) == 5
