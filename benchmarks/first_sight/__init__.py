"""Batches of programs that no detector was written for, and the first verdicts about them."""
