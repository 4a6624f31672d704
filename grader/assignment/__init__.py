"""What students are given, and what they hand in."""
