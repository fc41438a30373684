"""Playing for the record: episodes of a policy, a script or chance, counted, compared, dumped and filmed."""
