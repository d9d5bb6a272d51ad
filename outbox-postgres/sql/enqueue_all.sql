INSERT INTO {schema}.queue (
    event_id, topic, key, event_type, event_version, aggregate_type, aggregate_id, content_type,
    headers, payload_bytes, next_attempt_at, dedup_key
)
SELECT e.event_id, e.topic, e.key, e.event_type, e.event_version, e.aggregate_type, e.aggregate_id,
    e.content_type, e.headers, e.payload_bytes,
    coalesce(statement_timestamp() + e.after_us * interval '1 microsecond', now()),
    e.dedup_key
FROM unnest(
    $1::uuid[], $2::text[], $3::text[], $4::text[], $5::integer[], $6::text[], $7::text[],
    $8::text[], $9::jsonb[], $10::bytea[], $11::bigint[], $12::text[]
) WITH ORDINALITY AS e (
    event_id, topic, key, event_type, event_version, aggregate_type, aggregate_id, content_type,
    headers, payload_bytes, after_us, dedup_key, number
)
-- Every batch takes its dedup keys in one order, so that two of them can't wait for each other.
ORDER BY e.dedup_key, e.number
