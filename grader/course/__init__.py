"""What is asked of a stage, and what is right."""
