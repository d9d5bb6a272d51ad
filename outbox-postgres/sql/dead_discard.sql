-- $7 rows
DELETE FROM {schema}.queue AS q
WHERE q.id = ANY (ARRAY(
    SELECT q.id FROM {schema}.queue AS q WHERE {dead} ORDER BY q.id LIMIT (SELECT $7::bigint) FOR UPDATE SKIP LOCKED
))
