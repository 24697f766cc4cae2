"""Administration: topics, configs, groups, transactions, users, ACLs and quotas."""
