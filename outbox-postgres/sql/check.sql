SELECT
    pg_is_in_recovery() AS standby,
    coalesce((SELECT max(version) FROM {schema}.migration), 0) AS version,
    has_table_privilege('{schema}.queue', 'SELECT') AND has_table_privilege('{schema}.queue', 'UPDATE')
        AND ($1 OR has_table_privilege('{schema}.queue', 'DELETE')) AS permitted
