-- $1 span (day or month), $2 how many spans ahead, $3 rows that may be in the default partition
-- Ranges that want a partition: this one, those ahead, and that of the oldest row in the default
-- partition. All bounds are UTC, whatever the session's time zone is. None when the default partition
-- holds more: it is read, and its rows moved, under a lock that writers wait for.
WITH stray AS MATERIALIZED (
    SELECT q.created_at
    FROM {schema}.queue_default AS q
    LIMIT (SELECT $3::bigint + 1)
),
wanted AS (
    SELECT date_trunc($1::text, statement_timestamp() AT TIME ZONE 'UTC')
        + n * ('1 ' || $1::text)::interval AS lower
    FROM generate_series(0, $2::integer) AS n
    UNION
    SELECT date_trunc($1::text, min(created_at) AT TIME ZONE 'UTC') FROM stray WHERE isfinite(created_at)
),
named AS (
    SELECT lower, lower + ('1 ' || $1::text)::interval AS upper,
        'queue_' || to_char(lower, CASE $1::text WHEN 'day' THEN 'YYYY_MM_DD' ELSE 'YYYY_MM' END) AS name
    FROM wanted
    WHERE extract(year FROM lower) BETWEEN 1970 AND 9998
)
SELECT name,
    to_char(lower, 'YYYY-MM-DD') || ' 00:00:00+00' AS lower_bound,
    to_char(upper, 'YYYY-MM-DD') || ' 00:00:00+00' AS upper_bound
FROM named
WHERE to_regclass('{schema}.' || name) IS NULL AND (SELECT count(*) FROM stray) <= $3::bigint
ORDER BY lower
