"""Many cases diagnosed in one go, on this machine or on a Ray cluster."""
