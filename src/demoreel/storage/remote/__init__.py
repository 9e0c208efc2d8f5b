"""Remote bytes: in object stores and on the Hub, read by ranges."""
