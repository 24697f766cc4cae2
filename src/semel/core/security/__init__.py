"""Access control: ACLs, users and quotas, as pure rules and plain data."""
