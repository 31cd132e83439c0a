"""Tables of features as people have them: each is read right, or refused, and nothing vanishes without a word."""
