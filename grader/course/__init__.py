"""The stages, their cases and inputs, and the rule that accepts an answer."""
