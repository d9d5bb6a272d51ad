-- Whoever waits for a table keeps all later writers of it waiting: better fail soon and try again.
SET LOCAL lock_timeout = '2s';

-- Producer-side dedup keys. They live in a table of their own: events are deleted or moved while
-- their keys must be remembered, and a unique index can't span partitions.
CREATE TABLE {schema}.dedup (
    dedup_key text PRIMARY KEY,
    -- The event that was written for it.
    event_id uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

-- For whoever forgets old keys.
CREATE INDEX dedup_created ON {schema}.dedup (created_at);

ALTER TABLE {schema}.queue ADD COLUMN dedup_key text;

-- Whoever writes an event needs no right on the table of keys, hence the owner's.
CREATE FUNCTION {schema}.dedup() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog AS $outbox$
BEGIN
    -- Waits for a transaction that has just written the same key, and takes the key if that one
    -- rolls back.
    INSERT INTO {schema}.dedup (dedup_key, event_id)
    VALUES (NEW.dedup_key, NEW.event_id)
    ON CONFLICT (dedup_key) DO NOTHING;
    IF FOUND THEN
        RETURN NEW;
    END IF;
    RETURN NULL;
END
$outbox$;

-- Firing the trigger takes no right; making another one does. Else whoever may use the schema could
-- put it on a table of his own and take keys by it, so that events of others are left out.
REVOKE EXECUTE ON FUNCTION {schema}.dedup() FROM PUBLIC;

CREATE TRIGGER queue_dedup BEFORE INSERT ON {schema}.queue
    FOR EACH ROW WHEN (NEW.dedup_key IS NOT NULL)
    EXECUTE FUNCTION {schema}.dedup();

INSERT INTO {schema}.migration (version, name) VALUES (2, 'dedup');
