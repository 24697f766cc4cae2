"""Keys of the tables of a ledger in PostgreSQL."""

from typing import Final

KEY_COLUMNS: Final = """
    SELECT attname FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey)
    WHERE indrelid = '{table}'::regclass AND attname <> 'generation'
    AND (indisprimary OR indisunique AND NOT EXISTS (
        SELECT FROM pg_index AS other WHERE other.indrelid = '{table}'::regclass AND indisprimary
    ))
"""
"""The columns that tell rows apart. Without a primary key, the index of a table ends in the generation."""
