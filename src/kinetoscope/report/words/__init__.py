"""Sentences, names and colours that all renderers share."""
