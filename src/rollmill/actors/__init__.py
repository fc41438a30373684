"""Making unrolls: playing episodes, deciding, assembling."""
