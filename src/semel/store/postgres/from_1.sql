-- Upgrades the tables of version 1, which has no policies.

-- What administrators have decided for the whole cluster: kind is acl, user, quota or secret. name identifies it, and
-- body is its value; both are JSON. The last commit wins, so there are no versions.
CREATE TABLE policies (
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (kind, name)
);

-- Writes the new value of a policy, or removes it (NULL).
CREATE FUNCTION write_policy(policy_kind text, policy_name text, new_body text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF new_body IS NULL THEN
        DELETE FROM policies WHERE kind = policy_kind AND name = policy_name;
    ELSE
        INSERT INTO policies (kind, name, body) VALUES (policy_kind, policy_name, new_body)
        ON CONFLICT (kind, name) DO UPDATE SET body = excluded.body;
    END IF;
END
$$;

UPDATE meta SET value = '2' WHERE name = 'schema_version';
