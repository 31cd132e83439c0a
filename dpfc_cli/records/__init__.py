"""What a head says of itself: its claim, its releases, its card, whether they agree, and the statement made of them."""
