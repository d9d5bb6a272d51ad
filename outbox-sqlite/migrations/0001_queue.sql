-- The outbox in one file. Times are milliseconds since 1970, by the clock of this machine, read in SQL.
CREATE TABLE outbox_migration (
    version INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at INTEGER NOT NULL DEFAULT ({now})
) STRICT;

CREATE TABLE outbox_queue (
    -- Never given out twice, also after a delete: the order of commits, since SQLite has one writer.
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id TEXT NOT NULL DEFAULT (
        lower(hex(randomblob(4))) || '-' || lower(hex(randomblob(2))) || '-4'
        || substr(lower(hex(randomblob(2))), 2) || '-' || substr('89ab', 1 + (random() & 3), 1)
        || substr(lower(hex(randomblob(2))), 2) || '-' || lower(hex(randomblob(6)))
    ),
    topic TEXT NOT NULL,
    -- What orders events; the aggregate id where it is null.
    key TEXT,
    event_type TEXT NOT NULL,
    event_version INTEGER NOT NULL DEFAULT 1,
    aggregate_type TEXT,
    aggregate_id TEXT,
    content_type TEXT,
    headers TEXT,
    -- A blob is sent byte for byte, text as its UTF-8; null is a tombstone.
    payload ANY,
    dedup_key TEXT,
    status TEXT NOT NULL DEFAULT 'pending',
    -- Off the stream: retry (waits for its time), held (behind an earlier event of its key), free (was
    -- held and may go), scheduled (waits for its time and blocks nobody). Null: in the stream.
    parked TEXT,
    -- Later events of its key wait for it.
    blocks INTEGER NOT NULL DEFAULT 0,
    -- The route that parked, claimed or buried it.
    route TEXT,
    attempts INTEGER NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0,
    next_attempt_at INTEGER NOT NULL DEFAULT ({now}),
    lease_token TEXT,
    first_failed_at INTEGER,
    last_failed_at INTEGER,
    dead_reason TEXT,
    error_kind TEXT,
    error TEXT,
    created_at INTEGER NOT NULL DEFAULT ({now}),
    -- When it was delivered or died.
    processed_at INTEGER,
    order_key TEXT GENERATED ALWAYS AS (coalesce(key, aggregate_id)) VIRTUAL,
    spread TEXT GENERATED ALWAYS AS (coalesce(key, aggregate_id, event_id)) VIRTUAL,
    -- Which lane: the same for ever, so that a key stays in its lane.
    bucket INTEGER GENERATED ALWAYS AS (
        (coalesce(unicode(substr(spread, -1, 1)), 0)
            + 7 * coalesce(unicode(substr(spread, -2, 1)), 0)
            + 31 * coalesce(unicode(substr(spread, -3, 1)), 0)
            + 131 * coalesce(unicode(substr(spread, 1, 1)), 0)
            + 17 * length(spread)) % 256
    ) VIRTUAL,
    bytes INTEGER GENERATED ALWAYS AS (
        coalesce(length(CAST(payload AS BLOB)), 0) + coalesce(length(CAST(headers AS BLOB)), 0)
            + length(CAST(topic AS BLOB)) + length(CAST(event_type AS BLOB))
            + coalesce(length(CAST(key AS BLOB)), 0) + coalesce(length(CAST(aggregate_id AS BLOB)), 0)
    ) VIRTUAL,
    CHECK (status IN ('pending', 'processing', 'done', 'failed')),
    CHECK (parked IN ('retry', 'held', 'free', 'scheduled')),
    -- A claim without a token would never be taken over: a stuck row.
    CHECK (status <> 'processing' OR lease_token IS NOT NULL),
    CHECK (length(event_id) = 36 AND event_id NOT GLOB '*[^0-9a-f-]*'
        AND length(replace(event_id, '-', '')) = 32)
) STRICT;

-- Only rows in that state are in an index of theirs, so that done rows cost the claim nothing.
CREATE INDEX outbox_stream ON outbox_queue (id, bucket, topic, crashes, bytes)
    WHERE status = 'pending' AND parked IS NULL;
CREATE INDEX outbox_parked ON outbox_queue (next_attempt_at, id)
    WHERE status = 'pending' AND parked IN ('retry', 'free', 'scheduled');
CREATE INDEX outbox_held ON outbox_queue (id) WHERE status = 'pending' AND parked = 'held';
CREATE INDEX outbox_blocks ON outbox_queue (route, order_key, id) WHERE blocks = 1;
CREATE INDEX outbox_processing ON outbox_queue (lease_token, id) WHERE status = 'processing';
CREATE INDEX outbox_failed ON outbox_queue (id) WHERE status = 'failed';
CREATE INDEX outbox_failed_event ON outbox_queue (event_id) WHERE status = 'failed';
CREATE INDEX outbox_done ON outbox_queue (processed_at) WHERE status = 'done';

-- An event that is to wait is no part of the stream, whoever wrote it.
CREATE TRIGGER outbox_schedule AFTER INSERT ON outbox_queue
WHEN NEW.status = 'pending' AND NEW.parked IS NULL AND NEW.next_attempt_at > {now}
BEGIN
    UPDATE outbox_queue SET parked = 'scheduled' WHERE id = NEW.id;
END;

-- Producer-side dedup keys. They live in a table of their own: events are deleted while their keys
-- must be remembered.
CREATE TABLE outbox_dedup (
    dedup_key TEXT PRIMARY KEY,
    -- The event that was written for it.
    event_id TEXT NOT NULL,
    created_at INTEGER NOT NULL DEFAULT ({now})
) STRICT, WITHOUT ROWID;
CREATE INDEX outbox_dedup_created ON outbox_dedup (created_at);

CREATE TRIGGER outbox_dedup_known BEFORE INSERT ON outbox_queue
WHEN NEW.dedup_key IS NOT NULL
    AND EXISTS (SELECT 1 FROM outbox_dedup WHERE dedup_key = NEW.dedup_key)
BEGIN
    SELECT RAISE(IGNORE);
END;
CREATE TRIGGER outbox_dedup_new AFTER INSERT ON outbox_queue
WHEN NEW.dedup_key IS NOT NULL
BEGIN
    INSERT INTO outbox_dedup (dedup_key, event_id) VALUES (NEW.dedup_key, NEW.event_id);
END;

-- Who works which lane of which route.
CREATE TABLE outbox_lane (
    route TEXT NOT NULL,
    lane INTEGER NOT NULL,
    owner TEXT,
    -- The fence: rises with each owner.
    epoch INTEGER NOT NULL DEFAULT 0,
    lease_until INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (route, lane)
) STRICT, WITHOUT ROWID;

-- When each worker last asked for lanes.
CREATE TABLE outbox_worker (
    route TEXT NOT NULL,
    worker TEXT NOT NULL,
    asked_at INTEGER NOT NULL,
    PRIMARY KEY (route, worker)
) STRICT, WITHOUT ROWID;

-- Claims in the order in which they were made, and the answers of the last settled ones.
CREATE TABLE outbox_flight (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    token TEXT NOT NULL UNIQUE,
    route TEXT NOT NULL,
    lane INTEGER NOT NULL,
    parked INTEGER NOT NULL,
    -- Holds events that were in flight at a crash, and flies alone.
    suspect INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    -- Null while it is not settled.
    applied INTEGER,
    lost INTEGER,
    unblocked TEXT
) STRICT;
CREATE INDEX outbox_flight_lane ON outbox_flight (route, lane, id);

-- Keys of which a parked event went, still to be told to the owner of the lane.
CREATE TABLE outbox_freed (
    route TEXT NOT NULL,
    order_key TEXT NOT NULL,
    bucket INTEGER NOT NULL,
    PRIMARY KEY (route, order_key)
) STRICT, WITHOUT ROWID;

INSERT INTO outbox_migration (version, name) VALUES (1, 'queue');
