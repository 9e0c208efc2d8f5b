"""Encodes while recording: frames in, complete videos out.

The control loop copies a frame into shared memory and continues. Each camera has an encoder in a
process of its own, at a lower priority, so that neither its work nor its death reaches the loop.
A frame's memory is used again only when its packet is in a file; whatever ends an encoder,
another continues from there. Where encoders fall behind, frames wait on disk.
"""
