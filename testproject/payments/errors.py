"""The failures of a payment; handlers.py says which of them are retried."""


class AccountClosed(Exception):
    def __init__(self, number: str) -> None:
        self.number = number
        super().__init__(f"account {number} is closed")


class AboveLimit(Exception):
    def __init__(self, amount: object, limit: object) -> None:
        self.amount = amount
        self.limit = limit
        super().__init__(f"{amount} is above the limit of {limit}")


class NotCovered(Exception):
    def __init__(self, number: str, amount: object) -> None:
        self.number = number
        self.amount = amount
        super().__init__(f"account {number} does not cover {amount}")


class UnknownPair(Exception):
    """No bank quotes this currency pair."""


class GatewayDown(Exception):
    """The other bank does not answer."""


class Refused(Exception):
    """The other bank refuses the payment; a retry would be refused too."""


class RateLimited(Exception):
    """The other bank is overloaded, and says how long to wait."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"busy, come back in {seconds:g} s")
