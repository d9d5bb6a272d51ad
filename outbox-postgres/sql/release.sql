-- $1 ids, $2 tokens
UPDATE {schema}.queue AS q
SET status = 'pending',
    attempts = greatest(q.attempts - 1, 0),
    lease_owner = NULL,
    lease_token = NULL,
    lease_until = NULL,
    updated_at = clock_timestamp()
WHERE q.id = ANY ($1::bigint[]) AND q.lease_token = ANY ($2::uuid[])
