-- $1 whether others have seen the table, $2 how many to name
-- Whether the table holds rows, and what it would lose, or could not have, as one of partitions.
WITH queue AS (
    SELECT c.*, t.typarray
    FROM pg_class AS c JOIN pg_type AS t ON t.oid = c.reltype
    WHERE c.oid = '{schema}.queue'::regclass
),
-- What belongs to the table and comes along, unless it is named below.
own (classid, objid) AS (
    SELECT 'pg_class'::regclass, indexrelid FROM queue JOIN pg_index ON indrelid = queue.oid
    UNION ALL SELECT 'pg_class'::regclass, reltoastrelid FROM queue
    UNION ALL SELECT 'pg_class'::regclass, d.objid
    FROM queue JOIN pg_depend AS d ON (d.refclassid, d.refobjid, d.deptype) = ('pg_class'::regclass, queue.oid, 'i')
    WHERE d.objid = pg_get_serial_sequence('{schema}.queue', 'id')::regclass
    UNION ALL SELECT 'pg_type'::regclass, unnest(ARRAY[reltype, typarray]) FROM queue
    UNION ALL SELECT 'pg_attrdef'::regclass, d.oid FROM queue JOIN pg_attrdef AS d ON adrelid = queue.oid
    UNION ALL SELECT 'pg_trigger'::regclass, t.oid FROM queue JOIN pg_trigger AS t ON tgrelid = queue.oid
    UNION ALL SELECT 'pg_constraint'::regclass, n.oid FROM queue JOIN pg_constraint AS n ON conrelid = queue.oid
    WHERE contype IN ('c', 'n') AND NOT connoinherit OR contype = 't'
        OR (contype, conname, pg_get_constraintdef(n.oid)) = ('p', 'queue_pkey', 'PRIMARY KEY (id)')
),
obstacle (what) AS (
    SELECT CASE
        WHEN rule.ev_class <> queue.oid THEN pg_describe_object('pg_class'::regclass, rule.ev_class, 0)
        ELSE pg_describe_object(d.classid, d.objid, d.objsubid)
    END
    FROM queue
    JOIN pg_depend AS d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = queue.oid
        OR d.refclassid = 'pg_type'::regclass AND d.refobjid IN (queue.reltype, queue.typarray)
    LEFT JOIN pg_rewrite AS rule ON d.classid = 'pg_rewrite'::regclass AND rule.oid = d.objid
    WHERE (d.classid, d.objid) NOT IN (SELECT classid, objid FROM own)
    UNION SELECT pg_describe_object('pg_trigger'::regclass, t.oid, 0) || ', which sees all rows of a statement'
    FROM queue JOIN pg_trigger AS t ON tgrelid = queue.oid
    WHERE tgtype & 1 = 1 AND (tgnewtable IS NOT NULL OR tgoldtable IS NOT NULL)
    UNION SELECT 'unique ' || pg_describe_object('pg_class'::regclass, i.indexrelid, 0)
    FROM queue JOIN pg_index AS i ON indrelid = queue.oid
    LEFT JOIN pg_constraint AS n ON conrelid = queue.oid AND conindid = indexrelid
    WHERE indisunique AND n.oid IS NULL
    UNION SELECT pg_describe_object('pg_class'::regclass, i.indexrelid, 0)
        || CASE WHEN indisclustered THEN ', which the table is clustered on'
            WHEN index.reltablespace <> 0 THEN ', which is in a tablespace'
            ELSE ', which has settings' END
    FROM queue JOIN pg_index AS i ON indrelid = queue.oid JOIN pg_class AS index ON index.oid = i.indexrelid
    WHERE indisclustered OR index.reltablespace <> 0 OR indisprimary AND index.reloptions IS NOT NULL
    UNION SELECT pg_describe_object('pg_class'::regclass, attrelid, attnum)
        || CASE WHEN attgenerated <> '' THEN ', which is generated'
            WHEN (attname = 'id') <> (attidentity <> '') THEN ', which must be an identity where it is the id, and no other'
            ELSE ', which has settings' END
    FROM queue JOIN pg_attribute ON attrelid = queue.oid OR attrelid IN (SELECT indexrelid FROM pg_index WHERE indrelid = queue.oid)
    WHERE attnum > 0 AND NOT attisdropped AND (
        attgenerated <> '' OR attstattarget >= 0
        OR attrelid = queue.oid AND (attoptions IS NOT NULL OR (attname = 'id') <> (attidentity <> ''))
    )
    UNION SELECT what
    FROM queue
    JOIN pg_am AS am ON am.oid = relam
    LEFT JOIN pg_tablespace AS space ON space.oid = reltablespace
    CROSS JOIN LATERAL (VALUES
        (relpersistence <> 'p', 'that the table is UNLOGGED'),
        (relrowsecurity OR relforcerowsecurity, 'its row level security'),
        (relreplident <> 'd', 'its replica identity, which is not the default one'),
        (reloftype <> 0, 'that the table is one of a type'),
        (spcname <> current_setting('default_tablespace'), 'that the table is in a tablespace'),
        (amname <> current_setting('default_table_access_method'), 'its access method'),
        (EXISTS (SELECT FROM pg_inherits WHERE inhrelid = queue.oid), 'that the table inherits from another'),
        (EXISTS (SELECT FROM pg_seclabel WHERE (classoid, objoid) = ('pg_class'::regclass, queue.oid)), 'its security labels'),
        (EXISTS (SELECT FROM pg_subscription_rel WHERE srrelid = queue.oid), 'its subscriptions'),
        (EXISTS (SELECT FROM pg_depend WHERE (classid, objid, deptype) = ('pg_class'::regclass, queue.oid, 'e')),
            'that the table belongs to an extension')
    ) AS of_table (is_so, what)
    WHERE is_so
    -- Subscribers know the table, and would get rows of partitions.
    UNION SELECT 'publication ' || p.pubname || ' without publish_via_partition_root'
    FROM queue CROSS JOIN pg_publication AS p
    WHERE $1::boolean AND NOT pubviaroot
        AND NOT EXISTS (SELECT FROM pg_publication_rel WHERE prpubid = p.oid AND prrelid = queue.oid)
        AND EXISTS (
            SELECT FROM pg_publication_tables AS published JOIN pg_namespace AS n ON n.nspname = published.schemaname
            WHERE published.pubname = p.pubname AND n.oid = queue.relnamespace AND published.tablename = queue.relname
        )
)
SELECT EXISTS (SELECT FROM {schema}.queue) AS filled, string_agg(what, ', ' ORDER BY what) AS obstacles
FROM (SELECT what FROM obstacle ORDER BY what LIMIT (SELECT $2::bigint)) AS first
