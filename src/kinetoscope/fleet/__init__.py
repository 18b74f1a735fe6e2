"""Many ranks at once: each trace mapped to a part by a worker, parts kept, found again and distinguished."""
