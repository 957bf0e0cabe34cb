"""Code that runs in the user's interpreter, with only Python 3.9+, torch 2.8-2.15 and the standard library.

`main.py` is started by its path, and registers this folder as a package under a private name. The files here
can then import each other relatively, and never shadow a module of the user.
"""
