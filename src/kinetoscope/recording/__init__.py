"""The folder on disk: manifest, traces, compile log, generated code, environment."""
