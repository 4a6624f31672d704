"""Makes the page beside the editor and its pictures, HTML and SVG, from plain numbers and words."""
