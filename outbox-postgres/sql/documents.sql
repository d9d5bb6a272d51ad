CROSS JOIN LATERAL (SELECT q.payload::text AS payload, q.headers::text AS headers OFFSET 0) AS doc
CROSS JOIN LATERAL (
    SELECT part.bytes, part.bytes <= {bytes_max}::bigint AS fits
    FROM (
        SELECT coalesce(octet_length(q.payload_bytes), 0)
            + coalesce(octet_length(doc.payload), 0)
            + coalesce(octet_length(doc.headers), 0) AS bytes
        OFFSET 0
    ) AS part
    OFFSET 0
) AS size
