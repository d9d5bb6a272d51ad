-- $7 behind this id, $8 rows
SELECT {dead_row}
FROM {schema}.queue AS q
WHERE {dead} AND ($7::bigint IS NULL OR q.id > $7)
ORDER BY q.id
LIMIT (SELECT $8::bigint)
