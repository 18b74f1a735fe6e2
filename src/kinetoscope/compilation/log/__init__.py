"""torch's structured compile log, found and taken apart into records."""
