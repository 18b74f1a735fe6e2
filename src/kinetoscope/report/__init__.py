"""One Report document and its renderers."""
