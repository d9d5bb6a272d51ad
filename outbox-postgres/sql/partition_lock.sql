SET LOCAL lock_timeout = '2s';
LOCK TABLE {schema}.queue IN ACCESS EXCLUSIVE MODE;
