coalesce(octet_length(q.payload_bytes), 0)
-- The size on disk is the size in memory unless it is compressed; only then is it worth unpacking.
+ coalesce(CASE WHEN pg_column_compression(q.payload) IS NULL
    THEN pg_column_size(q.payload) ELSE octet_length(q.payload::text) END, 0)
+ coalesce(CASE WHEN pg_column_compression(q.headers) IS NULL
    THEN pg_column_size(q.headers) ELSE octet_length(q.headers::text) END, 0)
+ octet_length(q.topic) + octet_length(q.event_type) + coalesce(octet_length(q.key), 0)
+ coalesce(octet_length(q.aggregate_id), 0)
