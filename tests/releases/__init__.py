"""What the product does with each release of torch, tried: see `__main__`."""
