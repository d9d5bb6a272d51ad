UPDATE {schema}.queue AS q
SET status = 'done',
    crashes = 0,
    lease_owner = NULL,
    lease_token = NULL,
    lease_until = NULL,
    processed_at = clock_timestamp(),
    updated_at = clock_timestamp()
WHERE q.id = ANY ($1::bigint[]) AND q.lease_token = $2
