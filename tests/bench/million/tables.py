"""The generated rows: error groups of very different sizes, 3 queues, 5 types, three months of incidents."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from django.db import models

from django_rmq_retry.messages import Headers, Properties, encode_properties
from django_rmq_retry.models import (
    Attempt,
    AttemptName,
    BusinessKey,
    ErrorGroup,
    OperatorAction,
    ParkedMessage,
    ParkedMinute,
    ParkedOrigin,
    RequeueItem,
    RequeueRun,
)

RUNS, RUN_ITEMS, ACTS = 60, 10_000, 20_000
BIGGEST, LARGE_RUN = 1, 1
"""The ids of the largest group and of the requeue run on the measured page."""
TYPES = "(ARRAY['payment.transfer', 'payment.refund', 'card.settle', 'ledger.post', 'notice.send'])"
QUEUE_NAMES = ("payments.main", "payments.refunds", "ledger.main")
QUEUES = f"(ARRAY{list(QUEUE_NAMES)})"
ERRORS = "(ARRAY['GatewayTimeout', 'AccountClosed', 'ConnectionResetError', 'KeyError', 'OperationalError'])"
FRAMES = [
    {"file": "django/db/transaction.py", "line": 85, "function": "inner", "code": "return func()", "own": False},
    {"file": "payments/handlers.py", "line": 41, "function": "transfer", "code": "gateway.post(order)", "own": True},
    {"file": "bank/gateway.py", "line": 17, "function": "post", "code": "raise GatewayTimeout(host)", "own": True},
]
ACCOUNT = "'account:' || id % 70000"
CHAIN = json.dumps([{"error": "GatewayTimeout", "text": "no answer within 30 s", "frames": FRAMES}])
PROPERTIES = encode_properties(
    Properties(content_type="application/json", delivery_mode=2, headers=Headers.of({"tenant": "north", "try": 4}))
).hex()
BODY = """convert_to(format(
    '{"payment": "%s", "amount": %s.00, "currency": "EUR", "iban": "DE89370400440532013000", "purpose": "%s"}',
    i, i % 5000, repeat('invoice 2024-118 ', 9)), 'UTF8')"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of one model: an expression for each column that has no plain default, over a source of rows."""

    model: type[models.Model]
    source: str
    values: Mapping[str, str]


_GROUPS = Table(
    model=ErrorGroup,
    source="generate_series(1, {groups}) AS i",
    values={
        "id": "i",
        "fingerprint": "lpad(to_hex(i), 40, '0')",
        "title": f"{ERRORS}[1 + i % 5]",
        "culprit": "format('bank.gateway%s:post', i)",
        "reason": "CASE WHEN i % 9 = 4 THEN 'permanent' ELSE 'retries_exhausted' END",
        "first_seen": "now() - interval '90 days'",
        "last_seen": "now() - i * interval '1 minute'",
    },
)
# Later messages have larger ids; one in a hundred was parked in the last ten minutes, in a current incident.
_DRAWN = """(
    SELECT i, b, 1 + floor({groups} * power(a, {steep}))::int AS g, 1 + floor(3 * power(c, 1.5))::int AS q, d,
           now() - power(1 - i::float / {messages}, 2) * interval '{span}' AS at
    FROM (SELECT i, random() AS a, random() * 0.6 / {parked} AS b, random() AS c, random() AS d
          FROM generate_series(1, {messages}) AS i) AS numbers
) AS drawn"""
_COPIED = "i % 50 = 0 AND i / 100 % 2 = 0"
_MESSAGES = Table(
    model=ParkedMessage,
    source=_DRAWN,
    values={
        "id": "i",
        "identity": "encode(sha256(i::text::bytea), 'hex')",
        "state": """CASE WHEN b < 0.6 THEN 'parked' WHEN b < 0.62 THEN 'on_hold' WHEN b < 0.65 THEN 'requeued'
                         WHEN b < 0.9 THEN 'processed' ELSE 'discarded' END""",
        "group_id": "g",
        "message_id": "'9f3c-' || i",
        "correlation_id": "'corr-' || i / 3",
        "type": f"{TYPES}[1 + (g + (d < 0.1)::int) % 5]",
        "business_key": "'PAY-' || CASE WHEN i % 50 = 0 THEN i / 100 ELSE i END",
        "handler": "'payments.handlers.transfer'",
        "queue": f"{QUEUES}[q]",
        "parked_in": f"{QUEUES}[q] || '.parked'",
        "exchange": "'payments'",
        "routing_key": "'transfer'",
        "body": BODY,
        "size": f"octet_length({BODY})",
        "sha256": "encode(sha256(i::text::bytea), 'hex')",
        # Half of those that share their business key with another one are its copies.
        "content": f"CASE WHEN {_COPIED} THEN i / 100 ELSE 1000000000 + i END",
        "has_siblings": _COPIED,
        "copy": "encode(sha256(i::text::bytea), 'hex')",
        "properties": f"decode('{PROPERTIES}', 'hex')",
        "content_type": "'application/json'",
        "by": "'consumer'",
        "reason": "CASE WHEN g % 9 = 4 THEN 'permanent' ELSE 'retries_exhausted' END",
        "detail": "'Gave up after 5 attempts.'",
        "error": f"{ERRORS}[1 + g % 5]",
        "error_text": "'no answer of 10.0.0.' || i % 250 || ' within 30 s'",
        "attempts": "5",
        "cycle": "CASE WHEN b < 0.03 OR (b >= 0.62 AND b < 0.9) THEN 2 ELSE 1 END",
        "published_at": "at - interval '21 minutes'",
        "failed_at": "at - interval '20 minutes'",
        "parked_at": "at",
        "recorded_at": "at",
        "held_until": "CASE WHEN b >= 0.6 AND b < 0.62 THEN now() + interval '6 hours' END",
        "requeued_at": "CASE WHEN b >= 0.62 AND b < 0.9 THEN at + (now() - at) / 2 END",
        "requeued_by": "CASE WHEN b >= 0.62 AND b < 0.9 THEN 'anna' ELSE '' END",
        "succeeded_at": "CASE WHEN b >= 0.65 AND b < 0.9 THEN at + (now() - at) * 0.6 END",
        "resolved_at": "CASE WHEN b >= 0.65 THEN at + (now() - at) * 0.6 END",
        "resolution": "CASE WHEN b >= 0.9 THEN 'duplicate' ELSE '' END",
    },
)
_PAYMENTS = Table(
    model=BusinessKey,
    source="rmq_retry_parkedmessage",
    values={"message_id": "id", "value": "business_key", "folded": "lower(business_key)"},
)
_ACCOUNTS = Table(
    model=BusinessKey,
    source="rmq_retry_parkedmessage WHERE id % 5 = 0",
    values={"message_id": "id", "value": ACCOUNT, "folded": ACCOUNT},
)
_MINUTES = Table(
    model=ParkedMinute,
    source="""(
        SELECT group_id, date_trunc('minute', parked_at) AS minute, count(*) AS parked FROM rmq_retry_parkedmessage
        WHERE parked_at > now() - interval '4 hours' GROUP BY 1, 2
    ) AS counted""",
    values={"group_id": "group_id", "minute": "minute", "new": "TRUE", "count": "parked"},
)
_ORIGINS = Table(
    model=ParkedOrigin,
    source="""(
        SELECT group_id, queue, handler, type, succeeded_at IS NOT NULL AS handled, count(*) AS parked
        FROM rmq_retry_parkedmessage WHERE state = 'parked' GROUP BY 1, 2, 3, 4, 5
    ) AS counted""",
    values={
        "group_id": "group_id",
        "queue": "queue",
        "handler": "handler",
        "type": "type",
        "handled": "handled",
        "count": "parked",
    },
)
_ATTEMPTS = Table(
    model=Attempt,
    source="""(
        SELECT m.*, number FROM rmq_retry_parkedmessage AS m
        CROSS JOIN LATERAL generate_series({first}, 5) AS number
    ) AS tried""",
    values={
        "identity": "identity",
        "queue": "queue",
        "handler": "handler",
        "message_id": "message_id",
        "number": "number",
        "started_at": "parked_at - (5 - number) * interval '4 minutes' - interval '30 seconds'",
        "seconds": "30.012",
        "verdict": "CASE WHEN number = 5 THEN 'park' ELSE 'retry' END",
        "wait": "CASE WHEN number = 5 THEN 0 ELSE 210 END",
        "next_at": "CASE WHEN number = 5 THEN NULL ELSE parked_at END",
        "reason": "reason",
        "error": "error",
        "error_text": "error_text",
        "chain": f"'{CHAIN}'::jsonb",
        "logs": "'INFO payments: posting order ' || id",
        "fingerprint": "lpad(to_hex(group_id), 40, '0')",
        "host": "'worker-' || id % 7",
        "pid": "812",
        "thread": "'rmq-worker-1'",
        "deploy": "'a1b2c3'",
    },
)
_NAMES = Table(
    model=AttemptName,
    source="""(
        SELECT m.identity, m.parked_at, m.message_id AS value FROM rmq_retry_parkedmessage AS m
        UNION ALL SELECT m.identity, m.parked_at, k.value
        FROM rmq_retry_businesskey AS k JOIN rmq_retry_parkedmessage AS m ON m.id = k.message_id
    ) AS named""",
    values={
        "identity": "identity",
        "value": "value",
        "folded": "lower(value)",
        "at": "parked_at - interval '20 minutes'",
    },
)
_RUNS = Table(
    model=RequeueRun,
    source=f"generate_series(1, {RUNS}) AS i",
    values={
        "id": "i",
        "state": f"CASE WHEN i = {LARGE_RUN} THEN 'paused' ELSE 'finished' END",
        "created_at": f"now() - ({RUNS} - i) * interval '7 hours'",
        "by": "'anna'",
        "description": "'group ' || i",
        "rate": "20",
        "total": f"CASE WHEN i = {LARGE_RUN} THEN {RUN_ITEMS} ELSE 1 END",
        "sent": f"CASE WHEN i = {LARGE_RUN} THEN {RUN_ITEMS} * 7 / 10 ELSE 1 END",
        "processed": f"CASE WHEN i = {LARGE_RUN} THEN {RUN_ITEMS} * 5 / 10 ELSE 1 END",
        "failed": f"CASE WHEN i = {LARGE_RUN} THEN {RUN_ITEMS} / 10 ELSE 0 END",
        "skipped": f"CASE WHEN i = {LARGE_RUN} THEN {RUN_ITEMS} / 10 ELSE 0 END",
        "unconfirmed": f"CASE WHEN i = {LARGE_RUN} THEN {RUN_ITEMS} / 10 ELSE 0 END",
    },
)
_ITEMS = Table(
    model=RequeueItem,
    source=f"""(
        SELECT id, row_number() OVER (ORDER BY id) AS place
        FROM rmq_retry_parkedmessage WHERE group_id = {BIGGEST} ORDER BY id LIMIT {RUN_ITEMS}
    ) AS chosen""",  # noqa: S608 - numbers of ours
    values={
        "run_id": str(LARGE_RUN),
        "message_id": "id",
        "place": "place",
        "revision": "1",
        "cycle": "2",
        "state": """(ARRAY['processed', 'processed', 'processed', 'processed', 'processed', 'sent', 'failed', 'skipped',
                          'unconfirmed', 'pending'])[1 + place % 10]""",
        "skip_code": "CASE WHEN place % 10 = 7 THEN 'changed' ELSE '' END",
        "sent_at": "now() - interval '1 hour'",
    },
)
_ACTS = Table(
    model=OperatorAction,
    source=f"generate_series(1, {ACTS}) AS i",
    values={
        "number": "i",
        "at": f"now() - ({ACTS} - i) * interval '5 minutes'",
        "actor_name": "(ARRAY['anna', 'ben', 'chloe'])[1 + i % 3]",
        "action": "(ARRAY['requeue', 'discard', 'hold', 'reveal', 'export'])[1 + i % 5]",
        "reason": "'the bank is back'",
        "message": "i * 7",
        "group": "1 + i % 40",
        "subject": "'PAY-' || i * 7",
        "previous": "repeat('0', 64)",
        "seal": "repeat('0', 64)",
    },
)
TABLES = (_GROUPS, _MESSAGES, _MINUTES, _ORIGINS, _PAYMENTS, _ACCOUNTS, _ATTEMPTS, _NAMES, _RUNS, _ITEMS, _ACTS)
COUNTERS = """
    UPDATE rmq_retry_errorgroup AS g SET
        parked = n.parked, requeued = n.requeued, processed = n.processed, discarded = n.discarded, arrived = n.arrived,
        last_seen = n.last
    FROM (
        SELECT group_id, max(parked_at) AS last, count(*) AS arrived,
               count(*) FILTER (WHERE state IN ('parked', 'on_hold')) AS parked,
               count(*) FILTER (WHERE state = 'requeued') AS requeued,
               count(*) FILTER (WHERE state = 'processed') AS processed,
               count(*) FILTER (WHERE state = 'discarded') AS discarded
        FROM rmq_retry_parkedmessage GROUP BY group_id
    ) AS n WHERE n.group_id = g.id
"""
