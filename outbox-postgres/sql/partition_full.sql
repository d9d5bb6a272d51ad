-- $1 rows that may be in the default partition
SELECT count(*) > $1::bigint AS full
FROM (SELECT FROM {schema}.queue_default AS q LIMIT (SELECT $1::bigint + 1)) AS stray
