"""Pixels: packet index, GOP decoding, encoded pictures, encoding, joining. Needs PyAV."""
