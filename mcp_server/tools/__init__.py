"""The tools, one module each: from a workload to findings with evidence. Also what the tools share."""
