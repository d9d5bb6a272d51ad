-- $5 span: rows of younger partitions wait until the whole partition goes.
AND q.created_at < date_trunc(
    $5::text, (statement_timestamp() - $3::bigint * interval '1 microsecond') AT TIME ZONE 'UTC'
) AT TIME ZONE 'UTC'
