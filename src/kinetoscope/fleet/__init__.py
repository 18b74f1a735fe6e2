"""Many ranks at once: each trace mapped to a part by a worker, parts stored, read again and numbered."""
