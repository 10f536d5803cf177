"""Views of a machine: matrix, tree and tables as text, a picture, a page."""
