"""What a generated kernel computes, as terms: read from C++ or Triton, evaluated, bounded, put in words."""
