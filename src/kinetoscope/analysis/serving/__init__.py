"""Steps of serving engines by phase and batch: their time, what it went to, what the host left exposed."""
