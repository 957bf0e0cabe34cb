"""A witness of real runs that shares no code with the reader: what a generated library calls, with which
values.
"""
