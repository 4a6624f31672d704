"""Pictures and the page beside the editor: SVG and HTML, made of plain numbers and words."""
