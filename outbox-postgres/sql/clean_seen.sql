SELECT q.id,
    q.created_at <= statement_timestamp() - $3::bigint * interval '1 microsecond' AS old,
    q.status = 'done' AND coalesce(q.processed_at, q.updated_at)
        <= statement_timestamp() - $3::bigint * interval '1 microsecond' AS over
FROM {schema}.queue AS q
WHERE {may} AND q.id > $1::bigint {old}
ORDER BY q.id
LIMIT (SELECT $2::bigint)
