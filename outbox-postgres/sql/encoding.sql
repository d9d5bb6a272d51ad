SELECT getdatabaseencoding()::text AS encoding
