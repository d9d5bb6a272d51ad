-- Makes the table, which is empty and locked and has nothing of partition_obstacles, one of partitions by
-- the time of the insert. All is as the table has it: no second copy of the migrations.
DO $outbox$
DECLARE
    queue CONSTANT regclass := '{schema}.queue'::regclass;
    ids CONSTANT regclass := pg_get_serial_sequence('{schema}.queue', 'id')::regclass;
    ids_name CONSTANT name := (SELECT relname FROM pg_class WHERE oid = ids);
    owner CONSTANT name := (SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = queue);
    settings CONSTANT text := ({settings});
    definitions CONSTANT text[] := ARRAY(
        SELECT pg_get_indexdef(indexrelid) FROM pg_index
        WHERE indrelid = queue AND NOT indisprimary ORDER BY indexrelid
    ) || ARRAY(
        SELECT pg_get_triggerdef(oid) FROM pg_trigger
        WHERE tgrelid = queue AND NOT tgisinternal ORDER BY oid
    ) || ARRAY(
        SELECT format('ALTER TABLE {schema}.queue %s TRIGGER %I',
            CASE tgenabled WHEN 'D' THEN 'DISABLE' WHEN 'R' THEN 'ENABLE REPLICA' ELSE 'ENABLE ALWAYS' END, tgname)
        FROM pg_trigger WHERE tgrelid = queue AND NOT tgisinternal AND tgenabled <> 'O'
    );
    -- Those of columns and checks come with the columns.
    comments CONSTANT text[] := ARRAY(
        SELECT format('COMMENT ON %s IS %L', what, comment)
        FROM (
            SELECT 'TABLE {schema}.queue', obj_description(queue, 'pg_class')
            UNION ALL SELECT format('SEQUENCE {schema}.%I', ids_name), obj_description(ids, 'pg_class')
            UNION ALL SELECT format('INDEX {schema}.%I', relname), obj_description(indexrelid, 'pg_class')
            FROM pg_index JOIN pg_class ON oid = indexrelid WHERE indrelid = queue
            UNION ALL SELECT format('CONSTRAINT %I ON {schema}.queue', conname), obj_description(oid, 'pg_constraint')
            FROM pg_constraint WHERE conrelid = queue AND contype = 'p'
            UNION ALL SELECT format('TRIGGER %I ON {schema}.queue', tgname), obj_description(oid, 'pg_trigger')
            FROM pg_trigger WHERE tgrelid = queue AND NOT tgisinternal
        ) AS commented (what, comment)
        WHERE comment IS NOT NULL
    );
    -- Whoever had a right has it still, now from the owner.
    rights CONSTANT text[] := ARRAY(
        SELECT format('GRANT %s%s ON %s TO %s%s', privilege_type, columns, target,
            CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END,
            CASE WHEN bool_or(is_grantable) THEN ' WITH GRANT OPTION' END)
        FROM (
            SELECT '{schema}.queue', '', coalesce(relacl, acldefault('r', relowner)) FROM pg_class WHERE oid = queue
            UNION ALL SELECT format('SEQUENCE {schema}.%I', ids_name), '', coalesce(relacl, acldefault('s', relowner))
            FROM pg_class WHERE oid = ids
            UNION ALL SELECT '{schema}.queue', format(' (%I)', attname), attacl
            FROM pg_attribute WHERE attrelid = queue AND attacl IS NOT NULL AND NOT attisdropped
        ) AS had (target, columns, acl)
        CROSS JOIN LATERAL aclexplode(acl)
        GROUP BY target, columns, privilege_type, grantee
    );
    last_id bigint;
    is_given boolean;
    statement text;
BEGIN
    EXECUTE format('SELECT last_value, is_called FROM %s', ids) INTO last_id, is_given;
    ALTER TABLE {schema}.queue RENAME TO queue_plain;
    CREATE TABLE {schema}.queue (
        LIKE {schema}.queue_plain
            INCLUDING COMMENTS INCLUDING COMPRESSION INCLUDING CONSTRAINTS INCLUDING DEFAULTS
            INCLUDING IDENTITY INCLUDING STORAGE
    ) PARTITION BY RANGE (created_at);
    DROP TABLE {schema}.queue_plain;
    EXECUTE format('ALTER SEQUENCE %s RENAME TO %I', pg_get_serial_sequence('{schema}.queue', 'id'), ids_name);
    PERFORM setval(pg_get_serial_sequence('{schema}.queue', 'id'), last_id, is_given);
    -- A key must hold the column that partitions are made by. Ids are unique as long as nobody gives
    -- one by hand.
    ALTER TABLE {schema}.queue ADD CONSTRAINT queue_pkey PRIMARY KEY (id, created_at);
    FOREACH statement IN ARRAY definitions || comments LOOP
        EXECUTE statement;
    END LOOP;
    -- An insert never fails for want of a partition.
    EXECUTE format('CREATE TABLE {schema}.queue_default PARTITION OF {schema}.queue DEFAULT %s', settings);
    EXECUTE format('ALTER TABLE {schema}.queue_default OWNER TO %I', owner);
    EXECUTE format('ALTER TABLE {schema}.queue OWNER TO %I', owner);
    -- Also what a new table is given by default: nobody has more rights than before.
    FOR statement IN
        SELECT DISTINCT format('REVOKE ALL ON %s FROM %s', target,
            CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END)
        FROM (
            SELECT '{schema}.queue', coalesce(relacl, acldefault('r', relowner))
            FROM pg_class WHERE oid = '{schema}.queue'::regclass
            UNION ALL SELECT format('SEQUENCE {schema}.%I', ids_name), coalesce(relacl, acldefault('s', relowner))
            FROM pg_class WHERE oid = pg_get_serial_sequence('{schema}.queue', 'id')::regclass
        ) AS has (target, acl)
        CROSS JOIN LATERAL aclexplode(acl)
    LOOP
        EXECUTE statement;
    END LOOP;
    FOREACH statement IN ARRAY rights LOOP
        EXECUTE statement;
    END LOOP;
END
$outbox$;
