-- $1 ids, $2 tokens, $3 lease in microseconds
WITH renewed AS (
    UPDATE {schema}.queue AS q
    SET lease_until = statement_timestamp() + $3::bigint * interval '1 microsecond',
        updated_at = clock_timestamp()
    WHERE q.id = ANY ($1::bigint[]) AND q.lease_token = ANY ($2::uuid[])
    RETURNING q.lease_token
)
SELECT DISTINCT lease_token FROM renewed
