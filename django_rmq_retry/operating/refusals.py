"""What keeps an act from being done, in sentences for the one who wanted it. Nothing has happened then."""


class Refused(Exception):
    """Nothing was done; the text says why, and what to do."""


class NothingChosen(Refused):
    """No message is chosen, or none is left of those that were."""


class Outdated(Refused):
    """What somebody looked at is no longer so: a token is too old, or a record was changed meanwhile."""


class NotAllowed(Refused):
    """A permission is missing, or the project's own rules say no."""
