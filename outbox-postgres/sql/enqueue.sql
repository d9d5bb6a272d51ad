INSERT INTO {schema}.queue (
    event_id, topic, key, event_type, event_version, aggregate_type, aggregate_id, content_type,
    headers, payload_bytes, next_attempt_at, dedup_key
)
VALUES (
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10,
    coalesce(statement_timestamp() + $11::bigint * interval '1 microsecond', now()),
    $12
)
