"""Many ranks at once: each trace mapped to a part by a worker of its own, parts kept, found again and
compared.
"""
