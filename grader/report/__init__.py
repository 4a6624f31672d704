"""What was found: as data, on the screen, in what is handed in."""
