"""How many queries a page of the admin may need: the tests check it on few messages, the bench on very many.

Django's own queries, for the session and the permissions, are not counted.
"""

import re

ADMIN = "/admin/rmq_retry/"
BUDGETS = {
    "parkedmessage/": 3,
    "parkedmessage/?group={group}": 4,
    "parkedmessage/?queue=payments.main&type=payment.transfer&state=all": 3,
    "parkedmessage/?reason=retries+exhausted&cycle_min=1": 3,
    "parkedmessage/?q={key}": 1,
    "parkedmessage/?q=shared": 5,
    "parkedmessage/?q=unknown": 15,
    "parkedmessage/newer/?queue=payments.main&since=2026-11-21T03:00:00Z&after=0": 2,
    "parkedmessage/{message}/change/": 11,
    "errorgroup/": 10,
    "errorgroup/?by=queue": 1,
    "errorgroup/{group}/change/": 19,
    "requeuerun/": 3,
    "requeuerun/{run}/change/": 9,
    "requeuerun/preview/?sel={named}": 21,
    "requeuerun/preview/?sel={filtered}": 20,
    "requeuerun/waiting/?queue=payments.main": 2,
    "operatoraction/": 3,
    "livestatus/": 23,
    "blockedkey/": 3,
    "outboxmessage/": 2,
    "outboxmessage/{row}/change/": 1,
    "queuecontrol/": 5,
    "consumerprocess/": 2,
    "approvalrequest/": 7,
    "approvalrequest/{request}/change/": 14,
}
"""The most queries of each page. A preview counts, looks for duplicates, for copies (with two more queries if messages
have siblings), for keys of discarded and for keys of processed messages, and has one more for each of its findings:
here are two, one for groups that grow, one for the runs that were stopped, and one for the queues that are paused or
stopped by their breaker; each run that still has to send something needs two more. The live status has one more while
runs send or messages fail, and while a request waits for a second person. Pages of messages and groups have one for the
requests that wait, and the page of a message a second one if some do. The page of a group asks what a
requeue would send. A search that finds nothing also looks for keys
that are alike. The page of consumers has a second query for the messages that dead processes had in flight."""
_NUMBER = re.compile(r"\{\w+\}|\d+")


def budget_of(address: str) -> int | None:
    """Return the most queries of the page with this path, whatever its filter; None for a page without a budget."""
    path = _path(address.removeprefix(ADMIN))
    return max((most for page, most in BUDGETS.items() if _path(page) == path), default=None)


def _path(page: str) -> str:
    return _NUMBER.sub("#", page.partition("?")[0])
