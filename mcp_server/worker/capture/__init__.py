"""The capture hook: records from inside a program what the program itself does with AOTInductor."""
