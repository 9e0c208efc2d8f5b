"""Pixels: packet index, GOP decoding, encoded images, encoding, joining. Needs PyAV."""
