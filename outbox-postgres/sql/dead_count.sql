SELECT count(*) FROM {schema}.queue AS q WHERE {dead}
