-- What the table is, and what tells how long its partitions are.
SELECT
    c.relkind = 'p' AS partitioned,
    pg_has_role(c.relowner, 'USAGE') AS owned,
    EXISTS (
        SELECT FROM pg_inherits AS i JOIN pg_class AS leaf ON leaf.oid = i.inhrelid
        WHERE i.inhparent = c.oid AND leaf.relname ~ '^queue_\d{4}_\d{2}_\d{2}$'
    ) AS daily,
    EXISTS (
        SELECT FROM pg_inherits AS i JOIN pg_class AS leaf ON leaf.oid = i.inhrelid
        WHERE i.inhparent = c.oid AND leaf.relname ~ '^queue_\d{4}_\d{2}$'
    ) AS monthly
FROM pg_class AS c
WHERE c.oid = to_regclass('{schema}.queue')
