"""What helps others to trust a head: the statement of what is claimed, and the audit that attacks the claims."""
