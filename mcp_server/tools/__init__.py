"""The tools: one module each, from a workload to findings with evidence, and what they share."""
