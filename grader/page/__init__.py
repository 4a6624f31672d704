"""Makes the page beside the editor as HTML, from plain numbers and words."""
