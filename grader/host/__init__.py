"""Starts workers, talks to them and ends them; nothing here judges."""
