-- $1 retention in microseconds
-- Partitions of which even the last row is as old as that, the oldest first.
SELECT leaf.name
FROM (
    SELECT c.relname::text AS name,
        substring(pg_get_expr(c.relpartbound, c.oid) FROM 'TO \(''([^'']+)''\)')::timestamptz AS upper
    FROM pg_inherits AS i
    JOIN pg_class AS c ON c.oid = i.inhrelid
    WHERE i.inhparent = '{schema}.queue'::regclass AND c.relname ~ '^queue_\d{4}_\d{2}(_\d{2})?$'
) AS leaf
WHERE leaf.upper <= statement_timestamp() - $1::bigint * interval '1 microsecond'
ORDER BY leaf.upper
