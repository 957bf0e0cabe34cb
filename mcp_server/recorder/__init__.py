"""Records calls in or around a package, and examines a recording or core file after the process is gone."""
