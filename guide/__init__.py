"""The companion guide: its text and figures, and the programs that make a site and a PDF of
them."""
