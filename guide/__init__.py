"""The companion guide: its text, its figures, and what builds both into a site and a PDF."""
