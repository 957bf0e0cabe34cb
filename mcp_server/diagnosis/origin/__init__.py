"""From a bad value to where it was computed: expression, elements of the inputs, and when it goes wrong."""
