"""What is told about runs after the fact, from their files alone."""
