-- Held until the transaction ends; other migrators of this schema wait. The first number is ours.
SELECT pg_advisory_xact_lock(1869968479, hashtext('{schema}'))
