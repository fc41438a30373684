"""Where unrolls wait for the learner."""
