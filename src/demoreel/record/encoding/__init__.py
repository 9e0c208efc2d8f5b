"""Encoding while recording: frames go in at once, videos come out whole.

The control loop copies a frame into shared memory and goes on. Each camera has an encoder in a
process of its own, at a lower priority, so that neither its work nor its death reaches the loop.
A frame's memory is used again only when its packet lies in a file; whatever ends an encoder,
another goes on from there. Where encoders fall behind, frames wait on disk.
"""
