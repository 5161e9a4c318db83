"""The pages of the admin, each with something on it."""

from django_rmq_retry.models import RunState, State

ADMIN = "/admin/rmq_retry"
MESSAGE, RUN = f"{ADMIN}/parkedmessage", f"{ADMIN}/requeuerun"
AUDIT, STATUS = f"{ADMIN}/operatoraction", f"{ADMIN}/livestatus"
EDITED = 30 + len(State)
"""The message that was edited; before it there is one in each state."""
LONG = EDITED + 4
"""One whose keys and line of code are as long as they can be, alone in its group."""
MALFORMED = 21
"""A group of permanent errors that no test edits here."""
DELETED = 10_000
"""A message that is known from the audit log only."""
EARLY = len(RunState) + 1
"""The run that has sent waiting retries; before it there is one in each state."""
STATES = {state: 30 + place for place, state in enumerate(State)}
PAGES = {
    "groups": f"{ADMIN}/errorgroup/",
    "groups by queue": f"{ADMIN}/errorgroup/?by=queue",
    "muted groups": f"{ADMIN}/errorgroup/?show=muted",
    "no group": f"{ADMIN}/errorgroup/?q=nothing",
    "group": f"{ADMIN}/errorgroup/1/change/",
    "help": f"{ADMIN}/errorgroup/help/",
    "note": f"{ADMIN}/errorgroup/1/note/",
    "messages": f"{MESSAGE}/",
    "all messages": f"{MESSAGE}/?state=all",
    "nothing found": f"{MESSAGE}/?queue=unknown.queue",
    "message": f"{MESSAGE}/29/change/",
    "hostile message": f"{MESSAGE}/28/change/",
    **{f"message {state}": f"{MESSAGE}/{number}/change/" for state, number in STATES.items()},
    "deleted message": f"{MESSAGE}/{DELETED}/change/",
    "edited message": f"{MESSAGE}/{EDITED}/change/",
    "its original": f"{MESSAGE}/{EDITED}/change/?version=1",
    "message with long keys": f"{MESSAGE}/{LONG}/change/",
    "group of long keys": f"{ADMIN}/errorgroup/20/change/",
    "list of long keys": f"{MESSAGE}/?group=20",
    "discard of a long key": f"{MESSAGE}/discard/?message={LONG}",
    "edit of a long key": f"{MESSAGE}/{LONG}/edit/",
    "preview of a long key": f"{RUN}/preview/?message={LONG}",
    "edit": f"{MESSAGE}/29/edit/",
    "discard": f"{MESSAGE}/discard/?group=1",
    "hold": f"{MESSAGE}/hold/?group=1",
    "restore": f"{MESSAGE}/{STATES[State.DISCARDED]}/restore/",
    "restore of what is parked": f"{MESSAGE}/{STATES[State.PARKED]}/restore/",
    "end of a hold": f"{MESSAGE}/{STATES[State.ON_HOLD]}/unhold/",
    "end of many holds": f"{MESSAGE}/unhold/?message={STATES[State.ON_HOLD]}",
    "restore of many": f"{MESSAGE}/restore/?message={STATES[State.DISCARDED]}",
    "edit of many": f"{MESSAGE}/edit/?group=1",
    "export": f"{MESSAGE}/export/?group=1",
    "list of keys": f"{MESSAGE}/keys/",
    "answer to a list of keys": f"{MESSAGE}/keys/?list=1",
    "preview": f"{RUN}/preview/?group=1",
    "preview of one first": f"{RUN}/preview/?group=1&canary=1",
    "preview of what is permanent": f"{RUN}/preview/?group={MALFORMED}",
    "preview of nothing": f"{RUN}/preview/?sel=made-up",
    "preview of what waits": f"{RUN}/waiting/?queue=payments.main",
    "runs": f"{RUN}/",
    **{f"run {state}": f"{RUN}/{1 + place}/change/" for place, state in enumerate(RunState)},
    "run of waiting retries": f"{RUN}/{EARLY}/change/",
    "its failures": f"{RUN}/{EARLY}/outcomes/?of=failed",
    "what it may have done twice": f"{RUN}/{EARLY}/outcomes/?of=perhaps_twice",
    "stop a run": f"{RUN}/1/control/?action=stop",
    "audit": f"{AUDIT}/",
    "act": f"{AUDIT}/1/change/",
    "audit export": f"{AUDIT}/export/",
    "index": f"{ADMIN}/",
    "status": f"{STATUS}/",
    "handled again": f"{STATUS}/handled_again/",
    "checked": f"{STATUS}/checked/?code=HANDLED_TWICE&run={EARLY}",
    "queues": f"{ADMIN}/queuecontrol/",
    "first message of a halted queue": f"{ADMIN}/queuecontrol/first/?queue=ledger.post",
    "consumers": f"{ADMIN}/consumerprocess/",
    "outbox": f"{ADMIN}/outboxmessage/",
    "message in the outbox": f"{ADMIN}/outboxmessage/1/change/",
    "discard in the outbox": f"{ADMIN}/outboxmessage/1/discard/",
    "second persons": f"{ADMIN}/approvalrequest/",
    "an act for a second person": f"{ADMIN}/approvalrequest/1/change/",
    "blocked keys": f"{ADMIN}/blockedkey/",
    "unblock a key": f"{ADMIN}/blockedkey/1/unblock/",
}
