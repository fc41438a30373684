"""The environments of rollmill's first users, registered by entry points as any package may do."""
