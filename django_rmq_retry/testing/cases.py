"""For unittest's and Django's test cases."""

import unittest
from collections.abc import Mapping
from typing import Any, ClassVar

from django_rmq_retry.testing.kit import RmqTest


class RmqTestMixin(unittest.TestCase):
    """Each test has its kit: ``class ChargeTest(RmqTestMixin, TestCase)``, then ``self.rmq.drain()``."""

    rmq: RmqTest
    rmq_options: ClassVar[Mapping[str, Any]] = {}
    """What ``RmqTest`` is to be made with, as ``{"seed": 7}``."""

    def setUp(self) -> None:
        super().setUp()
        self.rmq = self.enterContext(RmqTest(**self.rmq_options))
