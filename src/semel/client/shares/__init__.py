"""Share consumers (KIP-932)."""
