"""Calls that are gone: a recorder in or around a package; what is read of it, or of a core, afterwards."""
