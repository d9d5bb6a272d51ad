-- $1 name
SELECT to_regclass('{schema}.' || $1::text) IS NULL AS gone
