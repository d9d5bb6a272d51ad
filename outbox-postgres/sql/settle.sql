-- $1 ids that are done, $2 token, then one array a column for the others
WITH verdict AS MATERIALIZED (
    SELECT *
    FROM unnest($3::bigint[], $4::text[], $5::bigint[], $6::text[], $7::text[], $8::text[])
        AS v (id, verdict, after_us, reason, error_kind, error)
),
done AS (
    {done}
    RETURNING q.id
),
other AS (
    UPDATE {schema}.queue AS q
    SET status = CASE v.verdict WHEN 'dead' THEN 'failed' ELSE 'pending' END,
        attempts = CASE WHEN v.verdict IN ('defer', 'return') THEN greatest(q.attempts - 1, 0) ELSE q.attempts END,
        crashes = 0,
        next_attempt_at = CASE WHEN v.verdict IN ('retry', 'defer')
            THEN clock_timestamp() + v.after_us * interval '1 microsecond' ELSE q.next_attempt_at END,
        lease_owner = NULL,
        lease_token = NULL,
        lease_until = NULL,
        first_failed_at = CASE v.verdict WHEN 'return' THEN q.first_failed_at
            ELSE coalesce(q.first_failed_at, clock_timestamp()) END,
        dead_reason = CASE v.verdict WHEN 'dead' THEN v.reason END,
        error_kind = CASE v.verdict WHEN 'return' THEN q.error_kind ELSE v.error_kind END,
        error = CASE v.verdict WHEN 'return' THEN q.error ELSE v.error END,
        processed_at = CASE v.verdict WHEN 'dead' THEN clock_timestamp() END,
        updated_at = clock_timestamp()
    FROM verdict AS v
    WHERE q.id = v.id AND q.id = ANY ($3::bigint[]) AND q.lease_token = $2
    RETURNING q.id
)
SELECT (SELECT count(*) FROM done) + (SELECT count(*) FROM other) AS applied
