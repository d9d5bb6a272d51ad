-- $7 groups
SELECT {text(q.topic)} AS dead_topic, {text(q.event_type)} AS dead_event_type, {text(q.error_kind)} AS error_kind, count(*) AS dead_count
FROM {schema}.queue AS q
WHERE {dead}
GROUP BY q.topic, q.event_type, q.error_kind
ORDER BY count(*) DESC, q.topic, q.event_type, q.error_kind
LIMIT (SELECT $7::bigint)
