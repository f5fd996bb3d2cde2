"""The campaign's values for each table, from its records, one module a stage."""
