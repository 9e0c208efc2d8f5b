"""Datasets on the Hugging Face Hub: download and upload."""
