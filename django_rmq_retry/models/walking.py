"""Over many rows in their order, a part at a time, each from where the last one ended."""

from datetime import datetime

from django.db.models import Q


def behind(column: str, at: datetime, tie: str, last: object) -> Q:
    """The rows after the last one of a part, where these are ordered by ``column`` and then by ``tie``."""
    # The first condition says nothing more, but lets every database begin at the right place of its index.
    return Q(**{f"{column}__gte": at}) & (Q(**{f"{column}__gt": at}) | Q(**{f"{tie}__gt": last}))
