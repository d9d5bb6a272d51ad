-- $1 retention in microseconds
-- Whether all of the partition was delivered as long ago as that. What is undone is found by the
-- partial indexes, before the rest is read.
SELECT CASE WHEN {undone} THEN false
    ELSE NOT EXISTS (
        SELECT FROM {schema}.{name}
        WHERE status <> 'done' OR coalesce(processed_at, updated_at)
            > statement_timestamp() - $1::bigint * interval '1 microsecond'
    )
END AS done
