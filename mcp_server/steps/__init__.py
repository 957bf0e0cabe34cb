"""The steps of the procedure: one file per step, from a workload to findings with evidence."""
