"""Holds what was found, shows it, and packs it to be handed in."""
