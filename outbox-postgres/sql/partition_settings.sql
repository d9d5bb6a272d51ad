-- Storage settings of the table {of} as a clause for CREATE TABLE, null where there are none.
SELECT 'WITH (' || string_agg(format('%s%I = %L', part.prefix, setting.option_name, setting.option_value), ', ') || ')'
FROM pg_class AS c
CROSS JOIN LATERAL (VALUES ('', c.oid), ('toast.', c.reltoastrelid)) AS part (prefix, oid)
JOIN pg_class AS holder ON holder.oid = part.oid
CROSS JOIN LATERAL pg_options_to_table(holder.reloptions) AS setting
WHERE c.oid = {of}
