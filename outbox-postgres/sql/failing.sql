-- $1 rows looked at and $2 topics told, at the most, each plus one that tells whether there are more.
-- The bound stands before the question which of the rows failed: rows that a producer scheduled can't
-- make it read on. The order keeps the planner on the partial index, whatever its statistics say.
WITH waiting AS MATERIALIZED (
    SELECT q.id, q.topic, q.next_attempt_at, q.updated_at, q.first_failed_at IS NOT NULL AS failed
    FROM {schema}.queue AS q
    WHERE q.status = 'pending' AND q.next_attempt_at > statement_timestamp()
    ORDER BY q.next_attempt_at, q.id
    LIMIT (SELECT $1::bigint)
),
failing AS MATERIALIZED (
    SELECT w.topic, count(*) AS events, min(w.next_attempt_at) AS due,
        -- A settle writes the reason and this time in one go.
        (array_agg(w.id ORDER BY w.updated_at DESC, w.id DESC))[1] AS last
    FROM waiting AS w
    WHERE w.failed
    GROUP BY w.topic
    ORDER BY count(*) DESC, w.topic
    LIMIT (SELECT $2::bigint)
)
SELECT one.looked_at, {text(f.topic)} AS topic, f.events,
    extract(epoch FROM f.due)::float8 - extract(epoch FROM clock_timestamp())::float8 AS due_seconds,
    {text(f.error_kind)} AS error_kind, {text(f.error)} AS error
FROM (SELECT count(*) AS looked_at FROM waiting) AS one
LEFT JOIN (
    SELECT f.topic, f.events, f.due, q.error_kind, left(q.error, 1000) AS error
    FROM failing AS f
    -- An array of ids leaves the planner no way but the primary key.
    JOIN {schema}.queue AS q ON q.id = f.last AND q.id = ANY (ARRAY(SELECT last FROM failing))
) AS f ON true
ORDER BY f.events DESC, f.topic
