"""How unrolls, tickets and weights get from one component to another."""
