-- $1 dedup retention in microseconds
SELECT count(*) AS dedup_keys
FROM {schema}.dedup AS d
WHERE d.created_at <= statement_timestamp() - $1::bigint * interval '1 microsecond'
