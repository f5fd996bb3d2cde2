"""Files: whole or absent, Parquet with units and origin, its layouts, and locks."""
