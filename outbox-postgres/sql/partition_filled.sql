SELECT EXISTS (SELECT FROM {schema}.queue) AS filled
