-- $1 id to look behind, $2 rows, $3 retention in microseconds
WITH seen AS MATERIALIZED (
    {seen}
)
SELECT count(*) AS looked_at, count(*) FILTER (WHERE over) AS events, max(id) AS last_id
FROM seen
