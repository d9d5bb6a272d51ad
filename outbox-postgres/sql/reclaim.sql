-- $1 events, $2 bytes, $3 owner, $4 token, $5 lease in microseconds, $6 bytes of one event,
-- $7 due time (microseconds from 2000 on) and $8 id to begin at, or $9 microseconds before now, or
-- all null: the front; $10 topics, $11 prefixes of topics
-- One batch whose lease ended: half of it when it is the first time, else a single event, so that
-- the culprit of a crash is found in few steps and its neighbours are not blamed.
WITH oldest AS MATERIALIZED (
    SELECT q.lease_token
    FROM {schema}.queue AS q
    WHERE q.status = 'processing' AND q.lease_until < statement_timestamp()
        AND q.lease_until >= coalesce(statement_timestamp() - $9::bigint * interval '1 microsecond', '-infinity') {topics}
    ORDER BY q.lease_until, q.id
    LIMIT 1
    FOR UPDATE SKIP LOCKED
),
expired AS MATERIALIZED (
    SELECT q.id, q.crashes, {size} AS bytes
    FROM {schema}.queue AS q
    WHERE q.status = 'processing' AND q.lease_until < statement_timestamp()
        AND q.lease_until >= coalesce(statement_timestamp() - $9::bigint * interval '1 microsecond', '-infinity')
        AND q.lease_token = (SELECT lease_token FROM oldest) {topics}
    ORDER BY q.lease_until, q.id
    FOR UPDATE SKIP LOCKED
),
counted AS MATERIALIZED (
    SELECT id,
        row_number() OVER running = 1
            OR (
                row_number() OVER running <= $1::bigint
                AND sum(bytes) OVER running <= $2::bigint
                AND max(crashes) OVER () <= 0
                AND row_number() OVER running <= (count(*) OVER () + 1) / 2
            ) AS fits
    FROM expired
    WINDOW running AS (ORDER BY crashes DESC, id ROWS UNBOUNDED PRECEDING)
),
claimed AS (
    UPDATE {schema}.queue AS q
    SET attempts = greatest(least(q.attempts, 2147483646), 0) + 1,
        crashes = greatest(least(q.crashes, 2147483646), 0) + 1,
        lease_owner = $3,
        lease_token = $4,
        lease_until = statement_timestamp() + $5::bigint * interval '1 microsecond',
        updated_at = clock_timestamp()
    WHERE q.id = ANY (ARRAY(SELECT id FROM counted WHERE fits))
    RETURNING q.*
)
SELECT {event}, true AS cut
FROM claimed AS q
{documents}
