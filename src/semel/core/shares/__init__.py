"""Share groups (KIP-932): members, deliveries, acknowledgements. `rules` lists what is decided."""
