"""What can be wrong with a payment; which of it a retry may mend is said in handlers.py."""


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
    """Currencies that nobody quotes."""


class GatewayDown(Exception):
    """The other bank does not answer."""


class Refused(Exception):
    """The other bank said no, and will say it again."""


class RateLimited(Exception):
    """The other bank has too much to do, and says when to come back."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"busy, come back in {seconds:g} s")
