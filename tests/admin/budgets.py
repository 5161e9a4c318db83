"""How many queries a page of the admin may need: the tests check it on few messages, the bench on very many.

Django's own queries, for the session and the permissions, are not counted.
"""

import re

ADMIN = "/admin/rmq_retry/"
BUDGETS = {
    "parkedmessage/": 5,
    "parkedmessage/?group={group}": 6,
    "parkedmessage/?queue=payments.main&type=payment.transfer&state=all": 5,
    "parkedmessage/?reason=retries+exhausted&cycle_min=1": 5,
    "parkedmessage/?q={key}": 16,
    "parkedmessage/?q=shared": 17,
    "parkedmessage/?q=unknown": 19,
    "parkedmessage/newer/?queue=payments.main&since=2026-11-21T03:00:00Z&after=0": 1,
    "parkedmessage/{message}/change/": 16,
    "errorgroup/": 10,
    "errorgroup/?by=queue": 1,
    "errorgroup/{group}/change/": 24,
    "requeuerun/": 3,
    "requeuerun/{run}/change/": 12,
    "requeuerun/preview/?sel={named}": 21,
    "requeuerun/preview/?sel={filtered}": 20,
    "requeuerun/waiting/?queue=payments.main": 2,
    "operatoraction/": 3,
    "operatoraction/?q={key}": 14,
    "livestatus/": 25,
    "blockedkey/": 3,
    "outboxmessage/": 4,
    "outboxmessage/{row}/change/": 3,
    "queuecontrol/": 6,
    "consumerprocess/": 6,
    "approvalrequest/": 7,
    "approvalrequest/{request}/change/": 16,
}
"""The most queries of each page. A preview has one more for each of its findings (here are two), and two more for each
run that still has to send something. That of a run has three for what was decided on messages that it left out, however
many it names: the messages, and the acts on several and on one. That of a group has one more if its newest message was
requeued. The live status has one more while runs send, messages fail, or a request waits for a second person; pages of
messages and groups ask for such requests, too. The list of runs has one more while one waits; it and the live status
have one more for each run that waits while a queue is stopped. The list and the page of a run have one more if some of
its messages failed again, were not confirmed, or have no outcome."""
_NUMBER = re.compile(r"\{\w+\}|\d+")


def budget_of(address: str) -> int | None:
    """Return the most queries of the page with this path, whatever its filter; None for a page without a budget."""
    path = _path(address.removeprefix(ADMIN))
    return max((most for page, most in BUDGETS.items() if _path(page) == path), default=None)


def _path(page: str) -> str:
    return _NUMBER.sub("#", page.partition("?")[0])
