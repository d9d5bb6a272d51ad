-- Like partition_make: one transaction that gives up rather than let writers wait. Parent first, as
-- every other statement locks them.
SET LOCAL lock_timeout = '50ms';
DO $outbox$
BEGIN
    IF NOT pg_try_advisory_xact_lock(1869968483, hashtext('{schema}')) THEN
        RETURN;
    END IF;
    LOCK TABLE ONLY {schema}.queue IN ACCESS EXCLUSIVE MODE;
    LOCK TABLE {schema}.{name} IN ACCESS EXCLUSIVE MODE;
    -- What was delivered a retention ago still is, but somebody may have inserted an old row.
    IF NOT ({undone}) THEN
        DROP TABLE {schema}.{name};
    END IF;
END
$outbox$;
