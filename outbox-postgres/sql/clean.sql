-- $1 id to look behind, $2 rows, $3 retention and $4 dedup retention in microseconds
-- One cleaner of this schema at a time; released with the statement's end. Needs no session, so that
-- a pooler may lend another connection to each step. The first number is ours.
WITH cleaner AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(1869968483, hashtext('{schema}')) AS alone
),
-- Done rows are in no index but the primary key, or each settle would pay for it. So a step looks at
-- the next rows by id, whatever they are.
seen AS MATERIALIZED (
    {seen}
),
-- A row that somebody has locked waits for a later round: a delete that waits can deadlock.
free AS MATERIALIZED (
    SELECT q.id
    FROM {schema}.queue AS q
    WHERE q.id = ANY (ARRAY(SELECT id FROM seen WHERE over)) AND q.status = 'done'
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM {schema}.queue AS q
    WHERE q.id = ANY (ARRAY(SELECT id FROM free))
    RETURNING q.id
),
forgotten AS (
    DELETE FROM {schema}.dedup AS d
    WHERE d.dedup_key = ANY (ARRAY(
        SELECT d.dedup_key
        FROM {schema}.dedup AS d
        WHERE (SELECT alone FROM cleaner)
            AND d.created_at <= statement_timestamp() - $4::bigint * interval '1 microsecond'
        ORDER BY d.created_at
        LIMIT (SELECT $2::bigint)
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING d.dedup_key
)
SELECT
    (SELECT alone FROM cleaner) AS alone,
    (SELECT count(*) FROM gone) AS events,
    (SELECT count(*) FROM forgotten) AS dedup_keys,
    (SELECT count(*) FROM seen) AS looked_at,
    (SELECT max(id) FROM seen) AS last_id,
    -- Rows stand roughly by age: where none of a whole step is old, none behind it is either.
    (SELECT coalesce(bool_or(old), false) FROM seen) AS any_old
