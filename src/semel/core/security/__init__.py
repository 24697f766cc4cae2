"""Who may do what: ACLs, users and quotas, as pure rules and plain data."""
