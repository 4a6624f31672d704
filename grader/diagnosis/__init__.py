"""Says where an answer is wrong, and what that looks like."""
