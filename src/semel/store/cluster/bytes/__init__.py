"""Where the bytes of a cluster are: in PostgreSQL at first, then in objects, which are merged."""
