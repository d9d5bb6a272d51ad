-- Makes the table, which is empty and locked, one of partitions by the time of the insert. Columns,
-- checks, indexes, triggers and storage are those that it has: no second copy of the migrations.
DO $outbox$
DECLARE
    queue CONSTANT regclass := '{schema}.queue'::regclass;
    settings CONSTANT text := (SELECT array_to_string(reloptions, ', ') FROM pg_class WHERE oid = queue);
    definitions CONSTANT text[] := ARRAY(
        SELECT pg_get_indexdef(indexrelid) FROM pg_index
        WHERE indrelid = queue AND NOT indisprimary ORDER BY indexrelid
    ) || ARRAY(
        SELECT pg_get_triggerdef(oid) FROM pg_trigger
        WHERE tgrelid = queue AND NOT tgisinternal ORDER BY oid
    );
    definition text;
BEGIN
    ALTER TABLE {schema}.queue RENAME TO queue_plain;
    CREATE TABLE {schema}.queue (
        LIKE {schema}.queue_plain
            INCLUDING COMMENTS INCLUDING CONSTRAINTS INCLUDING DEFAULTS INCLUDING IDENTITY
    ) PARTITION BY RANGE (created_at);
    DROP TABLE {schema}.queue_plain;
    -- A key must hold the column that partitions are made by. Ids are unique as long as nobody gives
    -- one by hand.
    ALTER TABLE {schema}.queue ADD CONSTRAINT queue_pkey PRIMARY KEY (id, created_at);
    FOREACH definition IN ARRAY definitions LOOP
        EXECUTE definition;
    END LOOP;
    -- An insert never fails for want of a partition.
    EXECUTE format(
        'CREATE TABLE {schema}.queue_default PARTITION OF {schema}.queue DEFAULT WITH (%s)', settings);
END
$outbox$;
