"""Many ranks, many traces."""
