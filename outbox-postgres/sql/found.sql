SELECT to_regclass('{schema}.migration') IS NOT NULL AS found
