EXISTS (SELECT FROM {schema}.{name} WHERE status = 'pending')
OR EXISTS (SELECT FROM {schema}.{name} WHERE status = 'processing')
OR EXISTS (SELECT FROM {schema}.{name} WHERE status = 'failed')
