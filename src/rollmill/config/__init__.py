"""Reading configurations: strict YAML, overrides, and one line for every mistake."""
