"""From a bad value to where it was computed: expression, elements of the inputs, and when it goes wrong.

`trace_origin` makes one run with launch probes; `find_origin` works on values that a run has left
(`ProbedValues`) or on the code alone. `smallest_change` then asks the workload itself.
"""
