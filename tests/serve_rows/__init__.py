"""The rows of tests/serve.py: what `pom serve` is held to, with numbers, each in a file of its subject."""
