"""What was made of messages that a lost process had in its handlers."""

from datetime import timedelta

import pytest
from django.utils import timezone

from django_rmq_retry.attempts.since_then import SAME_START, attempts_with
from tests.admin import made

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def test_attempts_before_a_message_was_in_hand_are_not_read() -> None:
    """With 200 dead consumers, these took a sixth of the time of Live status."""
    begun = timezone.now()
    earlier, same = (made.tried_again("9f3c-7", at=begun, verdict="retry") for _ in range(2))
    for row, by in ((earlier, SAME_START + timedelta(seconds=1)), (same, SAME_START)):
        row.started_at = begun - by
        row.save()

    [found] = attempts_with({"9f3c-7"}, begun).values()

    assert [one.pk for one in found] == [same.pk]
