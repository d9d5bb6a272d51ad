-- One message, and so one transaction. Whoever waits for a lock keeps all later writers waiting:
-- better give up and try again at a later step.
SET LOCAL lock_timeout = '50ms';
DO $outbox$
DECLARE
    settings CONSTANT text := ({settings});
BEGIN
    IF NOT pg_try_advisory_xact_lock(1869968483, hashtext('{schema}')) THEN
        RETURN;
    END IF;
    EXECUTE format(
        'CREATE TABLE {schema}.{name} (
            LIKE {schema}.queue INCLUDING COMPRESSION INCLUDING CONSTRAINTS INCLUDING DEFAULTS INCLUDING STORAGE
        ) %s', settings);
    -- Nobody claims or settles rows while they move; their ids, tokens and leases stay.
    LOCK TABLE {schema}.queue_default IN ACCESS EXCLUSIVE MODE;
    WITH moved AS (
        DELETE FROM {schema}.queue_default
        WHERE created_at >= '{lower}' AND created_at < '{upper}'
        RETURNING *
    )
    INSERT INTO {schema}.{name} SELECT * FROM moved;
    ALTER TABLE {schema}.queue ATTACH PARTITION {schema}.{name} FOR VALUES FROM ('{lower}') TO ('{upper}');
    -- Whoever makes it, its owner drops it one day.
    EXECUTE format('ALTER TABLE {schema}.{name} OWNER TO %I', (
        SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = '{schema}.queue'::regclass
    ));
END
$outbox$;
