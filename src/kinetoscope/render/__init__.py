"""Blocks drawn: terminal, text, Markdown, HTML, JSON, SARIF. No renderer knows a subject."""
