-- $1 events, $2 bytes, $3 owner, $4 token, $5 lease in microseconds, $6 bytes of one event,
-- $7 due time (microseconds from 2000 on) and $8 id to begin at, or $9 microseconds before now, or
-- all null: the front; $10 topics, $11 prefixes of topics
-- A limit that the planner can't see makes it prefer the way that starts fast: the index. Knowing the
-- number, and with old statistics, it would read and sort the whole backlog.
WITH candidate AS MATERIALIZED (
    SELECT q.id, q.next_attempt_at AS due, {size} AS bytes
    FROM {schema}.queue AS q
    WHERE q.status = 'pending' AND q.next_attempt_at <= statement_timestamp()
        AND (q.next_attempt_at, q.id) >= (
            coalesce(
                timestamptz '2000-01-01 00:00:00+00' + $7::bigint * interval '1 microsecond',
                statement_timestamp() - $9::bigint * interval '1 microsecond',
                '-infinity'),
            coalesce($8::bigint, -9223372036854775808))
        {topics}
    ORDER BY q.next_attempt_at, q.id
    LIMIT (SELECT $1::bigint)
    FOR UPDATE SKIP LOCKED
),
counted AS MATERIALIZED (
    SELECT id, sum(bytes) OVER running <= $2::bigint OR row_number() OVER running = 1 AS fits
    FROM candidate
    WINDOW running AS (ORDER BY due, id ROWS UNBOUNDED PRECEDING)
),
claimed AS (
    UPDATE {schema}.queue AS q
    SET status = 'processing',
        -- Kept below the type's end, so that the sum can't overflow.
        attempts = greatest(least(q.attempts, 2147483646), 0) + 1,
        lease_owner = $3,
        lease_token = $4,
        lease_until = statement_timestamp() + $5::bigint * interval '1 microsecond',
        updated_at = clock_timestamp()
    -- An array of ids leaves the planner no way but the primary key, with or without statistics.
    WHERE q.id = ANY (ARRAY(SELECT id FROM counted WHERE fits))
    RETURNING q.*
)
SELECT {event}, EXISTS (SELECT FROM counted WHERE NOT fits) AS cut
FROM claimed AS q
{documents}
