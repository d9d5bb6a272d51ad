DELETE FROM {schema}.queue AS q
WHERE q.id = ANY ($1::bigint[]) AND q.lease_token = $2
