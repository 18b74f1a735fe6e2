"""The whole report: terminal, text, Markdown, HTML, JSON."""
