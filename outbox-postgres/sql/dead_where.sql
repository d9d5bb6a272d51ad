q.status = 'failed'
AND ($1::uuid[] IS NULL OR q.event_id = ANY ($1))
AND ($2::text IS NULL OR q.topic = $2)
AND ($3::text IS NULL OR coalesce(q.key, q.aggregate_id) = $3)
AND ($4::text IS NULL OR q.event_type = $4)
AND ($5::text IS NULL OR q.error_kind = $5)
AND ($6::bigint IS NULL
    OR coalesce(q.processed_at, q.updated_at) <= statement_timestamp() - $6 * interval '1 microsecond')
