BEGIN;
ALTER TABLE rmq_retry_attempt RENAME TO rmq_retry_attempt_before;
ALTER INDEX rmq_attempt_identity RENAME TO rmq_attempt_identity_before;
ALTER INDEX rmq_attempt_next RENAME TO rmq_attempt_next_before;
ALTER INDEX rmq_attempt_started RENAME TO rmq_attempt_started_before;
ALTER INDEX rmq_attempt_again RENAME TO rmq_attempt_again_before;
ALTER INDEX rmq_attempt_group RENAME TO rmq_attempt_group_before;
CREATE TABLE rmq_retry_attempt (LIKE rmq_retry_attempt_before INCLUDING DEFAULTS) PARTITION BY RANGE (started_at);
CREATE SEQUENCE rmq_retry_attempt_number OWNED BY rmq_retry_attempt.id;
SELECT setval('rmq_retry_attempt_number', (SELECT coalesce(max(id), 0) + 1 FROM rmq_retry_attempt_before));
ALTER TABLE rmq_retry_attempt ALTER id SET DEFAULT nextval('rmq_retry_attempt_number');
ALTER TABLE rmq_retry_attempt ADD PRIMARY KEY (id, started_at);
CREATE INDEX rmq_attempt_identity ON rmq_retry_attempt (identity, started_at, id);
CREATE INDEX rmq_attempt_next ON rmq_retry_attempt (next_at);
CREATE INDEX rmq_attempt_started ON rmq_retry_attempt (started_at);
CREATE INDEX rmq_attempt_again ON rmq_retry_attempt (redelivered, started_at);
CREATE INDEX rmq_attempt_group ON rmq_retry_attempt (fingerprint, started_at DESC);
CREATE TABLE rmq_retry_attempt_2026_11 PARTITION OF rmq_retry_attempt
    FOR VALUES FROM ('2026-11-01 00:00+00') TO ('2026-12-01 00:00+00');
CREATE TABLE rmq_retry_attempt_2026_12 PARTITION OF rmq_retry_attempt
    FOR VALUES FROM ('2026-12-01 00:00+00') TO ('2027-01-01 00:00+00');
CREATE TABLE rmq_retry_attempt_others PARTITION OF rmq_retry_attempt DEFAULT;
COMMIT;
