-- $1 event id, $2 bytes of one event
SELECT {event}, {dead_row}
FROM {schema}.queue AS q
{documents}
WHERE q.status = 'failed' AND q.event_id = $1
ORDER BY q.id
LIMIT 1
