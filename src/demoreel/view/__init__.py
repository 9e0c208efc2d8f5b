"""The local viewer: a web server for datasets, and its page."""
