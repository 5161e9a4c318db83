"""Whatever clients do: a message is in one place, was taken care of, or was dropped for a reason that is counted."""

from tests.embedded.clients import THOROUGH, Clients


class Clients40(Clients):
    version = "4.0"


TestConservation43 = Clients.TestCase
TestConservation40 = Clients40.TestCase
TestConservation43.settings = TestConservation40.settings = THOROUGH
