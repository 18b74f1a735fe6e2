"""The one place that reads analyses, findings and compile logs, and puts them into a document."""
