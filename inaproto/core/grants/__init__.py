"""What a controller grants the agents of hosts and switches, as the agents have it (docs/protocol.md 17)."""
