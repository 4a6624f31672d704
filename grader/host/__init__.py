"""The trusted side of the border: processes, limits, messages.  Nothing here judges."""
