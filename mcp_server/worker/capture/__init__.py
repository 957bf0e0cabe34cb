"""The capture hook: what the program itself does with AOTInductor, seen from inside of it."""
