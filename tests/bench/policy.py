"""The policy of the handler under measurement: the ladder with one step."""

from django_rmq_retry import Fixed, RetryThenPark
from tests.bench.task import RETRY_DELAY

POLICY = RetryThenPark(attempts=5, backoff=Fixed(RETRY_DELAY))
