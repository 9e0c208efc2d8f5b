"""Datasets and the Hugging Face Hub: fetching them, and putting them there."""
