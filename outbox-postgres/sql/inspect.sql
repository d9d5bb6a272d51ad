-- $1 rows counted at the most, plus one that tells whether there are more. The order keeps the
-- planner on the partial indexes, whatever its statistics say.
WITH leased AS MATERIALIZED (
    SELECT q.lease_owner, q.lease_until
    FROM {schema}.queue AS q
    WHERE q.status = 'processing'
    ORDER BY q.lease_until, q.id
    LIMIT (SELECT $1::bigint)
)
SELECT
    (SELECT count(*) FROM (
        SELECT FROM {schema}.queue AS q
        WHERE q.status = 'pending' AND q.next_attempt_at <= statement_timestamp()
        ORDER BY q.next_attempt_at, q.id
        LIMIT (SELECT $1::bigint)
    ) AS pending) AS pending,
    (SELECT count(*) FROM (
        SELECT FROM {schema}.queue AS q
        WHERE q.status = 'pending' AND q.next_attempt_at > statement_timestamp()
        ORDER BY q.next_attempt_at, q.id
        LIMIT (SELECT $1::bigint)
    ) AS scheduled) AS scheduled,
    (SELECT count(*) FROM leased) AS in_flight,
    (SELECT count(*) FROM (
        SELECT FROM {schema}.queue AS q WHERE q.status = 'failed' ORDER BY q.id LIMIT (SELECT $1::bigint)
    ) AS failed) AS dead,
    (SELECT extract(epoch FROM clock_timestamp())::float8 - extract(epoch FROM q.next_attempt_at)::float8
     FROM {schema}.queue AS q
     WHERE q.status = 'pending' AND q.next_attempt_at <= statement_timestamp()
     ORDER BY q.next_attempt_at, q.id
     LIMIT 1) AS oldest_seconds,
    owner.lease_owner,
    owner.in_flight AS owner_in_flight,
    owner.lease_seconds
FROM (SELECT) AS one
LEFT JOIN (
    SELECT l.lease_owner, count(*) AS in_flight,
        extract(epoch FROM max(l.lease_until))::float8 - extract(epoch FROM clock_timestamp())::float8 AS lease_seconds
    FROM leased AS l
    GROUP BY l.lease_owner
) AS owner ON true
ORDER BY owner.lease_owner
