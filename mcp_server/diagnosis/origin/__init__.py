"""From a bad value to where it was computed: expression, elements of the inputs, and when it goes wrong.

`find_origin` works on values that a run with launch probes has left (`ProbedValues`), or on the code alone.
"""
