-- $7 rows
UPDATE {schema}.queue AS q
SET status = 'pending',
    attempts = 0,
    crashes = 0,
    next_attempt_at = clock_timestamp(),
    first_failed_at = NULL,
    dead_reason = NULL,
    processed_at = NULL,
    updated_at = clock_timestamp()
WHERE q.id = ANY (ARRAY(
    SELECT q.id FROM {schema}.queue AS q WHERE {dead} ORDER BY q.id LIMIT (SELECT $7::bigint) FOR UPDATE SKIP LOCKED
))
